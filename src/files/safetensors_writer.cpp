#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "base/checked.h"
#include "files/json_writer.h"
#include "files/safetensors.h"
#include "files/tensor_stream.h"
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

void write_entry(files::JsonWriter& json, const SafetensorsEntry& entry, std::size_t begin, std::size_t end) {
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
  State(const std::string& path, std::vector<files::TensorStream::Due> due, std::size_t alignment,
        std::vector<SafetensorsEntry> all)
      : stream(path, std::move(due), alignment), entries(std::move(all)) {}

  files::TensorStream stream;
  std::vector<SafetensorsEntry> entries;
};

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> entries,
                                     std::vector<std::pair<std::string, std::string>> metadata) {
  std::ranges::sort(entries, {}, &SafetensorsEntry::name);
  check_names(entries);

  files::StringSink header;
  files::JsonWriter json(header, files::JsonStyle::compact);
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
  std::vector<files::TensorStream::Due> due;
  std::size_t begin = 0;
  for (const SafetensorsEntry& entry : entries) {
    due.push_back({entry.name, files::safetensors_bytes(entry.type, entry.shape)});
    const std::size_t end = checked_add(begin, due.back().bytes, "the safetensors file");
    write_entry(json, entry, begin, end);
    begin = end;
  }
  json.end_object();
  std::string& text = header.text();
  text.resize(checked_align_up<std::size_t>(text.size(), 8, "the safetensors header"), ' ');
  if (text.size() > files::kMaxSafetensorsHeader) {
    throw UsageError(fmt::format("{} tensors need a header of {} bytes, and safetensors allows {}", entries.size(),
                                 text.size(), files::kMaxSafetensorsHeader));
  }

  const std::uint64_t length = text.size();
  text.insert(0, reinterpret_cast<const char*>(&length), sizeof length);
  state_ = std::make_unique<State>(path, std::move(due), 1, std::move(entries));
  state_->stream.write_header(text);
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

std::span<const SafetensorsEntry> SafetensorsWriter::entries() const noexcept { return state_->entries; }

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  state_->stream.write(name, bytes);
}

void SafetensorsWriter::commit() { state_->stream.commit(); }

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
