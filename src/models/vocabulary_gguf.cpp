// Vocabularies as the metadata of GGUF files state them.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/names.h"
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

/// How `tokenizer.ggml.model` spells a kind. The first name of a kind is written.
constexpr std::pair<TokenizerKind, std::string_view> kModelNames[] = {{TokenizerKind::byte_bpe, "gpt2"},
                                                                      {TokenizerKind::sentence_bpe, "llama"},
                                                                      {TokenizerKind::sentence_bpe, "gemma4"},
                                                                      {TokenizerKind::unigram, "t5"},
                                                                      {TokenizerKind::word_piece, "bert"}};

/// The flags of a token, from the lowest bit of its entry on.
constexpr std::array kTokenFlags = {&Token::lstrip, &Token::rstrip, &Token::single_word, &Token::normalized};

TokenizerKind read_kind(const GgufFile& file) {
  if (file.find(key("model")) == nullptr || file.require_string(key("model")) == kNoTokenizer) {
    throw UnsupportedError(
        fmt::format("{} has no tokenizer: convert the model again, from a folder with a tokenizer.json", file.path()));
  }
  const std::string_view model = file.require_string(key("model"));
  for (const auto& [kind, name] : kModelNames) {
    if (name == model) return kind;
  }
  throw UnsupportedError(fmt::format("{}: 'tokenizer.ggml.model' is '{}'; imago knows gpt2, llama, gemma4, t5 and bert",
                                     file.path(), model));
}

/// An array as long as the vocabulary. Throws FormatError for another length or type of elements.
const GgufArray* find_beside_tokens(const GgufFile& file, std::string_view full, std::size_t tokens,
                                    std::initializer_list<GgufType> types) {
  const GgufValue* value = file.find(full);
  if (value == nullptr) return nullptr;
  const GgufArray* array = value->array();
  if (array == nullptr || std::ranges::find(types, array->type()) == types.end()) {
    throw FormatError(file.path(), 0, fmt::format("'{}' must be an array of {}", full, imago::name(*types.begin())));
  }
  if (array->size() != tokens) {
    throw FormatError(file.path(), 0,
                      fmt::format("'{}' has {} elements, but there are {} tokens", full, array->size(), tokens));
  }
  return array;
}

void read_tokens(const GgufFile& file, Vocabulary& vocabulary) {
  const GgufArray& texts = file.require_array(key("tokens"), GgufType::string);
  std::vector<Token>& tokens = vocabulary.tokens;
  tokens.resize(texts.size());  // the strings lie in the file, so their count is bounded by its size
  for (std::size_t id = 0; id < texts.size(); ++id) tokens[id].text = texts.strings()[id];
  if (const GgufArray* scores = find_beside_tokens(file, key("scores"), texts.size(), {GgufType::f32, GgufType::i32})) {
    const auto set = [&](const auto& values) {
      for (std::size_t id = 0; id < values.size(); ++id) tokens[id].score = static_cast<float>(values[id]);
    };
    scores->type() == GgufType::f32 ? set(scores->values<float>()) : set(scores->values<std::int32_t>());
  }
  if (const GgufArray* types = find_beside_tokens(file, key("token_type"), texts.size(), {GgufType::i32})) {
    const std::vector<std::int32_t> values = types->values<std::int32_t>();
    for (std::size_t id = 0; id < values.size(); ++id) {
      if (tokens[id].text.empty()) continue;
      if (values[id] < 0 || values[id] > 6) {
        throw FormatError(
            file.path(), 0,
            fmt::format("'tokenizer.ggml.token_type' of token {} is {}: it must be from 0 to 6", id, values[id]));
      }
      tokens[id].type = values[id] == 0 ? TokenType::normal : static_cast<TokenType>(values[id]);
    }
  }
  if (const GgufArray* flags = find_beside_tokens(file, kTokenFlagsKey, texts.size(), {GgufType::u8})) {
    const std::vector<std::uint8_t> values = flags->values<std::uint8_t>();
    for (std::size_t id = 0; id < values.size(); ++id) {
      for (std::size_t bit = 0; bit < kTokenFlags.size(); ++bit) {
        tokens[id].*kTokenFlags[bit] = ((values[id] >> bit) & 1) != 0;
      }
    }
  }
  // Files name unused places by nothing at all.
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].text.empty()) continue;
    tokens[id].text = fmt::format("[EMPTY_{}]", id);
    tokens[id].type = TokenType::unused;
  }
}

