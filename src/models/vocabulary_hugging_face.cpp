// Vocabularies as tokenizer.json, tokenizer_config.json and generation_config.json state them: `model` and
// `added_tokens` here, the steps around them in tokenizer_json_steps.cpp.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "imago/error.h"
#include "models/vocabulary_parts.h"

namespace imago::models {

namespace {

using files::JsonFile;
using files::JsonKind;
using files::JsonMember;
using files::JsonValue;

constexpr std::int64_t kMaxId = static_cast<std::int64_t>(kMaxTokens) - 1;

/// Puts tokens at their places. Ids may leave gaps, but not so many that a small file asks for much memory.
class Places {
 public:
  Places(Vocabulary& vocabulary, std::size_t entries) : vocabulary_(vocabulary), limit_(entries + 65536) {}

  Token& take(std::int64_t id, const JsonValue& where) {
    const auto place = static_cast<std::size_t>(id);
    if (place >= limit_) {
      where.fail(fmt::format("the id {} is far beyond the {} tokens of the file", id, limit_ - 65536));
    }
    if (place >= vocabulary_.tokens.size()) {
      vocabulary_.tokens.resize(place + 1);
      taken_.resize(place + 1, false);
    }
    if (taken_[place]) where.fail(fmt::format("two tokens have the id {}", id));
    taken_[place] = true;
    return vocabulary_.tokens[place];
  }
  bool is_taken(std::int64_t id) const noexcept {
    return static_cast<std::size_t>(id) < taken_.size() && taken_[static_cast<std::size_t>(id)];
  }
  /// Gaps become tokens that no text has.
  void fill() {
    for (std::size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
      if (!taken_[id]) vocabulary_.tokens[id] = {.text = fmt::format("[PAD{}]", id), .type = TokenType::unused};
    }
  }

