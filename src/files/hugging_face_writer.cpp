#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <unordered_map>
#include <unordered_set>

#include "base/atomic_file.h"
#include "base/checked.h"
#include "files/hugging_face.h"
#include "files/json_writer.h"
#include "files/packed_safetensors.h"
#include "files/safetensors.h"
#include "imago/error.h"

namespace imago::files {

namespace {

namespace fs = std::filesystem;
using Metadata = std::vector<std::pair<std::string, std::string>>;

constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::size_t kMaxNumberedShards = 99999;

std::string shard_name(std::size_t index, std::size_t count) {
  return count == 1 ? std::string(kSingleName) : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

/// Names that this writer gives to weights: "model.safetensors", "model-00001-of-00003.safetensors".
bool is_own_shard(std::string_view name) {
  if (name == kSingleName) return true;
  constexpr std::string_view kPattern = "model-00000-of-00000.safetensors";
  return name.size() == kPattern.size() && std::ranges::equal(name, kPattern, [](char c, char pattern) {
           return pattern == '0' ? c >= '0' && c <= '9' : c == pattern;
         });
}

/// Tensors that must lie in one file, since readers look for scales beside their codes.
struct Bundle {
  std::vector<SafetensorsEntry> entries;
  std::size_t bytes = 0;
};

std::vector<Bundle> bundle(std::vector<SafetensorsEntry> entries, const std::vector<PackedTensor>& packed) {
  std::unordered_set<std::string> scales;
  for (const PackedTensor& tensor : packed) scales.insert(tensor.name + std::string(kScalesSuffix));
  std::ranges::sort(entries, {}, &SafetensorsEntry::name);
  std::vector<Bundle> bundles;
  std::unordered_map<std::string, std::size_t> place;
  for (SafetensorsEntry& entry : entries) {
    // A prefix sorts first, so the tensor of these scales has its bundle already.
    const bool joins = scales.contains(entry.name);
    const auto owner = joins ? place.find(entry.name.substr(0, entry.name.size() - kScalesSuffix.size())) : place.end();
    if (owner == place.end()) bundles.emplace_back();
    const std::size_t index = owner == place.end() ? bundles.size() - 1 : owner->second;
    if (!place.emplace(entry.name, index).second)
      throw UsageError(fmt::format("two tensors are named '{}'", entry.name));
    Bundle& target = bundles[index];
    target.bytes = checked_add(target.bytes, safetensors_bytes(entry.type, entry.shape), "the weights");
    target.entries.push_back(std::move(entry));
  }
  return bundles;
}

/// Shards of at most `shard_bytes`, but each has a bundle at least.
std::vector<std::vector<SafetensorsEntry>> cut(std::vector<Bundle> bundles, std::uint64_t shard_bytes) {
  std::vector<std::vector<SafetensorsEntry>> shards(1);
  std::uint64_t filled = 0;
  for (Bundle& next : bundles) {
    if (!shards.back().empty() && (next.bytes > shard_bytes || filled > shard_bytes - next.bytes)) {
      shards.emplace_back();
      filled = 0;
    }
    filled = checked_add<std::uint64_t>(filled, next.bytes, "the weights");
    std::ranges::move(next.entries, std::back_inserter(shards.back()));
  }
  for (auto& shard : shards) std::ranges::sort(shard, {}, &SafetensorsEntry::name);
  return shards;
}

std::string index_text(const std::vector<std::vector<SafetensorsEntry>>& shards) {
  std::uint64_t total = 0;
  StringSink sink;
  JsonWriter json(sink, JsonStyle::indented);
  for (const auto& shard : shards) {
    for (const SafetensorsEntry& entry : shard) total += safetensors_bytes(entry.type, entry.shape);
  }
  json.begin_object();
  json.key("metadata");
  json.begin_object();
  json.member("total_size", total);
  json.end_object();
  json.key("weight_map");
  json.begin_object();
  for (std::size_t i = 0; i < shards.size(); ++i) {
    for (const SafetensorsEntry& entry : shards[i]) json.member(entry.name, shard_name(i, shards.size()));
  }
  json.end_object();
  json.end_object();
  return std::move(sink.text()) + "\n";
}

void check_side_files(const std::vector<SideFile>& files) {
  std::unordered_set<std::string_view> seen;
  for (const SideFile& file : files) {
    const std::size_t slash = file.name.find('/');  // files may lie in one folder below
    const auto bare = [](std::string_view name) {
      return !name.empty() && name != "." && name != ".." &&
             name.find_first_of(std::string_view("/\0", 2)) == name.npos;
    };
    const bool valid = slash == std::string::npos
                           ? bare(file.name)
                           : bare(file.name.substr(0, slash)) && bare(file.name.substr(slash + 1));
    if (!valid) throw UsageError(fmt::format("'{}' is not a valid file name", file.name));
    if (file.name == kIndexName || (slash == std::string::npos && file.name.ends_with(".safetensors"))) {
      throw UsageError(fmt::format("'{}' is for the weights of the folder", file.name));
    }
    if (!seen.insert(file.name).second) throw UsageError(fmt::format("two files are named '{}'", file.name));
  }
}

}  // namespace

struct HuggingFaceWriter::State {
  std::string path;
  std::vector<SideFile> side_files;
  Metadata metadata;  // without what is packed
  std::vector<PackedTensor> packed;
  std::vector<std::vector<SafetensorsEntry>> shards;
  std::vector<SafetensorsEntry> entries;  // of all shards
  std::vector<std::uint64_t> ends;        // of the bytes of each entry, counted from the first
  std::uint64_t written = 0;
  std::vector<SafetensorsWriter> writers;  // of the shards begun; none is committed before all are complete
  std::unordered_map<std::string, std::size_t> shard_of;
  bool made_folder = false;
  std::vector<std::string> made_inside;  // folders

