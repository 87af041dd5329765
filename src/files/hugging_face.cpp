#include "files/hugging_face.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <unordered_map>

#include "base/file.h"
#include "files/detect.h"
#include "files/json_writer.h"
#include "imago/error.h"

namespace imago::files {

namespace {

namespace fs = std::filesystem;

std::string join(std::string_view folder, std::string_view name) { return (fs::path(folder) / name).string(); }

constexpr std::string_view kExtension = ".safetensors";

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::optional<std::uint64_t> read_total_size(const JsonValue& root) {
  const std::optional<JsonValue> metadata = root.find("metadata");
  if (!metadata || metadata->kind() != JsonKind::object) return std::nullopt;
  const std::optional<JsonValue> size = metadata->find("total_size");
  if (!size || size->kind() != JsonKind::number) return std::nullopt;
  try {
    return static_cast<std::uint64_t>(size->integral("total_size", 0, std::int64_t{1} << 53));
  } catch (const FormatError&) {
    return ~std::uint64_t{0};  // no size that any model has: it will disagree
  }
}

}  // namespace

std::string shard_name_problem(std::string_view name) {
  const bool control =
      std::ranges::any_of(name, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
  if (name.empty()) return "is empty";
  if (name.size() > 255) return fmt::format("has {} bytes: names of files have at most 255", name.size());
  if (control) return "holds a control character";
  if (name.find("://") != std::string_view::npos) return "is an address: shards lie in the folder itself";
  if (name.front() == '/') return "is an absolute path: shards lie in the folder itself";
  if (name.size() > 1 && is_letter(name[0]) && name[1] == ':') return "names a drive: shards lie in the folder itself";
  if (name.find('\\') != std::string_view::npos) return "holds a backslash: shards lie in the folder itself";
  if (name.find('/') != std::string_view::npos) return "leads to another folder: shards lie in the folder itself";
  if (!name.ends_with(kExtension)) return "does not end in .safetensors";
  return {};
}

HuggingFaceIndex read_index(const JsonFile& file) {
  const JsonValue root = file.root();
  if (root.kind() != JsonKind::object) root.fail("an index must be an object");
  const JsonValue map = root.require("weight_map", "the index");

  HuggingFaceIndex index;
  std::unordered_map<std::string, std::size_t> places;
  for (const JsonMember& member : map.members("weight_map")) {
    std::string shard = member.value.string(fmt::format("the shard of tensor '{}'", member.key));
    auto place = places.find(shard);
    if (place == places.end()) {
      if (const std::string problem = shard_name_problem(shard); !problem.empty()) {
        member.value.fail(fmt::format("the shard {} of tensor '{}' {}", quote_json(shard), member.key, problem));
      }
      if (places.size() == kMaxShards) member.value.fail(fmt::format("there are more than {} shards", kMaxShards));
      place = places.emplace(shard, index.shards.size()).first;
      index.shards.push_back(std::move(shard));
    }
    index.entries.push_back({member.key, place->second, member.value.offset()});
  }
  if (index.entries.empty()) map.fail("the weight_map is empty");

  std::ranges::sort(index.shards);
  std::vector<std::size_t> sorted_place(index.shards.size());
  for (std::size_t i = 0; i < index.shards.size(); ++i) sorted_place[places.at(index.shards[i])] = i;
  for (HuggingFaceIndex::Entry& entry : index.entries) entry.shard = sorted_place[entry.shard];
  index.total_size = read_total_size(root);
  return index;
}

void check_config(const JsonFile& file) {
  if (file.root().kind() != JsonKind::object) file.root().fail("config.json must be an object");
}

std::vector<std::string> check_shards(std::span<const ShardContents> shards, const HuggingFaceIndex* index,
                                      std::string_view folder) {
  std::unordered_map<std::string_view, std::size_t> shard_of;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const auto& [tensor, bytes] : shards[i].tensors) {
      const auto [there, added] = shard_of.emplace(tensor, i);
      if (!added) {
        throw FormatError(
            folder, 0,
            fmt::format("tensor '{}' is in two shards: {} and {}", tensor, shards[there->second].name, shards[i].name));
      }
      total += bytes;
    }
  }
  if (index == nullptr) return {};
  for (const HuggingFaceIndex::Entry& entry : index->entries) {
    const auto found = shard_of.find(entry.tensor);
    if (found != shard_of.end() && found->second == entry.shard) continue;
    const std::string_view hint =
        found == shard_of.end() ? std::string_view("no shard has it") : shards[found->second].name;
    throw FormatError(join(folder, kIndexName), entry.offset,
                      fmt::format("tensor '{}' is not in {}, where the index has it ({}{})", entry.tensor,
                                  index->shards[entry.shard], found == shard_of.end() ? "" : "it is in ", hint));
  }
  std::vector<std::string> notes;
  if (shard_of.size() > index->entries.size()) {
    notes.push_back(
        fmt::format("{} tensors of the shards are not in the index", shard_of.size() - index->entries.size()));
  }
  if (index->total_size && *index->total_size != total) {
    notes.push_back(
        index->total_size == ~std::uint64_t{0}
            ? fmt::format("total_size of the index is not a size; the tensors have {} bytes", total)
            : fmt::format("total_size of the index is {}, where the tensors have {} bytes", *index->total_size, total));
  }
  return notes;
}

