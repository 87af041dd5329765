// `normalizer`, `pre_tokenizer` and `post_processor` of tokenizer.json.

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "files/base64.h"
#include "imago/error.h"
#include "models/vocabulary_parts.h"

namespace imago::models {

namespace {

using files::JsonMember;
using files::JsonValue;

using Step = std::function<void(const std::string& type, const JsonValue& step)>;

/// Calls `take` for each step of `part`, in order: those inside a Sequence too, which are listed under `list`.
void for_each_step(const JsonValue& part, std::string_view what, std::string_view list, const Step& take) {
  const std::string type = json_type(part, what);
  if (type != "Sequence") return take(type, part);
  const auto steps = part.find(list);
  if (!steps) part.fail(fmt::format("a Sequence has no '{}'", list));
  for (const JsonMember step : steps->elements(list)) for_each_step(step.value, what, list, take);
}

[[noreturn]] void refuse(std::string_view what, std::string_view type, std::string_view more = {}) {
  throw UnsupportedError(fmt::format("the {} '{}'{} of tokenizer.json is not supported", what, type, more));
}

/// {"String": " "} or {"Regex": " {2,}"}
struct Pattern {
  std::string text;
  bool is_regex = false;
};

Pattern read_pattern(const JsonValue& step) {
  const auto pattern = step.find("pattern");
  if (!pattern) step.fail("there is no 'pattern'");
  if (const auto text = pattern->find("String")) return {text->string("String"), false};
  if (const auto regex = pattern->find("Regex")) return {regex->string("Regex"), true};
  pattern->fail("a pattern must have 'String' or 'Regex'");
}

std::string read_content(const JsonValue& step, std::string_view key) {
  const auto content = step.find(key);
  return content ? content->string(key) : std::string();
}

void normalizer_step(const std::string& type, const JsonValue& step, Vocabulary& vocabulary, bool& marks_spaces) {
  const bool sentence = vocabulary.kind != TokenizerKind::word_piece;
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    vocabulary.normal_forms.push_back(type);
  } else if (type == "Prepend" && sentence && read_content(step, "prepend") == kSpaceMark) {
    vocabulary.add_space_prefix = true;
  } else if (type == "Replace" && sentence) {
    const Pattern pattern = read_pattern(step);
    const std::string content = read_content(step, "content");
    if (!pattern.is_regex && pattern.text == " " && content == kSpaceMark) {
      marks_spaces = true;
    } else if (pattern.is_regex && pattern.text == " {2,}" && (content == " " || content == kSpaceMark)) {
      vocabulary.remove_extra_spaces = true;
    } else {
      refuse("normalizer", type, fmt::format(" of '{}' by '{}'", pattern.text, content));
    }
  } else if (type == "Strip" && vocabulary.kind == TokenizerKind::unigram) {
    vocabulary.remove_extra_spaces = true;
  } else if (type == "Precompiled" && sentence) {
    const auto map = step.find("precompiled_charsmap");
    if (!map) return;
    const std::vector<std::byte> bytes = files::decode_base64(*map, "precompiled_charsmap");
    vocabulary.normalizer_map.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  } else if (type == "BertNormalizer" && !sentence) {
    vocabulary.lowercase = json_flag(step, "lowercase", true);
    vocabulary.strip_accents = json_flag(step, "strip_accents", vocabulary.lowercase);
    vocabulary.split_chinese = json_flag(step, "handle_chinese_chars", true);
  } else if (type == "Lowercase" && !sentence) {
    vocabulary.lowercase = true;
  } else if (type == "StripAccents" && !sentence) {
    vocabulary.strip_accents = true;
  } else {
    refuse("normalizer", type);
  }
}

/// An expression that matches `text` alone.
std::string quoted(std::string_view text) {
  constexpr std::string_view kMeaningful = R"(\^$.[]|()?*+{}#- )";
  std::string out;
  for (const char letter : text) {
    if (kMeaningful.find(letter) != std::string_view::npos) out += '\\';
    out += letter;
  }
  return out;
}

void metaspace(const JsonValue& step, Vocabulary& vocabulary) {
  const auto mark = step.find("replacement");
  if (mark && mark->string("replacement") != kSpaceMark) mark->fail("the replacement must be U+2581");
  std::string scheme = json_flag(step, "add_prefix_space", true) ? "always" : "never";
  if (const auto value = step.find("prepend_scheme")) scheme = value->string("prepend_scheme");
  vocabulary.add_space_prefix = scheme != "never";
  vocabulary.space_prefix_once = scheme == "first";
  vocabulary.space_prefix_unless_there = true;
  vocabulary.split_words = json_flag(step, "split", true);
}

/// The expression of a step that cuts a text for byte-level BPE; ByteLevel itself may have none.
std::optional<std::string> cutting_pattern(const std::string& type, const JsonValue& step, Vocabulary& vocabulary) {
  if (type == "ByteLevel") {
    if (json_flag(step, "add_prefix_space", true)) vocabulary.add_space_prefix = true;
    if (!json_flag(step, "use_regex", true)) return std::nullopt;
    return std::string(kGpt2Pattern);
  }
  if (type == "Digits") return json_flag(step, "individual_digits", false) ? R"re(\p{N})re" : R"re(\p{N}+)re";
  const std::string behavior = step.find("behavior") ? step.find("behavior")->string("behavior") : "Isolated";
  if (type == "Punctuation") {
    if (behavior == "Isolated") return R"re([\p{P}!-/:-@\[-`{-~])re";
    if (behavior == "Contiguous") return R"re([\p{P}\$\+<=>\^~\|`]+)re";
    refuse("pre-tokenizer", type, fmt::format(" with behavior '{}'", behavior));
  }
  if (type == "Split") {
    // Removing what does not match keeps the matches: the same where the expression matches everything.
    const bool inverted = json_flag(step, "invert", false);
    const bool keeps = (behavior == "Isolated" && !inverted) || (behavior == "Removed" && inverted);
    if (!keeps) refuse("pre-tokenizer", type, fmt::format(" with behavior '{}'", behavior));
    const Pattern pattern = read_pattern(step);
    return pattern.is_regex ? pattern.text : quoted(pattern.text);
  }
  refuse("pre-tokenizer", type);
}

/// The tokens that a template puts before and after the text.
void read_template(const JsonValue& step, Vocabulary& vocabulary) {
  const auto single = step.find("single");
  if (!single) return;
  bool after_text = false;
  for (const JsonMember piece : single->elements("single")) {
    if (piece.value.find("Sequence")) {
      after_text = true;
      continue;
    }
    const auto special = piece.value.find("SpecialToken");
    const auto text = special ? special->find("id") : std::nullopt;
    if (!text) piece.value.fail("a piece of a template must be a Sequence or a SpecialToken");
    const auto id = find_token(vocabulary, text->string("id"));
    if (!id) text->fail("the template names a token that is not in the vocabulary");
    if (after_text) {
      vocabulary.add_eos = true;
      vocabulary.eos = id;
    } else {
      vocabulary.add_bos = true;
      vocabulary.bos = id;
    }
  }
}

/// ["</s>", 2]
std::int32_t token_of_pair(const JsonValue& step, std::string_view key) {
  const auto pair = step.find(key);
  if (!pair) step.fail(fmt::format("there is no '{}'", key));
  std::optional<std::int32_t> id;
  for (const JsonMember part : pair->elements(key)) {
    if (part.value.kind() == files::JsonKind::number) {
      id = static_cast<std::int32_t>(part.value.integer(key, 0, static_cast<std::int64_t>(kMaxTokens)));
    }
  }
  if (!id) pair->fail("there is no id");
  return *id;
}

}  // namespace