  ~State() {
    writers.clear();
    std::error_code ignored;
    for (const std::string& folder : made_inside) fs::remove(folder, ignored);
    if (made_folder) fs::remove(path, ignored);  // empty, or it stays
  }

  std::string place(std::string_view name) const { return (fs::path(path) / name).string(); }

  void begin_next_shard() {
    const std::vector<SafetensorsEntry>& shard = shards[writers.size()];
    std::vector<PackedTensor> here;
    for (const PackedTensor& tensor : packed) {
      const auto found = shard_of.find(tensor.name);
      if (found != shard_of.end() && found->second == writers.size()) here.push_back(tensor);
    }
    Metadata own = metadata;
    if (!here.empty()) own.emplace_back(kPackedKey, packed_text(here));
    writers.emplace_back(place(shard_name(writers.size(), shards.size())), shard, std::move(own));
  }

  /// The first tensor whose bytes are not all written; null if all are.
  const SafetensorsEntry* due() const {
    const auto end = std::ranges::upper_bound(ends, written);
    return end == ends.end() ? nullptr : &entries[static_cast<std::size_t>(end - ends.begin())];
  }

  /// Written, but not in its place yet.
  std::unique_ptr<AtomicFile> prepare(const SideFile& file) {
    const std::string folder = fs::path(place(file.name)).parent_path().string();
    std::error_code error;
    if (fs::create_directory(folder, error)) made_inside.push_back(folder);
    if (error) throw IoError(folder, fmt::format("cannot make the folder: {}", error.message()));
    auto target = std::make_unique<AtomicFile>(place(file.name));
    target->write(file.text);
    return target;
  }

