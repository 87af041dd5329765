#pragma once

// `model.safetensors.index.json` and the names of shards, apart from files: what the reader of folders and its fuzzer
// share.
//
// | field | rule |
// |---|---|
// | `weight_map` | an object, not empty; a shard for each tensor, no tensor twice |
// | shard | the bare name of a file that ends in `.safetensors`: no path, no drive, no address; at most 65 535 shards |
// | `metadata.total_size` | the bytes of all tensors; another number is a note |
// | all shards | each has every tensor that is mapped to it; no tensor is in two |

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/hugging_face.h"

namespace imago::files {

inline constexpr std::string_view kIndexName = "model.safetensors.index.json";
inline constexpr std::size_t kMaxShards = 65535;

// Limits of the files beside the weights. The largest known: a tokenizer of 34 MB, an index of 20 MB.
inline constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{16} << 20;
inline constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{128} << 20;
inline constexpr std::uint64_t kMaxTokenizerBytes = std::uint64_t{256} << 20;
inline constexpr std::uint64_t kMaxTemplateBytes = std::uint64_t{4} << 20;

/// What is wrong with the name of a shard, or nothing.
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

/// Throws FormatError if a tensor is in two shards.
void check_shards(std::span<const ShardContents> shards, std::string_view folder);

/// Compares the index with its shards, given in its order. Throws FormatError for a tensor that its shard lacks; gives
/// back oddities that do no harm, a sentence each. REQUIRES: check_shards has passed.
std::vector<std::string> check_index(const HuggingFaceIndex& index, std::span<const ShardContents> shards,
                                     std::string_view path);

}  // namespace imago::files
