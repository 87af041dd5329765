#include "files/hugging_face.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "files/detect.h"
#include "files/hugging_face_index.h"
#include "imago/error.h"

namespace imago::files {

namespace {

namespace fs = std::filesystem;

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

std::string join(const std::string& folder, std::string_view name) { return (fs::path(folder) / name).string(); }

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
    problem = "the folder has no config.json, so it is no model";
  } else if (fs::is_empty(path, ignored)) {
    problem = "the folder is empty: a model has config.json and *.safetensors";
  } else if (is_there(names, "config.json")) {
    problem = "the folder has a config.json, but no *.safetensors: the weights are missing";
  } else {
    problem = "the folder has no config.json and no *.safetensors, so it is no model";
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
  const std::vector<ShardContents> contents = contents_of(folder.shards_, shards);
  check_shards(contents, path);
  if (index) folder.notes_ = check_index(*index, contents, join(path, kIndexName));

  folder.generation_config_ = open_if_there(path, names, "generation_config.json", kMaxConfigBytes);
  folder.tokenizer_ = open_if_there(path, names, "tokenizer.json", kMaxTokenizerBytes);
  folder.tokenizer_config_ = open_if_there(path, names, "tokenizer_config.json", kMaxTokenizerBytes);
  if (is_there(names, "chat_template.jinja")) {
    folder.chat_template_ = read_text(join(path, "chat_template.jinja"), kMaxTemplateBytes);
  }
  return folder;
}

}  // namespace imago::files