namespace {

/// Regular files of the folder, links to such included, by name and sorted.
std::vector<std::string> list_files(const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored)) names.push_back(entry->path().filename().string());
  }
  if (error) throw IoError(path, fmt::format("cannot list the folder: {}", error.message()));
  std::ranges::sort(names);
  return names;
}

bool is_there(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::binary_search(names, name, std::less<>());
}

/// The whole text of a file that is not larger than `max_bytes`.
std::string read_text(const std::string& path, std::uint64_t max_bytes) {
  std::error_code error;
  std::uint64_t size = fs::file_size(path, error);  // before network disks are read; what cannot be told, opening tells
  std::optional<MappedFile> file;
  if (error || size <= max_bytes) {
    file = MappedFile::open(path);
    size = file->bytes().size();
  }
  if (size > max_bytes) {
    throw FormatError(path, 0, fmt::format("the file has {} bytes: at most {} are allowed", size, max_bytes));
  }
  return std::string(file->text());
}

std::optional<JsonFile> open_if_there(const std::string& folder, const std::vector<std::string>& names,
                                      std::string_view name, std::uint64_t max_bytes) {
  if (!is_there(names, name)) return std::nullopt;
  return JsonFile::open(join(folder, name), max_bytes);
}

/// Where a module of sentence-transformers lies, below the folder of the model.
std::string module_path(const JsonValue& folder) {
  std::string name = folder.string("path");
  const bool bare = !name.empty() && name.front() != '.' && name.find_first_of("/\\") == std::string::npos;
  if (!bare) folder.fail("a module must lie in a folder beside modules.json");
  return name;
}

/// Calls visit(type, path) for each module that says what it is and where.
template <class Visit>
void for_each_module(const JsonFile& modules, Visit&& visit) {
  for (const JsonMember module : modules.root().elements("modules.json")) {
    const auto type = module.value.find("type"), folder = module.value.find("path");
    if (type && folder) visit(type->string("type"), *folder);
  }
}

/// The config.json of the first module of sentence-transformers that pools; empty if there is none.
std::string pooling_name(const JsonFile& modules) {
  std::string name;
  for_each_module(modules, [&](const std::string& type, const JsonValue& folder) {
    if (name.empty() && type.ends_with("Pooling")) name = module_path(folder) + "/config.json";
  });
  return name;
}

/// The dense modules. Throws UnsupportedError for what else comes after pooling, but for normalization, which callers
/// ask for.
std::vector<DenseModule> open_dense_modules(const std::string& path, const JsonFile& modules, bool eager) {
  std::vector<DenseModule> dense;
  bool pooled = false;
  for_each_module(modules, [&](const std::string& type, const JsonValue& folder) {
    const bool pools = type.ends_with("Pooling"), normalizes = type.ends_with("Normalize");
    pooled = pooled || pools;
    if (!pooled || pools || normalizes) return;
    if (!type.ends_with("Dense") || dense.size() == kMaxDenseModules) {
      throw UnsupportedError(fmt::format(
          "{}: a module of type '{}' after pooling is not supported; known are up to {} of type Dense, and Normalize",
          modules.path(), type, kMaxDenseModules));
    }
    std::string name = module_path(folder);
    const std::string place = join(path, name);
    dense.push_back({std::move(name), JsonFile::open(join(place, "config.json"), kMaxConfigBytes),
                     SafetensorsFile::open(join(place, "model.safetensors"), eager)});
  });
  return dense;
}

SafetensorsFile open_shard(const std::string& folder, const std::string& name, bool from_index, bool eager) {
  const std::string path = join(folder, name);
  std::error_code error;
  if (from_index && !fs::exists(path, error)) {
    throw IoError(path, fmt::format("this shard is missing: {} names it", kIndexName));
  }
  return SafetensorsFile::open(path, eager);
}

std::vector<ShardContents> contents_of(std::span<const SafetensorsFile> shards, const std::vector<std::string>& names) {
  std::vector<ShardContents> contents(shards.size());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    contents[i].name = names[i];
    for (const SafetensorsTensor& tensor : shards[i].tensors()) {
      contents[i].tensors.emplace_back(tensor.name, tensor.bytes.size());
    }
  }
  return contents;
}

}  // namespace

