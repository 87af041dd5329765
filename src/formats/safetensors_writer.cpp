#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "base/atomic_file.h"
#include "base/checked.h"
#include "formats/json_writer.h"
#include "formats/safetensors.h"
#include "imago/error.h"

namespace imago {

namespace {

constexpr std::string_view kMetadata = "__metadata__";

void check_names(const std::vector<SafetensorsEntry>& sorted) {
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::string& name = sorted[i].name;
    if (name.empty()) throw UsageError("a tensor of a safetensors file needs a name");
    if (name == kMetadata) throw UsageError("a tensor cannot be named __metadata__");
    if (i > 0 && name == sorted[i - 1].name) throw UsageError(fmt::format("two tensors are named '{}'", name));
  }
}

void write_entry(formats::JsonWriter& json, const SafetensorsEntry& entry, std::size_t begin, std::size_t end) {
  json.key(entry.name);
  json.begin_object();
  json.key("dtype");
  json.value(name(entry.type));
  json.key("shape");
  json.begin_array();
  for (const std::size_t extent : entry.shape.extents()) json.value(std::uint64_t{extent});
  json.end_array();
  json.key("data_offsets");
  json.begin_array();
  json.value(std::uint64_t{begin});
  json.value(std::uint64_t{end});
  json.end_array();
  json.end_object();
}

}  // namespace

struct SafetensorsWriter::State {
  explicit State(const std::string& path) : file(path) {}

  AtomicFile file;
  std::vector<SafetensorsEntry> entries;
  std::vector<std::size_t> bytes;  // of each entry
  std::size_t due = 0;             // the entry whose bytes come next
  std::size_t written = 0;         // of that entry

  void skip_complete() {
    while (due < entries.size() && written == bytes[due]) {
      ++due;
      written = 0;
    }
  }
};

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> entries,
                                     std::vector<std::pair<std::string, std::string>> metadata) {
  std::ranges::sort(entries, {}, &SafetensorsEntry::name);
  check_names(entries);

  formats::StringSink header;
  formats::JsonWriter json(header, formats::JsonStyle::compact);
  json.begin_object();
  if (!metadata.empty()) {
    std::ranges::sort(metadata);
    json.key(kMetadata);
    json.begin_object();
    for (const auto& [key, value] : metadata) {
      json.key(key);
      json.value(value);
    }
    json.end_object();
  }
  std::vector<std::size_t> bytes;
  std::size_t begin = 0;
  for (const SafetensorsEntry& entry : entries) {
    bytes.push_back(formats::safetensors_bytes(entry.type, entry.shape));
    const std::size_t end = checked_add(begin, bytes.back(), "the safetensors file");
    write_entry(json, entry, begin, end);
    begin = end;
  }
  json.end_object();
  std::string& text = header.text();
  text.resize(checked_align_up<std::size_t>(text.size(), 8, "the safetensors header"), ' ');
  if (text.size() > formats::kMaxSafetensorsHeader) {
    throw UsageError(fmt::format("{} tensors need a header of {} bytes, and safetensors allows {}", entries.size(),
                                 text.size(), formats::kMaxSafetensorsHeader));
  }

  state_ = std::make_unique<State>(path);
  state_->entries = std::move(entries);
  state_->bytes = std::move(bytes);
  const std::uint64_t length = text.size();
  state_->file.write(std::as_bytes(std::span(&length, 1)));
  state_->file.write(text);
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

std::span<const SafetensorsEntry> SafetensorsWriter::entries() const noexcept { return state_->entries; }

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  State& s = *state_;
  if (bytes.empty()) return;
  s.skip_complete();
  if (s.due == s.entries.size()) throw UsageError(fmt::format("all tensors are written, and '{}' comes on top", name));
  if (s.entries[s.due].name != name) {
    throw UsageError(fmt::format("tensor '{}' comes where '{}' is due", name, s.entries[s.due].name));
  }
  if (bytes.size() > s.bytes[s.due] - s.written) {
    throw UsageError(fmt::format("tensor '{}' takes {} bytes, not {}", name, s.bytes[s.due], s.written + bytes.size()));
  }
  s.file.write(bytes);
  s.written += bytes.size();
}

void SafetensorsWriter::commit() {
  State& s = *state_;
  s.skip_complete();
  if (s.due != s.entries.size()) {
    throw UsageError(
        fmt::format("{} of the {} bytes of tensor '{}' are written", s.written, s.bytes[s.due], s.entries[s.due].name));
  }
  s.file.commit();
}

void save_safetensors(const std::string& path, std::span<const std::pair<std::string, Tensor<float>>> tensors) {
  std::vector<const std::pair<std::string, Tensor<float>>*> sorted;
  std::vector<SafetensorsEntry> entries;
  for (const auto& tensor : tensors) {
    sorted.push_back(&tensor);
    entries.push_back({tensor.first, SafetensorsType::f32, tensor.second.shape()});
  }
  std::ranges::sort(sorted, {}, [](const auto* tensor) -> const std::string& { return tensor->first; });
  SafetensorsWriter writer(path, std::move(entries));
  for (const auto* tensor : sorted) writer.write(tensor->first, tensor->second.values());
  writer.commit();
}

}  // namespace imago
