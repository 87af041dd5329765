// A file of tensors whose sizes are known beforehand, written one after the other: what the writers of safetensors and
// GGUF have in common.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
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

/// Checks that tensors come in order and complete, and pads them. `Entry` has a name.
template <class Entry>
class TensorStream {
 public:
  /// Tensor i has `bytes[i]` bytes and is padded with zeros to `alignment`, the last one too. The header stands in
  /// front of them, padded likewise. Throws IoError.
  TensorStream(const std::string& path, std::string_view header, std::vector<Entry> entries,
               std::vector<std::size_t> bytes, std::size_t alignment)
      : file_(path), entries_(std::move(entries)), bytes_(std::move(bytes)), alignment_(alignment) {
    file_.write(header);
    pad();
  }

  std::span<const Entry> entries() const noexcept { return entries_; }

  /// Bytes of tensor `name`, all or the next piece of them. Throws UsageError if another tensor is due or there are
  /// more bytes than it has, IoError.
  void write(std::string_view name, std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    skip_complete();
    if (due_ == entries_.size()) {
      throw UsageError(fmt::format("all tensors are written already, '{}' is one too many", name));
    }
    const std::string& due = entries_[due_].name;
    if (due != name) throw UsageError(fmt::format("tensor '{}' comes where '{}' is due", name, due));
    if (bytes.size() > bytes_[due_] - written_) {
      throw UsageError(fmt::format("tensor '{}' takes {} bytes, not {}", name, bytes_[due_], written_ + bytes.size()));
    }
    file_.write(bytes);
    written_ += bytes.size();
  }

  /// Throws UsageError if a tensor is not complete, IoError.
  void commit() {
    skip_complete();
    if (due_ != entries_.size()) {
      throw UsageError(
          fmt::format("{} of the {} bytes of tensor '{}' are written", written_, bytes_[due_], entries_[due_].name));
    }
    file_.commit();
  }

 private:
  void pad() {
    const std::uint64_t end = checked_align_up<std::uint64_t>(file_.size(), alignment_, "the file");
    file_.write(std::string(end - file_.size(), '\0'));
  }
  void skip_complete() {
    for (; due_ < entries_.size() && written_ == bytes_[due_]; ++due_) {
      pad();
      written_ = 0;
    }
  }

  AtomicFile file_;
  std::vector<Entry> entries_;
  std::vector<std::size_t> bytes_;
  std::size_t alignment_;
  std::size_t due_ = 0;      // the tensor whose bytes come next
  std::size_t written_ = 0;  // of that tensor
};

}  // namespace imago::files

namespace imago {

namespace {

constexpr std::string_view kMetadata = "__metadata__";

void check_names(const std::vector<SafetensorsEntry>& sorted) {
  for (const auto& [name, type, shape] : sorted) {
    if (name.empty()) throw UsageError("a tensor of a safetensors file needs a name");
    if (name == kMetadata) throw UsageError("a tensor cannot be named __metadata__");
  }
  const auto twice = std::ranges::adjacent_find(sorted, {}, &SafetensorsEntry::name);
  if (twice != sorted.end()) throw UsageError(fmt::format("two tensors are named '{}'", twice->name));
}

void write_entry(files::JsonWriter& json, const SafetensorsEntry& entry, std::size_t begin, std::size_t end) {
  json.key(entry.name);
  json.begin_object();
  json.member("dtype", name(entry.type));
  json.key("shape");
  json.array(entry.shape.extents());
  json.key("data_offsets");
  json.array(std::array{begin, end});
  json.end_object();
}

}  // namespace

namespace files {

std::string safetensors_header(std::span<const SafetensorsEntry> entries,
                               std::vector<std::pair<std::string, std::string>> metadata) {
  StringSink header;
  JsonWriter json(header, JsonStyle::compact);
  json.begin_object();
  if (!metadata.empty()) {
    std::ranges::sort(metadata);
    json.key(kMetadata);
    json.begin_object();
    for (const auto& [key, value] : metadata) json.member(key, value);
    json.end_object();
  }
  std::size_t begin = 0;
  for (const SafetensorsEntry& entry : entries) {
    const std::size_t end = checked_add(begin, safetensors_bytes(entry.type, entry.shape), "the safetensors file");
    write_entry(json, entry, begin, end);
    begin = end;
  }
  json.end_object();
  std::string& text = header.text();
  text.resize(checked_align_up<std::size_t>(text.size(), 8, "the safetensors header"), ' ');
  if (text.size() > kMaxSafetensorsHeader) {
    throw UsageError(fmt::format("{} tensors need a header of {} bytes, and safetensors allows {}", entries.size(),
                                 text.size(), kMaxSafetensorsHeader));
  }
  const std::uint64_t length = text.size();
  text.insert(0, reinterpret_cast<const char*>(&length), sizeof length);
  return std::move(text);
}

}  // namespace files

struct SafetensorsWriter::State : files::TensorStream<SafetensorsEntry> {
  using TensorStream::TensorStream;
};

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> entries,
                                     std::vector<std::pair<std::string, std::string>> metadata) {
  std::ranges::sort(entries, {}, &SafetensorsEntry::name);
  check_names(entries);

  std::vector<std::size_t> sizes;
  for (const SafetensorsEntry& entry : entries) sizes.push_back(files::safetensors_bytes(entry.type, entry.shape));
  const std::string text = files::safetensors_header(entries, std::move(metadata));
  state_ = std::make_unique<State>(path, text, std::move(entries), std::move(sizes), 1);
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

std::span<const SafetensorsEntry> SafetensorsWriter::entries() const noexcept { return state_->entries(); }

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) { state_->write(name, bytes); }