 private:
  Vocabulary& vocabulary_;
  std::size_t limit_;
  std::vector<bool> taken_;
};

JsonValue require(const JsonValue& object, std::string_view key) {
  if (const auto value = object.find(key)) return *value;
  object.fail(fmt::format("there is no '{}'", key));
}

void read_vocab_object(const JsonValue& vocab, Places& places) {
  for (const JsonMember entry : vocab.members("vocab")) {
    places.take(entry.value.integer("an id of vocab", 0, kMaxId), entry.value).text = entry.key;
  }
}

void read_unigram(const JsonValue& model, Vocabulary& vocabulary, Places& places) {
  std::int64_t id = 0;
  for (const JsonMember entry : require(model, "vocab").elements("vocab")) {
    std::size_t part = 0;
    Token& token = places.take(id++, entry.value);
    for (const JsonMember value : entry.value.elements("an entry of vocab")) {
      if (part == 0) token.text = value.value.string("a token");
      if (part == 1) token.score = value.value.single("the score of a token");
      ++part;
    }
    if (part != 2) entry.value.fail("an entry of vocab must be a token and its score");
  }
  if (const auto unknown = model.find("unk_id")) {
    vocabulary.unknown = static_cast<std::int32_t>(unknown->integer("unk_id", 0, kMaxId));
  }
}

void read_merges(const JsonValue& model, Vocabulary& vocabulary) {
  const JsonValue merges = require(model, "merges");
  for (const JsonMember entry : merges.elements("merges")) {
    if (vocabulary.merges.size() == kMaxMerges) {
      merges.fail(fmt::format("there are more merges than the {} that are allowed", kMaxMerges));
    }
    if (entry.value.kind() == JsonKind::array) {  // ["a", "b"]; older files: "a b"
      std::vector<std::string> halves;
      for (const JsonMember half : entry.value.elements("a merge")) {
        halves.push_back(half.value.string("half of a merge"));
        if (halves.size() > 2) break;
      }
      if (halves.size() != 2) entry.value.fail("a merge must have two halves");
      vocabulary.merges.emplace_back(std::move(halves[0]), std::move(halves[1]));
    } else if (auto merge = split_merge(entry.value.string("a merge"))) {
      vocabulary.merges.push_back(std::move(*merge));
    } else {
      entry.value.fail(fmt::format("merge {} is not a pair of tokens with a space between", vocabulary.merges.size()));
    }
  }
}

void refuse_affix(const JsonValue& model, std::string_view key) {
  const auto affix = model.find(key);
  if (affix && !affix->string(key).empty()) {
    throw UnsupportedError(fmt::format("'{}' of BPE models is not supported; found {}", key, affix->source()));
  }
}

std::string model_type(const JsonValue& model) {
  if (const auto type = model.find("type")) return type->string("type");
  if (model.find("merges")) return "BPE";  // old files do not say
  return require(model, "vocab").kind() == JsonKind::array ? "Unigram" : "WordPiece";
}

void read_added(const JsonValue& added, Vocabulary& vocabulary, Places& places) {
  for (const JsonMember entry : added.elements("added_tokens")) {
    const JsonValue& value = entry.value;
    const std::int64_t id = require(value, "id").integer("id", 0, kMaxId);
    std::string text = require(value, "content").string("content");
    if (places.is_taken(id)) {
      if (vocabulary.tokens[static_cast<std::size_t>(id)].text != text) {
        value.fail(fmt::format("the added token has the id {}, which is that of another one", id));
      }
    } else {
      places.take(id, value).text = std::move(text);
    }
    Token& token = vocabulary.tokens[static_cast<std::size_t>(id)];
    token.type = json_flag(value, "special", false) ? TokenType::control : TokenType::user_defined;
    token.lstrip = json_flag(value, "lstrip", false);
    token.rstrip = json_flag(value, "rstrip", false);
    token.single_word = json_flag(value, "single_word", false);
    token.normalized = json_flag(value, "normalized", token.type == TokenType::user_defined);
  }
}

}  // namespace

std::string json_type(const JsonValue& object, std::string_view what) {
  if (const auto type = object.find("type")) return type->string("type");
  object.fail(fmt::format("{} has no 'type'", what));
}

bool json_flag(const JsonValue& object, std::string_view key, bool otherwise) {
  const auto value = object.find(key);
  return value ? value->boolean(key) : otherwise;
}

std::optional<std::int32_t> find_token(const Vocabulary& vocabulary, std::string_view text) {
  const auto found = std::ranges::find(vocabulary.tokens, text, &Token::text);
  if (found == vocabulary.tokens.end()) return std::nullopt;
  return static_cast<std::int32_t>(found - vocabulary.tokens.begin());
}

void read_json_model(const JsonValue& root, Vocabulary& vocabulary) {
  const JsonValue model = require(root, "model");
  const JsonValue vocab = require(model, "vocab");
  const std::string type = model_type(model);
  const auto added = root.find("added_tokens");
  const std::size_t entries =
      (vocab.kind() == JsonKind::array ? vocab.elements("vocab") : vocab.members("vocab")).size();
  if (entries == 0) vocab.fail("'model.vocab' is empty: a tokenizer needs tokens");
  Places places(vocabulary, entries + (added ? added->elements("added_tokens").size() : 0));
  if (type == "BPE") {
    read_vocab_object(vocab, places);
    read_merges(model, vocabulary);
    refuse_affix(model, "continuing_subword_prefix");
    refuse_affix(model, "end_of_word_suffix");
    vocabulary.ignore_merges = json_flag(model, "ignore_merges", false);
    // Refined where the other parts are read.
    vocabulary.kind = TokenizerKind::sentence_bpe;
  } else if (type == "Unigram") {
    read_unigram(model, vocabulary, places);
    vocabulary.kind = TokenizerKind::unigram;
  } else if (type == "WordPiece") {
    read_vocab_object(vocab, places);
    vocabulary.kind = TokenizerKind::word_piece;
    const auto prefix = model.find("continuing_subword_prefix");
    vocabulary.word_prefix = prefix ? prefix->string("continuing_subword_prefix") : "##";
  } else {
    throw UnsupportedError(
        fmt::format("a tokenizer model of type '{}' is not supported; BPE, Unigram and WordPiece are", type));
  }
  vocabulary.byte_fallback = json_flag(model, "byte_fallback", false);
  if (added) read_added(*added, vocabulary, places);
  places.fill();
  if (const auto unknown = model.find("unk_token"); unknown && type != "Unigram") {
    const std::string text = unknown->string("unk_token");
    vocabulary.unknown = find_token(vocabulary, text);
    if (!vocabulary.unknown) unknown->fail(fmt::format("the unknown token '{}' is not in the vocabulary", text));
  }
  if (vocabulary.unknown && static_cast<std::size_t>(*vocabulary.unknown) < vocabulary.tokens.size()) {
    vocabulary.tokens[static_cast<std::size_t>(*vocabulary.unknown)].type = TokenType::unknown;
  }
  if (vocabulary.byte_fallback) {
    for (Token& token : vocabulary.tokens) {
      if (token.type == TokenType::normal && named_byte(token.text) >= 0) token.type = TokenType::byte;
    }
  }
}

namespace {

/// What a vocabulary is read from. Copies of JSON files share their text.
struct Sources {
  JsonFile tokenizer;
  std::optional<JsonFile> config = {}, tokenizer_config = {}, generation_config = {};
  std::optional<std::string> chat_template = {};
};

/// A token of tokenizer_config.json: its text, or an object with the text as "content".
std::optional<std::int32_t> configured_token(const JsonValue& config, std::string_view key,
                                             const Vocabulary& vocabulary) {
  const auto value = config.find(key);
  if (!value) return std::nullopt;
  const auto content = value->kind() == JsonKind::object ? value->find("content") : value;
  if (!content) value->fail(fmt::format("'{}' has no 'content'", key));
  // Configurations name tokens that the vocabulary lacks; a model cannot use those.
  return find_token(vocabulary, content->string(key));
}

void read_tokenizer_config(const JsonValue& config, bool decided, Vocabulary& vocabulary) {
  for (const SpecialToken& special : kSpecialTokens) {
    const bool known = (special.id == &Vocabulary::bos && vocabulary.add_bos) ||
                       (special.id == &Vocabulary::eos && vocabulary.add_eos) ||
                       (special.id == &Vocabulary::unknown && vocabulary.unknown);
    if (known) continue;
    if (const auto id = configured_token(config, special.config_key, vocabulary)) vocabulary.*special.id = id;
  }
  if (!decided) {
    vocabulary.add_bos = json_flag(config, "add_bos_token", false) && vocabulary.bos;
    vocabulary.add_eos = json_flag(config, "add_eos_token", false) && vocabulary.eos;
  }
  const auto chat = config.find("chat_template");
  if (!chat) return;
  if (chat->kind() != JsonKind::array) {
    vocabulary.chat_template = chat->string("chat_template");
    return;
  }
  for (const JsonMember entry : chat->elements("chat_template")) {
    const auto name = entry.value.find("name"), text = entry.value.find("template");
    if (name && text && name->string("name") == "default") vocabulary.chat_template = text->string("template");
  }
}

/// Ids under `key`, one or a list.
std::vector<std::int32_t> configured_ids(const JsonValue& config, std::string_view key, std::size_t tokens) {
  std::vector<std::int32_t> ids;
  const auto value = config.find(key);
  if (!value) return ids;
  const auto take = [&](const JsonValue& id) {
    ids.push_back(static_cast<std::int32_t>(id.integer(key, 0, static_cast<std::int64_t>(tokens) - 1)));
  };
  if (value->kind() == JsonKind::array) {
    for (const JsonMember id : value->elements(key)) take(id.value);
  } else {
    take(*value);
  }
  return ids;
}

void read_ids(const JsonValue& config, Vocabulary& vocabulary) {
  const auto bos = configured_ids(config, "bos_token_id", vocabulary.tokens.size());
  const auto eos = configured_ids(config, "eos_token_id", vocabulary.tokens.size());
  if (!vocabulary.bos && !bos.empty()) vocabulary.bos = bos.front();
  if (!vocabulary.eos && !eos.empty()) vocabulary.eos = eos.front();
  vocabulary.ends.insert(vocabulary.ends.end(), eos.begin(), eos.end());
}

Vocabulary read(const Sources& sources) {
  const JsonValue root = sources.tokenizer.root();
  Vocabulary vocabulary;
  bool decided = false;
  try {
    read_json_model(root, vocabulary);
    read_json_steps(root, vocabulary);
    decided = read_json_post_processor(root, vocabulary);
  } catch (const UnsupportedError& error) {
    throw UnsupportedError(fmt::format("{}: {}", sources.tokenizer.path(), error.what()));
  }
  if (sources.tokenizer_config) read_tokenizer_config(sources.tokenizer_config->root(), decided, vocabulary);
  // generation_config.json knows the ends of turns; config.json often EOS alone.
  const std::optional<JsonFile>& ids = sources.generation_config ? sources.generation_config : sources.config;
  if (ids) read_ids(ids->root(), vocabulary);
  if (sources.chat_template) vocabulary.chat_template = *sources.chat_template;
  check_vocabulary(vocabulary, {.file = sources.tokenizer.path(),
                                .tokens = "'model.vocab'",
                                .merges = "'model.merges'",
                                .map = "'precompiled_charsmap'"});
  complete_ends(vocabulary);
  return vocabulary;
}

/// Throws UnsupportedError if there is none.
const JsonFile& require_tokenizer(const std::optional<JsonFile>& tokenizer, const std::string& folder) {
  if (tokenizer) return *tokenizer;
  throw UnsupportedError(
      fmt::format("{}: there is no tokenizer.json; imago reads no other file of a tokenizer", folder));
}

}  // namespace

Vocabulary read_vocabulary(const files::HuggingFaceFolder& folder) {
  return read({.tokenizer = require_tokenizer(folder.tokenizer(), folder.path()),
               .config = folder.config(),
               .tokenizer_config = folder.tokenizer_config(),
               .generation_config = folder.generation_config(),
               .chat_template = folder.chat_template()});
}

Vocabulary read_vocabulary(const JsonFile& tokenizer) { return read({.tokenizer = tokenizer}); }

Vocabulary read_vocabulary_folder(const std::string& path) {
  const auto find = [&](const char* name) {
    const std::filesystem::path file = std::filesystem::path(path) / name;
    std::error_code ignored;
    return std::filesystem::exists(file, ignored) ? std::optional(file.string()) : std::nullopt;
  };
  const auto open = [&](const char* name, std::uint64_t max_bytes) {
    const std::optional<std::string> file = find(name);
    return file ? std::optional(JsonFile::open(*file, max_bytes)) : std::nullopt;
  };
  Sources sources{.tokenizer = require_tokenizer(open("tokenizer.json", files::kMaxTokenizerBytes), path),
                  .config = open("config.json", files::kMaxConfigBytes),
                  .tokenizer_config = open("tokenizer_config.json", files::kMaxTokenizerBytes),
                  .generation_config = open("generation_config.json", files::kMaxConfigBytes)};
  if (const auto chat = find("chat_template.jinja")) sources.chat_template = MappedFile::open(*chat).text();
  return read(sources);
}

}  // namespace imago::models
