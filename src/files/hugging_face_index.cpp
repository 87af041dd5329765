#include "files/hugging_face_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "files/json_writer.h"
#include "imago/error.h"

namespace imago::files {

namespace {

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
  const std::optional<JsonValue> map = root.find("weight_map");
  if (!map) root.fail("the index has no weight_map");

  HuggingFaceIndex index;
  std::unordered_map<std::string, std::size_t> places;
  for (const JsonMember& member : map->members("weight_map")) {
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
  if (index.entries.empty()) map->fail("the weight_map is empty");

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

void check_shards(std::span<const ShardContents> shards, std::string_view folder) {
  std::unordered_map<std::string_view, std::string_view> shard_of;
  for (const ShardContents& shard : shards) {
    for (const auto& [tensor, bytes] : shard.tensors) {
      const auto [there, added] = shard_of.emplace(tensor, shard.name);
      if (!added) {
        throw FormatError(folder, 0,
                          fmt::format("tensor '{}' is in two shards: {} and {}", tensor, there->second, shard.name));
      }
    }
  }
}

std::vector<std::string> check_index(const HuggingFaceIndex& index, std::span<const ShardContents> shards,
                                     std::string_view path) {
  std::unordered_map<std::string_view, std::size_t> shard_of;
  std::uint64_t total = 0;
  std::size_t tensors = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const auto& [tensor, bytes] : shards[i].tensors) {
      shard_of.emplace(tensor, i);
      total += bytes;
      ++tensors;
    }
  }
  for (const HuggingFaceIndex::Entry& entry : index.entries) {
    const auto found = shard_of.find(entry.tensor);
    if (found != shard_of.end() && found->second == entry.shard) continue;
    const std::string_view hint =
        found == shard_of.end() ? std::string_view("no shard has it") : shards[found->second].name;
    throw FormatError(path, entry.offset,
                      fmt::format("tensor '{}' is not in {}, where the index has it ({}{})", entry.tensor,
                                  index.shards[entry.shard], found == shard_of.end() ? "" : "it is in ", hint));
  }
  std::vector<std::string> notes;
  if (tensors > index.entries.size()) {
    notes.push_back(fmt::format("{} tensors of the shards are not in the index", tensors - index.entries.size()));
  }
  if (index.total_size && *index.total_size != total) {
    notes.push_back(
        index.total_size == ~std::uint64_t{0}
            ? fmt::format("total_size of the index is no size, where the tensors have {} bytes", total)
            : fmt::format("total_size of the index is {}, where the tensors have {} bytes", *index.total_size, total));
  }
  return notes;
}

}  // namespace imago::files
