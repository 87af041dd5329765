#pragma once

// Hugging Face folders: config.json, weights in one or many safetensors files, and what belongs to the tokenizer.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/json.h"
#include "imago/data.h"

namespace imago::files {

/// A JSON file of a folder, held in memory with its text.
class JsonFile {
 public:
  /// Throws IoError, FormatError; FormatError too if it is larger than `max_bytes`.
  static JsonFile open(const std::string& path, std::uint64_t max_bytes);
  static JsonFile parse(std::string text, std::string path);
  JsonValue root() const noexcept { return document_->root(); }
  std::string_view text() const noexcept { return *text_; }
  const std::string& path() const noexcept { return document_->file(); }

 private:
  JsonFile() = default;
  std::shared_ptr<const std::string> text_;
  std::shared_ptr<const JsonDocument> document_;
};

/// A file beside the weights.
struct SideFile {
  std::string name;  ///< "config.json", "1_Pooling/config.json"
  std::string text;
};

/// A dense layer that sentence-transformers puts after pooling.
struct DenseModule {
  std::string path;  ///< of its folder: "2_Dense"
  JsonFile config;
  SafetensorsFile weights;  ///< `linear.weight` and perhaps `linear.bias`
};

/// An open folder, checked as a whole: every shard, and the index against the shards where there is one.
/// `model.safetensors.index.json` decides which files belong to it; without it all `*.safetensors` do.
class HuggingFaceFolder {
 public:
  static HuggingFaceFolder open(const std::string& path, bool eager = false);
  /// A folder in memory, without shards: what the model in a file of another form would be as one. `path` names that
  /// file. Throws FormatError; REQUIRES: there is a config.json.
  static HuggingFaceFolder make(const std::string& path, std::vector<SideFile> files);

  const std::string& path() const noexcept { return path_; }
  const JsonFile& config() const noexcept { return config_; }
  std::span<const SafetensorsFile> shards() const noexcept { return shards_; }
  /// What it was made of; empty for one that was opened.
  std::span<const SideFile> made_of() const noexcept { return made_of_; }
  /// Files beside the weights; none if absent.
  const std::optional<JsonFile>& generation_config() const noexcept { return generation_config_; }
  const std::optional<JsonFile>& tokenizer() const noexcept { return tokenizer_; }
  const std::optional<JsonFile>& tokenizer_config() const noexcept { return tokenizer_config_; }
  /// `chat_template.jinja`, where newer folders keep the template; none if absent.
  const std::optional<std::string>& chat_template() const noexcept { return chat_template_; }
  /// The config.json of the pooling module that `modules.json` names, in a folder of sentence-transformers; none if
  /// absent.
  const std::optional<JsonFile>& pooling() const noexcept { return pooling_; }
  /// What comes after pooling, in the order of `modules.json`.
  std::span<const DenseModule> dense_modules() const noexcept { return dense_modules_; }
  /// Harmless oddities, a sentence each, such as a wrong `total_size`.
  std::span<const std::string> notes() const noexcept { return notes_; }

 private:
  HuggingFaceFolder(std::string path, JsonFile config) : path_(std::move(path)), config_(std::move(config)) {}

  std::string path_;
  JsonFile config_;
  std::vector<SafetensorsFile> shards_;
  std::vector<DenseModule> dense_modules_;
  std::optional<JsonFile> generation_config_, tokenizer_, tokenizer_config_, pooling_;
  std::optional<std::string> chat_template_;
  std::vector<std::string> notes_;
  std::vector<SideFile> made_of_;
};

/// Throws FormatError that says why a folder is not a model, with advice: it holds a GGUF file, weights of PyTorch,
/// nothing.
[[noreturn]] void refuse_folder(const std::string& path);

/// Writes a folder: weights tensor by tensor into shards of at most `shard_bytes` (one file `model.safetensors` if all
/// fit, else numbered ones and the index), then the files beside them. Nothing appears in `path` before the commit but
/// the folder itself, if it did not exist; at the commit each file is renamed into place, config.json last. Files of
/// the same names are replaced; shards of an older model that are no longer named are removed. A folder with links in
/// it is an IoError: those of a Hugging Face cache lead to files that others share.
class HuggingFaceWriter {
 public:
  HuggingFaceWriter(const std::string& path, std::vector<SafetensorsEntry> entries, std::vector<SideFile> side_files,
                    std::vector<std::pair<std::string, std::string>> metadata, std::uint64_t shard_bytes);
  HuggingFaceWriter(HuggingFaceWriter&&) noexcept;
  ~HuggingFaceWriter();

  /// In the order in which their bytes are due.
  std::span<const SafetensorsEntry> entries() const noexcept;
  void write(std::string_view name, std::span<const std::byte> bytes);
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// `model.safetensors.index.json` and the names of shards, apart from files: what the reader of folders and its fuzzer
// share.
//
// | field | rule |
// |---|---|
// | `weight_map` | an object, not empty; a shard for each tensor, no tensor twice |
// | shard | the bare name of a file that ends in `.safetensors`: no path, no drive, no address; at most 65 535 shards |
// | `metadata.total_size` | the bytes of all tensors; another number is a note |
// | all shards | each has every tensor that is mapped to it; no tensor is in two |

inline constexpr std::string_view kModulesName = "modules.json";
/// More dense modules than this are refused.
inline constexpr std::size_t kMaxDenseModules = 2;
/// What the tensors of dense modules are called among those of the folder: this, then ".linear.weight".
inline constexpr std::string_view kDenseNames[kMaxDenseModules] = {"2_Dense", "3_Dense"};
inline constexpr std::string_view kIndexName = "model.safetensors.index.json";
inline constexpr std::size_t kMaxShards = 65535;

// Limits of the files beside the weights. The largest known: a tokenizer of 34 MB, an index of 20 MB.
inline constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{16} << 20;
inline constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{128} << 20;
inline constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{256} << 20;
inline constexpr std::uint64_t kMaxTemplateBytes = std::uint64_t{4} << 20;

/// The problem with a shard name; empty if it is valid.
std::string shard_name_problem(std::string_view name);

struct HuggingFaceIndex {
  struct Entry {
    std::string tensor;
    std::size_t shard;     ///< index in `shards`
    std::uint64_t offset;  ///< in the text, for errors
  };
  std::vector<std::string> shards;  ///< sorted
  std::vector<Entry> entries;       ///< in the order of the text
  std::optional<std::uint64_t> total_size;
};

/// Throws FormatError.
HuggingFaceIndex read_index(const JsonFile& file);

/// Throws FormatError unless it is an object.
void check_config(const JsonFile& file);

/// The tensors of one shard, by name and size.
struct ShardContents {
  std::string_view name;
  std::vector<std::pair<std::string_view, std::uint64_t>> tensors;
};

/// Throws FormatError if a tensor is in two shards, or not in the shard where `index`, if given, has it. The shards
/// come in the order of the index. Returns harmless oddities, a sentence each.
std::vector<std::string> check_shards(std::span<const ShardContents> shards, const HuggingFaceIndex* index,
                                      std::string_view folder);

}  // namespace imago::files
