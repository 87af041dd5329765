#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "base/checked.h"
#include "files/gguf.h"
#include "files/tensor_stream.h"
#include "imago/error.h"

namespace imago {

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