void read_json_steps(const JsonValue& root, Vocabulary& vocabulary) {
  bool marks_spaces = false;
  if (const auto normalizer = root.find("normalizer")) {
    for_each_step(*normalizer, "normalizer", "normalizers", [&](const std::string& type, const JsonValue& step) {
      normalizer_step(type, step, vocabulary, marks_spaces);
    });
  }
  bool bytes = false;
  const auto decoder = root.find("decoder");
  if (decoder) {
    for_each_step(*decoder, "decoder", "decoders",
                  [&](const std::string& type, const JsonValue&) { bytes = bytes || type == "ByteLevel"; });
  }
  const auto part = root.find("pre_tokenizer");
  const auto each = [&](const Step& take) {
    if (part) for_each_step(*part, "pre_tokenizer", "pretokenizers", take);
  };
  each([&](const std::string& type, const JsonValue&) { bytes = bytes || type == "ByteLevel"; });
  if (vocabulary.kind == TokenizerKind::sentence_bpe && bytes) vocabulary.kind = TokenizerKind::byte_bpe;
  each([&](const std::string& type, const JsonValue& step) {
    switch (vocabulary.kind) {
      case TokenizerKind::byte_bpe:
        if (auto pattern = cutting_pattern(type, step, vocabulary)) vocabulary.patterns.push_back(std::move(*pattern));
        break;
      case TokenizerKind::word_piece:
        if (type != "BertPreTokenizer") refuse("pre-tokenizer", type, " for WordPiece");
        break;
      case TokenizerKind::unigram:
        if (type == "WhitespaceSplit") {
          vocabulary.remove_extra_spaces = true;
          break;
        }
        [[fallthrough]];
      case TokenizerKind::sentence_bpe:
        if (type == "Metaspace") {
          metaspace(step, vocabulary);
          marks_spaces = true;
        } else if (!(type == "Split" && read_pattern(step).text == " ")) {  // Gemma's; spaces are gone by then
          refuse("pre-tokenizer", type);
        }
        break;
    }
  });
  if (vocabulary.kind == TokenizerKind::byte_bpe) {
    vocabulary.pre_tokenizer = name_of_patterns(vocabulary.patterns, vocabulary.ignore_merges);
    if (!vocabulary.pre_tokenizer.empty()) vocabulary.patterns.clear();
  }
  const bool sentence = vocabulary.kind == TokenizerKind::sentence_bpe || vocabulary.kind == TokenizerKind::unigram;
  if (sentence && !marks_spaces) {
    throw UnsupportedError(
        "a tokenizer.json of BPE or Unigram without ByteLevel, Metaspace or a Replace of spaces is not supported");
  }
}

bool read_json_post_processor(const JsonValue& root, Vocabulary& vocabulary) {
  const auto part = root.find("post_processor");
  if (!part) return false;
  bool decides = false;
  for_each_step(*part, "post_processor", "processors", [&](const std::string& type, const JsonValue& step) {
    if (type == "TemplateProcessing") {
      read_template(step, vocabulary);
      decides = true;
    } else if (type == "RobertaProcessing" || type == "BertProcessing") {
      vocabulary.bos = token_of_pair(step, "cls");
      vocabulary.eos = vocabulary.separator = token_of_pair(step, "sep");
      vocabulary.add_bos = vocabulary.add_eos = decides = true;
    } else if (type != "ByteLevel") {
      refuse("post-processor", type);
    }
  });
  return decides;
}

}  // namespace imago::models