void refuse_folder(const std::string& path) {
  const std::vector<std::string> names = list_files(path);
  const auto find = [&](std::initializer_list<std::string_view> endings) -> std::string {
    for (const std::string& name : names) {
      for (const std::string_view ending : endings) {
        if (name.ends_with(ending)) return name;
      }
    }
    return {};
  };
  std::error_code ignored;
  std::string problem;
  if (const std::string gguf = find({".gguf"}); !gguf.empty()) {
    problem = fmt::format("the folder holds a GGUF file: open it by its own name, '{}'", join(path, gguf));
  } else if (const std::string torch = find({".bin", ".pt", ".pth", ".ckpt"}); !torch.empty()) {
    problem = fmt::format("the weights are a PyTorch file only, {}: convert it to safetensors first", torch);
  } else if (!find({".safetensors"}).empty()) {
    problem = "the folder has no config.json, so it is not a model";
  } else if (fs::is_empty(path, ignored)) {
    problem = "the folder is empty: a model has config.json and *.safetensors";
  } else if (is_there(names, "config.json")) {
    problem = "the folder has a config.json, but no *.safetensors: the weights are missing";
  } else {
    problem = "the folder has no config.json and no *.safetensors, so it is not a model";
  }
  throw IoError(path, problem);
}

JsonFile JsonFile::open(const std::string& path, std::uint64_t max_bytes) {
  return parse(read_text(path, max_bytes), path);
}

JsonFile JsonFile::parse(std::string text, std::string path) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) throw FormatError(path, 0, "the file is empty");
  if (text[first] != '{' && text[first] != '[') refuse_mistakes(std::as_bytes(std::span(text)), path);
  JsonFile file;
  file.text_ = std::make_shared<const std::string>(std::move(text));
  file.document_ = std::make_shared<const JsonDocument>(JsonDocument::parse(*file.text_, path));
  return file;
}

HuggingFaceFolder HuggingFaceFolder::open(const std::string& path, bool eager) {
  const std::vector<std::string> names = list_files(path);
  if (!is_there(names, "config.json")) refuse_folder(path);
  HuggingFaceFolder folder(path, JsonFile::open(join(path, "config.json"), kMaxConfigBytes));
  check_config(folder.config_);

  std::optional<HuggingFaceIndex> index;
  std::vector<std::string> shards;
  if (const auto file = open_if_there(path, names, kIndexName, kMaxIndexBytes)) {
    index = read_index(*file);
    shards = index->shards;
  } else {
    std::ranges::copy_if(names, std::back_inserter(shards),
                         [](const std::string& name) { return name.ends_with(".safetensors"); });
    if (shards.empty()) refuse_folder(path);
    if (shards.size() > kMaxShards)
      throw FormatError(path, 0, fmt::format("there are more than {} shards", kMaxShards));
  }
  for (const std::string& shard : shards) {
    folder.shards_.push_back(open_shard(path, shard, index.has_value(), eager));
  }
  folder.notes_ = check_shards(contents_of(folder.shards_, shards), index ? &*index : nullptr, path);

  folder.generation_config_ = open_if_there(path, names, "generation_config.json", kMaxConfigBytes);
  folder.tokenizer_ = open_if_there(path, names, "tokenizer.json", kMaxTokenizerBytes);
  folder.tokenizer_config_ = open_if_there(path, names, "tokenizer_config.json", kMaxTokenizerBytes);
  if (const auto modules = open_if_there(path, names, kModulesName, kMaxConfigBytes)) {
    const std::string pooling = pooling_name(*modules);
    std::error_code ignored;
    if (!pooling.empty() && fs::is_regular_file(join(path, pooling), ignored)) {
      folder.pooling_ = JsonFile::open(join(path, pooling), kMaxConfigBytes);
    }
    folder.dense_modules_ = open_dense_modules(path, *modules, eager);
  }
  if (is_there(names, "chat_template.jinja")) {
    folder.chat_template_ = read_text(join(path, "chat_template.jinja"), kMaxTemplateBytes);
  }
  return folder;
}

HuggingFaceFolder HuggingFaceFolder::make(const std::string& path, std::vector<SideFile> files) {
  const auto text_of = [&](std::string_view name) -> const std::string* {
    const auto found = std::ranges::find(files, name, &SideFile::name);
    return found == files.end() ? nullptr : &found->text;
  };
  const auto parse = [&](std::string_view name) {
    const std::string* text = text_of(name);
    return text == nullptr ? std::nullopt : std::optional(JsonFile::parse(*text, fmt::format("{}, {}", path, name)));
  };
  HuggingFaceFolder folder(path, parse("config.json").value());
  check_config(folder.config_);
  folder.generation_config_ = parse("generation_config.json");
  folder.tokenizer_ = parse("tokenizer.json");
  folder.tokenizer_config_ = parse("tokenizer_config.json");
  if (const auto modules = parse(kModulesName)) folder.pooling_ = parse(pooling_name(*modules));
  if (const std::string* chat = text_of("chat_template.jinja")) folder.chat_template_ = *chat;
  folder.made_of_ = std::move(files);
  return folder;
}

}  // namespace imago::files
