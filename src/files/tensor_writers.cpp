// A file of tensors whose sizes are known beforehand, written one after the other: what the writers of safetensors and
// GGUF have in common.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "base/checked.h"
#include "files/gguf.h"
#include "files/json_writer.h"
#include "files/safetensors.h"
#include "imago/error.h"

namespace imago::files {

/// Checks that tensors come in order and complete, and pads them.
class TensorStream {
 public:
  /// A tensor that is due: its name and all of its bytes.
  struct Due {
    std::string name;
    std::size_t bytes;
  };

  /// Each tensor is padded with zeros to `alignment`, the last one too. Throws IoError.
  TensorStream(const std::string& path, std::vector<Due> tensors, std::size_t alignment);

  /// What stands in front of the tensors, padded as they are. Call once, first.
  void write_header(std::string_view header);
  /// Bytes of tensor `name`, all or the next piece of them. Throws UsageError if another tensor is due or there are
  /// more bytes than it has, IoError.
  void write(std::string_view name, std::span<const std::byte> bytes);
  /// Throws UsageError if a tensor is not complete, IoError.
  void commit();

 private:
  void pad();
  void skip_complete();

  AtomicFile file_;
  std::vector<Due> tensors_;
  std::size_t alignment_;
  std::size_t due_ = 0;      // the tensor whose bytes come next
  std::size_t written_ = 0;  // of that tensor
};

TensorStream::TensorStream(const std::string& path, std::vector<Due> tensors, std::size_t alignment)
    : file_(path), tensors_(std::move(tensors)), alignment_(alignment) {}

void TensorStream::pad() {
  const std::uint64_t end = checked_align_up<std::uint64_t>(file_.size(), alignment_, "the file");
  file_.write(std::string(end - file_.size(), '\0'));
}

void TensorStream::skip_complete() {
  while (due_ < tensors_.size() && written_ == tensors_[due_].bytes) {
    pad();
    ++due_;
    written_ = 0;
  }
}

void TensorStream::write_header(std::string_view header) {
  file_.write(header);
  pad();
}

void TensorStream::write(std::string_view name, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  skip_complete();
  if (due_ == tensors_.size())
    throw UsageError(fmt::format("all tensors are written already, '{}' is one too many", name));
  const Due& due = tensors_[due_];
  if (due.name != name) throw UsageError(fmt::format("tensor '{}' comes where '{}' is due", name, due.name));
  if (bytes.size() > due.bytes - written_) {
    throw UsageError(fmt::format("tensor '{}' takes {} bytes, not {}", name, due.bytes, written_ + bytes.size()));
  }
  file_.write(bytes);
  written_ += bytes.size();
}

void TensorStream::commit() {
  skip_complete();
  if (due_ != tensors_.size()) {
    throw UsageError(fmt::format("{} of the {} bytes of tensor '{}' are written", written_, tensors_[due_].bytes,
                                 tensors_[due_].name));
  }
  file_.commit();
}

}  // namespace imago::files

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

