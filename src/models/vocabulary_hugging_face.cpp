// Vocabularies as tokenizer.json, tokenizer_config.json and generation_config.json state them.

#include <fmt/format.h>

#include <filesystem>

#include "base/file.h"
#include "imago/error.h"
#include "models/tokenizer_json.h"
#include "models/vocabulary_parts.h"

namespace imago::models {

namespace {

using files::JsonFile;
using files::JsonKind;
using files::JsonMember;
using files::JsonValue;

// The largest published ones have some 35 MB.
constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{1} << 28;
constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 26;

struct Sources {
  const JsonFile* tokenizer = nullptr;
  const JsonFile *config = nullptr, *tokenizer_config = nullptr, *generation_config = nullptr;
  const std::string* chat_template = nullptr;
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
  const auto take = [&](std::optional<std::int32_t>& id, std::string_view key) {
    if (const auto found = configured_token(config, key, vocabulary)) id = found;
  };
  if (!vocabulary.add_bos) take(vocabulary.bos, "bos_token");
  if (!vocabulary.add_eos) take(vocabulary.eos, "eos_token");
  take(vocabulary.padding, "pad_token");
  take(vocabulary.separator, "sep_token");
  if (!vocabulary.unknown) take(vocabulary.unknown, "unk_token");
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
  if (value->kind() != JsonKind::array) {
    take(*value);
    return ids;
  }
  for (const JsonMember id : value->elements(key)) take(id.value);
  return ids;
}

void read_ids(const JsonFile* config, Vocabulary& vocabulary) {
  if (config == nullptr) return;
  const auto bos = configured_ids(config->root(), "bos_token_id", vocabulary.tokens.size());
  const auto eos = configured_ids(config->root(), "eos_token_id", vocabulary.tokens.size());
  if (!vocabulary.bos && !bos.empty()) vocabulary.bos = bos.front();
  if (!vocabulary.eos && !eos.empty()) vocabulary.eos = eos.front();
  vocabulary.ends.insert(vocabulary.ends.end(), eos.begin(), eos.end());
}

Vocabulary read(const Sources& sources) {
  const JsonValue root = sources.tokenizer->root();
  Vocabulary vocabulary;
  bool decided = false;
  try {
    read_json_model(root, vocabulary);
    read_json_steps(root, vocabulary);
    decided = read_json_post_processor(root, vocabulary);
  } catch (const UnsupportedError& error) {
    throw UnsupportedError(fmt::format("{}: {}", sources.tokenizer->path(), error.what()));
  }
  if (sources.tokenizer_config != nullptr) read_tokenizer_config(sources.tokenizer_config->root(), decided, vocabulary);
  // generation_config.json knows the ends of turns; config.json often EOS alone.
  read_ids(sources.generation_config, vocabulary);
  if (sources.generation_config == nullptr) read_ids(sources.config, vocabulary);
  if (sources.chat_template != nullptr) vocabulary.chat_template = *sources.chat_template;
  check_vocabulary(vocabulary, {.file = sources.tokenizer->path(),
                                .tokens = "'model.vocab'",
                                .merges = "'model.merges'",
                                .map = "'precompiled_charsmap'"});
  complete_ends(vocabulary);
  return vocabulary;
}

const JsonFile* pointer(const std::optional<JsonFile>& file) { return file ? &*file : nullptr; }

}  // namespace

Vocabulary read_vocabulary(const files::HuggingFaceFolder& folder) {
  if (!folder.tokenizer()) {
    throw UnsupportedError(
        fmt::format("{}: there is no tokenizer.json; imago reads no other file of a tokenizer", folder.path()));
  }
  return read({.tokenizer = &*folder.tokenizer(),
               .config = &folder.config(),
               .tokenizer_config = pointer(folder.tokenizer_config()),
               .generation_config = pointer(folder.generation_config()),
               .chat_template = folder.chat_template() ? &*folder.chat_template() : nullptr});
}

Vocabulary read_vocabulary(const JsonFile& tokenizer) { return read({.tokenizer = &tokenizer}); }

Vocabulary read_vocabulary_folder(const std::string& path) {
  namespace fs = std::filesystem;
  const auto open = [&](const char* name, std::uint64_t max_bytes) -> std::optional<JsonFile> {
    const fs::path file = fs::path(path) / name;
    std::error_code ignored;
    if (!fs::exists(file, ignored)) return std::nullopt;
    return JsonFile::open(file.string(), max_bytes);
  };
  const auto tokenizer = open("tokenizer.json", kMaxTokenizerBytes);
  if (!tokenizer) {
    throw UnsupportedError(
        fmt::format("{}: there is no tokenizer.json; imago reads no other file of a tokenizer", path));
  }
  const auto config = open("config.json", kMaxConfigBytes);
  const auto tokenizer_config = open("tokenizer_config.json", kMaxConfigBytes);
  const auto generation_config = open("generation_config.json", kMaxConfigBytes);
  std::optional<std::string> chat_template;
  const fs::path chat = fs::path(path) / "chat_template.jinja";
  std::error_code ignored;
  if (fs::exists(chat, ignored)) chat_template = std::string(MappedFile::open(chat.string()).text());
  return read({.tokenizer = &*tokenizer,
               .config = pointer(config),
               .tokenizer_config = pointer(tokenizer_config),
               .generation_config = pointer(generation_config),
               .chat_template = chat_template ? &*chat_template : nullptr});
}

}  // namespace imago::models