void SafetensorsWriter::commit() { state_->commit(); }

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

void append_array(std::string& out, const GgufArray& array) {
  append(out, static_cast<std::uint32_t>(array.type()));
  append(out, std::uint64_t{array.size()});
  out.append(reinterpret_cast<const char*>(array.bytes().data()), array.bytes().size());
  for (const std::string_view text : array.strings()) append_string(out, text);
}

void append_metadata(std::string& out, const GgufMetadata& entry) {
  append_string(out, entry.key);
  append(out, static_cast<std::uint32_t>(entry.value.type()));
  std::visit(
      [&]<class T>(const T& value) {
        if constexpr (std::is_arithmetic_v<T>) {
          append(out, value);
        } else if constexpr (std::is_same_v<T, GgufArray>) {
          append_array(out, value);
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

template <class T>
void check_names(const std::vector<T>& items, std::string T::*name, std::string_view what, std::size_t max_bytes) {
  if (items.size() > files::kMaxGgufEntries) {
    throw UsageError(
        fmt::format("a GGUF file of {} {}s: at most {} are allowed", items.size(), what, files::kMaxGgufEntries));
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::string problem = files::gguf_name_problem(items[i].*name, max_bytes);
    if (!problem.empty()) throw UsageError(fmt::format("the name of {} {} of a GGUF file {}", what, i, problem));
  }
  const files::NameIndex<T> index(items, name);
  if (const T* twice = index.find_repeated())
    throw UsageError(fmt::format("the {} '{}' comes twice", what, twice->*name));
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

struct GgufWriter::State : files::TensorStream<GgufEntry> {
  using TensorStream::TensorStream;
};

GgufWriter::GgufWriter(const std::string& path, std::vector<GgufMetadata> metadata, std::vector<GgufEntry> entries,
                       std::uint32_t alignment) {
  set_alignment(metadata, alignment);
  check_names(metadata, &GgufMetadata::key, "key", files::kMaxGgufKey);
  check_names(entries, &GgufEntry::name, "tensor", files::kMaxGgufName);

  std::string header = "GGUF";
  append(header, kVersion);
  append(header, std::uint64_t{entries.size()});
  append(header, std::uint64_t{metadata.size()});
  for (const GgufMetadata& entry : metadata) append_metadata(header, entry);
  std::vector<std::size_t> sizes;
  std::uint64_t offset = 0;
  for (const GgufEntry& entry : entries) {
    sizes.push_back(entry_bytes(entry));
    append_entry(header, entry, offset);
    const std::uint64_t end = checked_add<std::uint64_t>(offset, sizes.back(), "the GGUF file");
    offset = checked_align_up<std::uint64_t>(end, alignment, "the GGUF file");
  }

  // llama.cpp reads the last tensor with its padding too.
  state_ = std::make_unique<State>(path, header, std::move(entries), std::move(sizes), alignment);
}

GgufWriter::GgufWriter(GgufWriter&&) noexcept = default;
GgufWriter::~GgufWriter() = default;

std::span<const GgufEntry> GgufWriter::entries() const noexcept { return state_->entries(); }

void GgufWriter::write(std::string_view name, std::span<const std::byte> bytes) { state_->write(name, bytes); }

void GgufWriter::commit() { state_->commit(); }

}  // namespace imago