  /// Weights of an older model, which readers would take for ours.
  void remove_old_shards() const {
    std::unordered_set<std::string> named;
    for (std::size_t i = 0; i < shards.size(); ++i) named.insert(shard_name(i, shards.size()));
    std::vector<fs::path> old;
    std::error_code error;
    for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      const bool stale_index = name == kIndexName && shards.size() == 1;
      if (stale_index || (is_own_shard(name) && !named.contains(name))) old.push_back(entry->path());
    }
    for (const fs::path& file : old) {
      if (!fs::remove(file, error) && error) {
        throw IoError(file.string(), fmt::format("cannot remove the old weights: {}", error.message()));
      }
    }
  }
};

HuggingFaceWriter::HuggingFaceWriter(const std::string& path, std::vector<SafetensorsEntry> entries,
                                     std::vector<SideFile> side_files, Metadata metadata, std::uint64_t shard_bytes)
    : state_(std::make_unique<State>()) {
  check_side_files(side_files);
  if (shard_bytes == 0) throw UsageError("shards of 0 bytes hold nothing");
  state_->path = path;
  state_->side_files = std::move(side_files);
  bool has_format = false;
  for (auto& [key, value] : metadata) {
    has_format |= key == "format";
    if (key == kPackedKey) {
      state_->packed = parse_packed(value, kPackedKey);
    } else {
      state_->metadata.emplace_back(std::move(key), std::move(value));
    }
  }
  if (!has_format) state_->metadata.emplace_back("format", "pt");  // without it transformers refuses the file
  state_->shards = cut(bundle(std::move(entries), state_->packed), shard_bytes);
  if (state_->shards.size() > kMaxNumberedShards) {
    throw UsageError(fmt::format("{} shards: at most {} are possible; let them be larger", state_->shards.size(),
                                 kMaxNumberedShards));
  }
  for (std::size_t i = 0; i < state_->shards.size(); ++i) {
    for (const SafetensorsEntry& entry : state_->shards[i]) {
      state_->shard_of.emplace(entry.name, i);
      state_->entries.push_back(entry);
      const std::uint64_t begin = state_->ends.empty() ? 0 : state_->ends.back();
      state_->ends.push_back(begin + safetensors_bytes(entry.type, entry.shape));
    }
  }
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_directory(path, error))
    throw IoError(path, "cannot write: it is not a folder");
  // Folders of a Hugging Face cache are full of links to shared files, which others use too.
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (entry.is_symlink(error)) {
      throw IoError(entry.path().string(),
                    "is a link: writing here would change the file it points to; name a new folder");
    }
  }
  state_->made_folder = fs::create_directories(path, error);
  if (error) throw IoError(path, fmt::format("cannot make the folder: {}", error.message()));
  state_->begin_next_shard();
}

HuggingFaceWriter::HuggingFaceWriter(HuggingFaceWriter&&) noexcept = default;
HuggingFaceWriter::~HuggingFaceWriter() = default;

std::span<const SafetensorsEntry> HuggingFaceWriter::entries() const noexcept { return state_->entries; }

void HuggingFaceWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const SafetensorsEntry* due = state_->due();
  if (due == nullptr) throw UsageError(fmt::format("all tensors are written already, '{}' is one too many", name));
  if (due->name != name) throw UsageError(fmt::format("tensor '{}' comes where '{}' is due", name, due->name));
  const std::size_t shard = state_->shard_of.at(due->name);
  while (state_->writers.size() <= shard) state_->begin_next_shard();
  state_->writers[shard].write(name, bytes);
  state_->written += bytes.size();
}

void HuggingFaceWriter::commit() {
  // Whatever may fail is done before the first file takes its place.
  if (const SafetensorsEntry* due = state_->due()) {
    throw UsageError(fmt::format("tensor '{}' is not completely written", due->name));
  }
  while (state_->writers.size() < state_->shards.size()) state_->begin_next_shard();
  std::unique_ptr<AtomicFile> index, config;
  std::vector<std::unique_ptr<AtomicFile>> others;
  if (state_->shards.size() > 1) index = state_->prepare({std::string(kIndexName), index_text(state_->shards)});
  for (const SideFile& file : state_->side_files) {
    if (file.name == "config.json") {
      config = state_->prepare(file);
    } else {
      others.push_back(state_->prepare(file));
    }
  }
  state_->made_folder = false;  // from here on it is not ours to remove
  for (SafetensorsWriter& writer : state_->writers) writer.commit();
  if (index) index->commit();
  state_->remove_old_shards();
  for (const auto& file : others) file->commit();
  if (config) config->commit();
}

}  // namespace imago::files
