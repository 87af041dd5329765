// Vocabularies as the metadata of GGUF files state them.

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "imago/error.h"
#include "models/traits_reading.h"
#include "models/vocabulary_parts.h"

namespace imago::models {

namespace {

constexpr std::string_view kPrefix = "tokenizer.ggml.";
// What GGUF has no keys for; other programs pass over these.
constexpr std::string_view kTokenFlagsKey = "imago.tokenizer.token_flags";
constexpr std::string_view kPatternsKey = "imago.tokenizer.patterns";
constexpr std::string_view kNormalFormsKey = "imago.tokenizer.normal_forms";

std::string key(std::string_view name) { return fmt::format("{}{}", kPrefix, name); }

std::optional<bool> find_flag(const GgufFile& file, std::string_view name) {
  const GgufValue* value = file.find(key(name));
  if (value == nullptr) return std::nullopt;
  if (const std::optional<bool> flag = value->boolean()) return flag;
  throw FormatError(file.path(), 0, fmt::format("'{}{}' must be a bool", kPrefix, name));
}

/// An id that the file states, else `fallback` where there is such a token.
std::optional<std::int32_t> find_id(const GgufFile& file, std::string_view name, std::size_t tokens,
                                    std::optional<std::int32_t> fallback = std::nullopt) {
  const std::string full = key(name);
  if (file.find(full) != nullptr) {
    return static_cast<std::int32_t>(file.require_integer(full, 0, static_cast<std::int64_t>(tokens) - 1));
  }
  return fallback && static_cast<std::size_t>(*fallback) < tokens ? fallback : std::nullopt;
}

void set_kind(const GgufFile& file, Vocabulary& vocabulary) {
  if (file.find(key("model")) == nullptr || file.require_string(key("model")) == kNoTokenizer) {
    throw UnsupportedError(
        fmt::format("{} has no tokenizer: convert the model again, from a folder with a tokenizer.json", file.path()));
  }
  const std::string_view model = file.require_string(key("model"));
  if (model == "gpt2") {
    vocabulary.kind = TokenizerKind::byte_bpe;
  } else if (model == "llama" || model == "gemma4") {
    vocabulary.kind = TokenizerKind::sentence_bpe;
  } else if (model == "t5") {
    vocabulary.kind = TokenizerKind::unigram;
  } else if (model == "bert") {
    vocabulary.kind = TokenizerKind::word_piece;
  } else if (model == kNoTokenizer) {
    throw UnsupportedError(fmt::format(
        "{} has no tokenizer: 'tokenizer.ggml.model' is '{}'. It can be run with token ids only; for text, convert the "
        "model again from a folder with its tokenizer.json",
        file.path(), model));
  } else {
    throw UnsupportedError(fmt::format(
        "{}: 'tokenizer.ggml.model' is '{}'; imago knows gpt2, llama, gemma4, t5 and bert", file.path(), model));
  }
}

/// An array as long as the vocabulary. Throws FormatError for another length or type of elements.
const GgufArray* find_beside_tokens(const GgufFile& file, std::string_view name, std::size_t tokens,
                                    std::initializer_list<GgufType> types) {
  const GgufValue* value = file.find(name.starts_with("imago.") ? std::string(name) : key(name));
  if (value == nullptr) return nullptr;
  const GgufArray* array = value->array();
  if (array == nullptr || std::ranges::find(types, array->type()) == types.end()) {
    throw FormatError(file.path(), 0,
                      fmt::format("'{}' must be an array of {}", name.starts_with("imago.") ? name : key(name),
                                  imago::name(*types.begin())));
  }
  if (array->size() != tokens) {
    throw FormatError(file.path(), 0,
                      fmt::format("'{}' has {} elements, but there are {} tokens",
                                  name.starts_with("imago.") ? name : key(name), array->size(), tokens));
  }
  return array;
}

void read_tokens(const GgufFile& file, Vocabulary& vocabulary) {
  const GgufArray& texts = file.require_array(key("tokens"), GgufType::string);
  vocabulary.tokens.resize(texts.size());  // the strings lie in the file, so their count is bounded by its size
  for (std::size_t id = 0; id < texts.size(); ++id) {
    // Files name unused places by nothing at all.
    const std::string_view text = texts.strings()[id];
    vocabulary.tokens[id].text = text.empty() ? fmt::format("[EMPTY_{}]", id) : std::string(text);
    if (text.empty()) vocabulary.tokens[id].type = TokenType::unused;
  }
  if (const GgufArray* scores = find_beside_tokens(file, "scores", texts.size(), {GgufType::f32, GgufType::i32})) {
    if (scores->type() == GgufType::f32) {
      const std::vector<float> values = scores->values<float>();
      for (std::size_t id = 0; id < values.size(); ++id) vocabulary.tokens[id].score = values[id];
    } else {
      const std::vector<std::int32_t> values = scores->values<std::int32_t>();
      for (std::size_t id = 0; id < values.size(); ++id) vocabulary.tokens[id].score = static_cast<float>(values[id]);
    }
  }
  if (const GgufArray* types = find_beside_tokens(file, "token_type", texts.size(), {GgufType::i32})) {
    const std::vector<std::int32_t> values = types->values<std::int32_t>();
    for (std::size_t id = 0; id < values.size(); ++id) {
      if (texts.strings()[id].empty()) continue;
      if (values[id] < 0 || values[id] > 6) {
        throw FormatError(file.path(), 0,
                          fmt::format("'tokenizer.ggml.token_type' of token {} is {}: it must be from "
                                      "0 to 6",
                                      id, values[id]));
      }
      vocabulary.tokens[id].type = values[id] == 0 ? TokenType::normal : static_cast<TokenType>(values[id]);
    }
  }
  if (const GgufArray* flags = find_beside_tokens(file, kTokenFlagsKey, texts.size(), {GgufType::u8})) {
    const std::vector<std::uint8_t> values = flags->values<std::uint8_t>();
    for (std::size_t id = 0; id < values.size(); ++id) {
      Token& token = vocabulary.tokens[id];
      token.lstrip = (values[id] & 1) != 0;
      token.rstrip = (values[id] & 2) != 0;
      token.single_word = (values[id] & 4) != 0;
      token.normalized = (values[id] & 8) != 0;
    }
  }
}

void read_merges(const GgufFile& file, Vocabulary& vocabulary) {
  const GgufArray& merges = file.require_array(key("merges"), GgufType::string);
  vocabulary.merges.reserve(merges.size());
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const std::string_view text = merges.strings()[i];
    // A half may itself start with a space, as in Gemma.
    const std::size_t space = text.find(' ', 1);
    if (text.empty() || space == std::string_view::npos || space + 1 == text.size()) {
      throw FormatError(
          file.path(), 0,
          fmt::format("merge {} of 'tokenizer.ggml.merges' is not a pair of tokens with a space between", i));
    }
    vocabulary.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
}

std::vector<std::string> find_strings(const GgufFile& file, std::string_view name) {
  std::vector<std::string> out;
  if (file.find(name) == nullptr) return out;
  for (const std::string_view text : file.require_array(name, GgufType::string).strings()) out.emplace_back(text);
  return out;
}

std::string all_names() {
  std::string names;
  for (const std::string_view name : pre_tokenizer_names()) names.append(names.empty() ? "" : ", ").append(name);
  return names;
}

void set_pre_tokenizer(const GgufFile& file, Vocabulary& vocabulary) {
  vocabulary.patterns = find_strings(file, kPatternsKey);
  const std::string pre = file.find(key("pre")) == nullptr ? "default" : std::string(file.require_string(key("pre")));
  const PreTokenizer* row = find_pre_tokenizer(pre);
  if (row == nullptr) {
    throw UnsupportedError(fmt::format("{}: the pre-tokenizer '{}' of 'tokenizer.ggml.pre' is not known; these are: {}",
                                       file.path(), pre, all_names()));
  }
  if (vocabulary.patterns.empty()) {
    vocabulary.pre_tokenizer = pre;
    vocabulary.ignore_merges = row->ignore_merges;
    vocabulary.add_bos = row->add_bos && vocabulary.bos;
  }
}

std::string bytes_of(const GgufFile& file, std::string_view name) {
  const GgufValue* value = file.find(key(name));
  if (value == nullptr) return {};
  const GgufArray* array = value->array();
  if (array == nullptr || (array->type() != GgufType::u8 && array->type() != GgufType::i8)) {
    throw FormatError(file.path(), 0, fmt::format("'{}{}' must be an array of u8", kPrefix, name));
  }
  return {reinterpret_cast<const char*>(array->bytes().data()), array->bytes().size()};
}

void read_ids(const GgufFile& file, Vocabulary& vocabulary) {
  using Id = std::optional<std::int32_t>;
  const std::size_t count = vocabulary.tokens.size();
  Id bos, eos, unknown, padding, separator;  // what a file means that does not say
  switch (vocabulary.kind) {
    case TokenizerKind::sentence_bpe: bos = 1, eos = 2, unknown = 0; break;
    case TokenizerKind::unigram: eos = 1, unknown = 2, padding = 0; break;
    case TokenizerKind::word_piece: bos = 101, unknown = 100, separator = 102, padding = 0; break;
    case TokenizerKind::byte_bpe: break;
  }
  vocabulary.bos = find_id(file, "bos_token_id", count, bos);
  if (const Id start = find_id(file, "cls_token_id", count); start && file.find(key("bos_token_id")) == nullptr) {
    vocabulary.bos = start;
  }
  vocabulary.eos = find_id(file, "eos_token_id", count, eos);
  vocabulary.unknown = find_id(file, "unknown_token_id", count, unknown);
  vocabulary.padding = find_id(file, "padding_token_id", count, padding);
  vocabulary.separator = find_id(file, "seperator_token_id", count, separator);  // so spelled in GGUF
  if (vocabulary.kind == TokenizerKind::word_piece && !vocabulary.eos) vocabulary.eos = vocabulary.separator;
  for (const std::string_view name : {"eot_token_id", "eom_token_id"}) {
    if (const Id id = find_id(file, name, count)) vocabulary.ends.push_back(*id);
  }
}

void read_habits(const GgufFile& file, Vocabulary& vocabulary) {
  switch (vocabulary.kind) {
    case TokenizerKind::byte_bpe: set_pre_tokenizer(file, vocabulary); break;
    case TokenizerKind::sentence_bpe:
      vocabulary.add_space_prefix = true;
      vocabulary.add_bos = vocabulary.bos.has_value();
      break;
    case TokenizerKind::unigram:
      vocabulary.add_space_prefix = true;
      vocabulary.add_eos = vocabulary.eos.has_value();
      break;
    case TokenizerKind::word_piece:
      vocabulary.word_prefix = kSpaceMark;
      vocabulary.add_bos = vocabulary.bos.has_value();
      vocabulary.add_eos = vocabulary.eos.has_value();
      vocabulary.lowercase = find_flag(file, "normalizer.lowercase").value_or(true);
      vocabulary.strip_accents = find_flag(file, "normalizer.strip_accents").value_or(vocabulary.lowercase);
      vocabulary.split_chinese = true;
      break;
  }
  if (file.require_string(key("model")) == "gemma4") {
    read_merges(file, vocabulary);
    vocabulary.add_space_prefix = false;
  }
  vocabulary.add_space_prefix = find_flag(file, "add_space_prefix").value_or(vocabulary.add_space_prefix);
  vocabulary.remove_extra_spaces = find_flag(file, "remove_extra_whitespaces").value_or(false);
  vocabulary.add_bos = find_flag(file, "add_bos_token").value_or(vocabulary.add_bos);
  vocabulary.add_eos = find_flag(file, "add_eos_token").value_or(vocabulary.add_eos);
}

/// "##ing" and "word" of tokenizer.json are "ing" and "▁word" in GGUF.
std::string gguf_word_piece(const Token& token, const std::string& prefix) {
  const bool bracketed = token.text.starts_with('[') && token.text.ends_with(']');
  if (token.type != TokenType::normal || bracketed || prefix == kSpaceMark) return token.text;
  return token.text.starts_with(prefix) ? token.text.substr(prefix.size()) : std::string(kSpaceMark) + token.text;
}

std::string_view model_name(const Vocabulary& vocabulary) {
  switch (vocabulary.kind) {
    case TokenizerKind::byte_bpe: return "gpt2";
    case TokenizerKind::sentence_bpe: return "llama";
    case TokenizerKind::unigram: return "t5";
    case TokenizerKind::word_piece: return "bert";
  }
  return {};
}

void add_tokens(const Vocabulary& vocabulary, std::vector<GgufMetadata>& out) {
  std::vector<std::string> texts;
  std::vector<std::int32_t> types;
  std::vector<std::uint8_t> flags;
  std::vector<float> scores;
  for (const Token& token : vocabulary.tokens) {
    texts.push_back(vocabulary.kind == TokenizerKind::word_piece ? gguf_word_piece(token, vocabulary.word_prefix)
                                                                 : token.text);
    types.push_back(static_cast<std::int32_t>(token.type));
    flags.push_back(static_cast<std::uint8_t>((token.lstrip ? 1 : 0) | (token.rstrip ? 2 : 0) |
                                              (token.single_word ? 4 : 0) | (token.normalized ? 8 : 0)));
    scores.push_back(token.score);
  }
  out.push_back({key("tokens"), GgufArray::of_strings(texts)});
  if (vocabulary.kind == TokenizerKind::sentence_bpe && !vocabulary.merges.empty())
    scores = scores_of_merges(vocabulary);
  if (vocabulary.kind == TokenizerKind::sentence_bpe || vocabulary.kind == TokenizerKind::unigram) {
    out.push_back({key("scores"), GgufArray::of<float>(scores)});
  }
  out.push_back({key("token_type"), GgufArray::of<std::int32_t>(types)});
  if (std::ranges::any_of(flags, [](std::uint8_t bits) { return bits != 0; })) {
    out.push_back({std::string(kTokenFlagsKey), GgufArray::of<std::uint8_t>(flags)});
  }
}

}  // namespace

Vocabulary read_vocabulary(const GgufFile& file) {
  Vocabulary vocabulary;
  set_kind(file, vocabulary);
  read_tokens(file, vocabulary);
  read_ids(file, vocabulary);
  read_habits(file, vocabulary);
  if (vocabulary.kind == TokenizerKind::byte_bpe) read_merges(file, vocabulary);
  vocabulary.byte_fallback = vocabulary.kind != TokenizerKind::byte_bpe && has_all_bytes(vocabulary);
  vocabulary.normalizer_map = bytes_of(file, "precompiled_charsmap");
  vocabulary.normal_forms = find_strings(file, kNormalFormsKey);
  if (file.find("tokenizer.chat_template") != nullptr) {
    vocabulary.chat_template = file.require_string("tokenizer.chat_template");
  }
  check_vocabulary(vocabulary, {.file = file.path(),
                                .tokens = "'tokenizer.ggml.tokens'",
                                .merges = "'tokenizer.ggml.merges'",
                                .map = "'tokenizer.ggml.precompiled_charsmap'"});
  complete_ends(vocabulary);
  return vocabulary;
}

std::vector<GgufMetadata> gguf_vocabulary(const Vocabulary& vocabulary) {
  std::vector<GgufMetadata> out;
  out.push_back({key("model"), std::string(model_name(vocabulary))});
  const bool named = vocabulary.kind == TokenizerKind::byte_bpe && vocabulary.patterns.empty();
  out.push_back({key("pre"), named ? vocabulary.pre_tokenizer : "default"});
  if (!vocabulary.patterns.empty()) {
    out.push_back({std::string(kPatternsKey), GgufArray::of_strings(vocabulary.patterns)});
  }
  add_tokens(vocabulary, out);
  if (vocabulary.kind == TokenizerKind::byte_bpe) {
    std::vector<std::string> merges;
    for (const auto& [left, right] : vocabulary.merges) merges.push_back(left + " " + right);
    out.push_back({key("merges"), GgufArray::of_strings(merges)});
  }
  const auto add_id = [&](std::string_view name, std::optional<std::int32_t> id) {
    if (id) out.push_back({key(name), static_cast<std::uint32_t>(*id)});
  };
  add_id("bos_token_id", vocabulary.bos);
  add_id("eos_token_id", vocabulary.eos);
  add_id("unknown_token_id", vocabulary.unknown);
  add_id("padding_token_id", vocabulary.padding);
  add_id("seperator_token_id", vocabulary.separator);
  // GGUF has room for two more ends.
  std::vector<std::int32_t> more;
  std::ranges::copy_if(vocabulary.ends, std::back_inserter(more),
                       [&](std::int32_t id) { return id != vocabulary.eos; });
  if (!more.empty()) add_id("eot_token_id", more[0]);
  if (more.size() > 1) add_id("eom_token_id", more[1]);
  out.push_back({key("add_bos_token"), vocabulary.add_bos});
  out.push_back({key("add_eos_token"), vocabulary.add_eos});
  out.push_back({key("add_space_prefix"), vocabulary.add_space_prefix});
  if (vocabulary.kind == TokenizerKind::unigram) {
    out.push_back({key("remove_extra_whitespaces"), vocabulary.remove_extra_spaces});
  }
  if (!vocabulary.normalizer_map.empty()) {
    const std::vector<std::uint8_t> bytes(vocabulary.normalizer_map.begin(), vocabulary.normalizer_map.end());
    out.push_back({key("precompiled_charsmap"), GgufArray::of<std::uint8_t>(bytes)});
  }
  if (vocabulary.kind == TokenizerKind::word_piece) {
    out.push_back({key("normalizer.lowercase"), vocabulary.lowercase});
    out.push_back({key("normalizer.strip_accents"), vocabulary.strip_accents});
  }
  if (!vocabulary.normal_forms.empty()) {
    out.push_back({std::string(kNormalFormsKey), GgufArray::of_strings(vocabulary.normal_forms)});
  }
  if (!vocabulary.chat_template.empty()) out.push_back({"tokenizer.chat_template", vocabulary.chat_template});
  return out;
}

}  // namespace imago::models