void read_merges(const GgufFile& file, Vocabulary& vocabulary) {
  const GgufArray& merges = file.require_array(key("merges"), GgufType::string);
  vocabulary.merges.reserve(merges.size());
  for (std::size_t i = 0; i < merges.size(); ++i) {
    auto merge = split_merge(merges.strings()[i]);
    if (!merge) {
      throw FormatError(
          file.path(), 0,
          fmt::format("merge {} of 'tokenizer.ggml.merges' is not a pair of tokens with a space between", i));
    }
    vocabulary.merges.push_back(std::move(*merge));
  }
}

std::vector<std::string> find_strings(const GgufFile& file, std::string_view name) {
  std::vector<std::string> out;
  if (file.find(name) == nullptr) return out;
  for (const std::string_view text : file.require_array(name, GgufType::string).strings()) out.emplace_back(text);
  return out;
}

void set_pre_tokenizer(const GgufFile& file, Vocabulary& vocabulary) {
  vocabulary.patterns = find_strings(file, kPatternsKey);
  const std::string pre = file.find(key("pre")) == nullptr ? "default" : std::string(file.require_string(key("pre")));
  const PreTokenizer* row = find_pre_tokenizer(pre);
  if (row == nullptr) {
    std::string known;
    for (const std::string_view name : pre_tokenizer_names()) known.append(known.empty() ? "" : ", ").append(name);
    throw UnsupportedError(fmt::format("{}: the pre-tokenizer '{}' of 'tokenizer.ggml.pre' is not known; these are: {}",
                                       file.path(), pre, known));
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
  Vocabulary usual;  // what a file means that does not say
  switch (vocabulary.kind) {
    case TokenizerKind::sentence_bpe: usual.bos = 1, usual.eos = 2, usual.unknown = 0; break;
    case TokenizerKind::unigram: usual.eos = 1, usual.unknown = 2, usual.padding = 0; break;
    case TokenizerKind::word_piece:
      usual.bos = 101, usual.unknown = 100, usual.separator = 102, usual.padding = 0;
      break;
    case TokenizerKind::byte_bpe: break;
  }
  for (const SpecialToken& special : kSpecialTokens) {
    vocabulary.*special.id = find_id(file, special.gguf_key, count, usual.*special.id);
  }
  if (const Id start = find_id(file, "cls_token_id", count); start && file.find(key("bos_token_id")) == nullptr) {
    vocabulary.bos = start;
  }
  // Encoders end a text with their separator; that of ModernBERT is byte-level.
  const bool separates =
      vocabulary.kind == TokenizerKind::word_piece || find_flag(file, "add_sep_token").value_or(false);
  if (separates && !vocabulary.eos) vocabulary.eos = vocabulary.separator;
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

void add_tokens(const Vocabulary& vocabulary, std::vector<GgufMetadata>& out) {
  std::vector<std::string> texts;
  std::vector<std::int32_t> types;
  std::vector<std::uint8_t> flags;
  std::vector<float> scores;
  for (const Token& token : vocabulary.tokens) {
    texts.push_back(spelled(vocabulary, token, kSpaceMark));
    types.push_back(static_cast<std::int32_t>(token.type));
    flags.push_back(0);
    for (std::size_t bit = 0; bit < kTokenFlags.size(); ++bit) flags.back() |= (token.*kTokenFlags[bit] ? 1 : 0) << bit;
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
  vocabulary.kind = read_kind(file);
  read_tokens(file, vocabulary);
  read_ids(file, vocabulary);
  read_habits(file, vocabulary);
  if (vocabulary.kind == TokenizerKind::byte_bpe) read_merges(file, vocabulary);
  vocabulary.byte_fallback =
      vocabulary.kind != TokenizerKind::byte_bpe && std::ranges::count(byte_tokens(vocabulary), -1) == 0;
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
  out.push_back({key("model"), std::string(name_in(kModelNames, vocabulary.kind))});
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
  for (const SpecialToken& special : kSpecialTokens) add_id(special.gguf_key, vocabulary.*special.id);
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