namespace {

constexpr std::uint32_t kVersion = 3;
constexpr std::uint32_t kLeastAlignment = 8;

// ---- the header, in memory

template <class T>
void append(std::string& out, T number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  out.append(bytes, sizeof number);
}

void append_string(std::string& out, std::string_view text) {
  append(out, std::uint64_t{text.size()});
  out += text;
}

void append_array(std::string& out, const GgufArray& array, int depth) {
  if (depth > files::kMaxGgufDepth) {
    throw UsageError(fmt::format("arrays of metadata can be nested {} deep, not more", files::kMaxGgufDepth));
  }
  append(out, static_cast<std::uint32_t>(array.type()));
  append(out, std::uint64_t{array.size()});
  out.append(reinterpret_cast<const char*>(array.bytes().data()), array.bytes().size());
  for (const std::string_view text : array.strings()) append_string(out, text);
  for (const GgufArray& inner : array.arrays()) append_array(out, inner, depth + 1);
}

void append_metadata(std::string& out, const GgufMetadata& entry) {
  append_string(out, entry.key);
  append(out, static_cast<std::uint32_t>(entry.value.type()));
  std::visit(
      [&]<class T>(const T& value) {
        if constexpr (std::is_arithmetic_v<T>) {
          append(out, value);
        } else if constexpr (std::is_same_v<T, GgufArray>) {
          append_array(out, value, 1);
        } else {
          append_string(out, value);
        }
      },
      entry.value.any());
}

void append_entry(std::string& out, const GgufEntry& entry, std::uint64_t offset) {
  append_string(out, entry.name);
  append(out, static_cast<std::uint32_t>(entry.shape.rank()));
  for (std::size_t axis = entry.shape.rank(); axis-- > 0;) append(out, std::uint64_t{entry.shape[axis]});
  append(out, entry.type.id);
  append(out, offset);
}

// ---- what the caller asks for

template <class T, class F>
void check_names(const std::vector<T>& items, F name_of, std::string_view what, std::size_t max_bytes) {
  if (items.size() > files::kMaxGgufEntries) {
    throw UsageError(
        fmt::format("a GGUF file of {} {}s: at most {} are allowed", items.size(), what, files::kMaxGgufEntries));
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string problem = files::gguf_name_problem(name_of(i), max_bytes);
    if (!problem.empty()) throw UsageError(fmt::format("the name of {} {} of a GGUF file {}", what, i, problem));
  }
  const auto twice = files::find_repeated(files::sort_by_text(items.size(), name_of), name_of);
  if (twice) throw UsageError(fmt::format("the {} '{}' comes twice", what, name_of(*twice)));
}

void set_alignment(std::vector<GgufMetadata>& metadata, std::uint32_t alignment) {
  if (!std::has_single_bit(alignment) || alignment < kLeastAlignment || alignment > files::kMaxGgufAlignment) {
    throw UsageError(fmt::format("an alignment of {}: it must be a power of two from {} to {}", alignment,
                                 kLeastAlignment, files::kMaxGgufAlignment));
  }
  const auto stated = std::ranges::find(metadata, files::kGgufAlignmentKey, &GgufMetadata::key);
  if (stated != metadata.end()) {
    stated->value = alignment;
  } else if (alignment != GgufWriter::kAlignment) {
    metadata.push_back({std::string(files::kGgufAlignmentKey), alignment});
  }
}

std::size_t entry_bytes(const GgufEntry& entry) {
  const GgufTensorType* type = files::find_gguf_tensor_type(entry.type.id);
  if (type == nullptr) throw UsageError(fmt::format("tensor '{}': GGUF has no type {}", entry.name, entry.type.id));
  if (entry.shape.rank() > files::kMaxGgufRank) {
    throw ShapeError(fmt::format("tensor '{}' of shape {}: GGUF allows {} dimensions", entry.name,
                                 entry.shape.to_string(), files::kMaxGgufRank));
  }
  try {
    return files::gguf_tensor_bytes(*type, entry.shape);
  } catch (const ShapeError& error) {
    throw ShapeError(fmt::format("tensor '{}': {}", entry.name, error.what()));
  }
}

}  // namespace

struct GgufWriter::State {
  State(const std::string& path, std::vector<files::TensorStream::Due> due, std::size_t alignment,
        std::vector<GgufEntry> all)
      : stream(path, std::move(due), alignment), entries(std::move(all)) {}

  files::TensorStream stream;
  std::vector<GgufEntry> entries;
};

GgufWriter::GgufWriter(const std::string& path, std::vector<GgufMetadata> metadata, std::vector<GgufEntry> entries,
                       std::uint32_t alignment) {
  set_alignment(metadata, alignment);
  check_names(
      metadata, [&](std::size_t i) -> std::string_view { return metadata[i].key; }, "key", files::kMaxGgufKey);
  check_names(
      entries, [&](std::size_t i) -> std::string_view { return entries[i].name; }, "tensor", files::kMaxGgufName);

  std::string header = "GGUF";
  append(header, kVersion);
  append(header, std::uint64_t{entries.size()});
  append(header, std::uint64_t{metadata.size()});
  for (const GgufMetadata& entry : metadata) append_metadata(header, entry);
  std::vector<files::TensorStream::Due> due;
  std::uint64_t offset = 0;
  for (const GgufEntry& entry : entries) {
    due.push_back({entry.name, entry_bytes(entry)});
    append_entry(header, entry, offset);
    const std::uint64_t end = checked_add<std::uint64_t>(offset, due.back().bytes, "the GGUF file");
    offset = checked_align_up<std::uint64_t>(end, alignment, "the GGUF file");
  }

  // llama.cpp reads the last tensor with its padding too.
  state_ = std::make_unique<State>(path, std::move(due), alignment, std::move(entries));
  state_->stream.write_header(header);
}

GgufWriter::GgufWriter(GgufWriter&&) noexcept = default;
GgufWriter::~GgufWriter() = default;

std::span<const GgufEntry> GgufWriter::entries() const noexcept { return state_->entries; }

void GgufWriter::write(std::string_view name, std::span<const std::byte> bytes) { state_->stream.write(name, bytes); }

void GgufWriter::commit() { state_->stream.commit(); }

}  // namespace imago
