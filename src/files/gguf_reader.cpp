#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/checked.h"
#include "files/detect.h"
#include "files/gguf.h"
#include "imago/codec.h"
#include "imago/error.h"

namespace imago::files {

namespace {

// The least that an entry takes: a length, one byte of name, and the fixed fields.
constexpr std::size_t kLeastMetadata = 8 + 1 + 4 + 1;
constexpr std::size_t kLeastTensor = 8 + 1 + 4 + 4 + 8;

/// Where the data of a tensor lies, and the place in the table to blame.
struct Placed {
  std::uint64_t offset;  // into the data
  std::uint64_t bytes;
  std::size_t entry;  // of the tensor table, in the file
};

// ---- the first bytes

void check_magic(std::span<const std::byte> file, std::string_view path) {
  const FormByStart start = detect_by_start(file, path);  // throws with a hint at what the file is
  if (start.json || start.form != FileForm::gguf) {
    throw FormatError(path, 0,
                      fmt::format("this is no GGUF file but {}", start.json ? "a JSON text" : name(start.form)));
  }
}

std::uint32_t read_version(ByteReader& reader) {
  const std::size_t at = reader.position();
  const auto version = reader.read<std::uint32_t>("the version");
  if (version == 2 || version == 3) return version;
  std::string problem = fmt::format("GGUF version {} is not known: 2 and 3 are", version);
  if (version == 1) problem = "GGUF version 1 is no longer read by anyone: convert the model anew";
  if (version != 0 && (version & 0xFFFF) == 0) {
    problem = "this is a GGUF file of a big-endian machine, which imago does not read";
  }
  throw FormatError(reader.path(), at, problem);
}

std::size_t read_count(ByteReader& reader, std::string_view what) {
  const std::size_t at = reader.position();
  const auto count = reader.read<std::uint64_t>(fmt::format("the number of {}", what));
  if (count > kMaxGgufEntries) {
    throw FormatError(reader.path(), at, fmt::format("{} {}: at most {} are allowed", count, what, kMaxGgufEntries));
  }
  return count;
}

/// REQUIRES: `reader` stands where the entries begin.
void check_room(const ByteReader& reader, std::size_t count, std::size_t least, std::string_view what) {
  if (count > reader.left() / least) {
    reader.fail(fmt::format("{} {} take at least {} bytes each, but only {} are left: the file may be cut off", count,
                            what, least, reader.left()));
  }
}

// ---- metadata

void read_metadata(ByteReader& reader, std::size_t count, GgufHeader& header) {
  check_room(reader, count, kLeastMetadata, "metadata entries");
  header.metadata.reserve(count);
  GgufBudget budget;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = reader.position();
    const std::string_view key = reader.read_string("a key");
    if (const std::string problem = gguf_name_problem(key, kMaxGgufKey); !problem.empty()) {
      throw FormatError(reader.path(), at, fmt::format("key {} of the metadata {}", i, problem));
    }
    header.metadata.push_back({std::string(key), read_gguf_value(reader, key, budget)});
  }
  const auto key_of = [&](std::size_t i) -> std::string_view { return header.metadata[i].key; };
  header.by_key = sort_by_text(count, key_of);
  if (const auto twice = find_repeated(header.by_key, key_of)) {
    reader.fail(fmt::format("the key '{}' comes twice", key_of(*twice)));
  }
}

std::uint32_t read_alignment(const ByteReader& reader, const GgufHeader& header) {
  const GgufValue* value = header.find(kGgufAlignmentKey);
  if (value == nullptr) return GgufWriter::kAlignment;
  const auto* alignment = std::get_if<std::uint32_t>(&value->any());
  if (alignment == nullptr) {
    reader.fail(fmt::format("{} is of type {}: it must be a u32", kGgufAlignmentKey, name(value->type())));
  }
  if (!std::has_single_bit(*alignment) || *alignment > kMaxGgufAlignment) {
    reader.fail(
        fmt::format("{} is {}: it must be a power of two up to {}", kGgufAlignmentKey, *alignment, kMaxGgufAlignment));
  }
  return *alignment;
}

// ---- tensors

Shape read_shape(ByteReader& reader, std::string_view name) {
  const auto rank = reader.read<std::uint32_t>("the rank of a tensor");
  if (rank > kMaxGgufRank) {
    reader.fail(fmt::format("tensor '{}' has {} dimensions: at most {} are allowed", name, rank, kMaxGgufRank));
  }
  std::vector<std::size_t> extents(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    const auto extent = reader.read<std::uint64_t>("an extent of a tensor");
    if (!std::in_range<std::int64_t>(extent)) {
      reader.fail(fmt::format("dimension {} of tensor '{}' is {}, beyond 2^63", i, name, extent));
    }
    extents[rank - 1 - i] = extent;
  }
  return Shape(std::move(extents));
}

const GgufTensorType& read_tensor_type(ByteReader& reader, std::string_view name) {
  const auto id = reader.read<std::uint32_t>("the type of a tensor");
  if (const GgufTensorType* type = find_gguf_tensor_type(id)) return *type;
  const bool removed = id == 4 || id == 5 || (id >= 31 && id <= 38);
  reader.fail(fmt::format("tensor '{}' is of type {}, which {}", name, id,
                          removed ? "GGUF has given up: convert the model anew" : "is not known"));
}

Placed read_tensor(ByteReader& reader, std::size_t index, GgufHeader& header) {
  const std::size_t entry = reader.position();
  const std::string_view name = reader.read_string("the name of a tensor");
  if (const std::string problem = gguf_name_problem(name, kMaxGgufName); !problem.empty()) {
    throw FormatError(reader.path(), entry, fmt::format("the name of tensor {} {}", index, problem));
  }
  GgufTensor tensor;
  tensor.name = name;
  std::uint64_t bytes = 0;
  try {
    tensor.shape = read_shape(reader, name);
    tensor.type = read_tensor_type(reader, name);
    bytes = gguf_tensor_bytes(tensor.type, tensor.shape);
  } catch (const ShapeError& error) {
    throw FormatError(reader.path(), entry, fmt::format("tensor '{}': {}", name, error.what()));
  }
  const auto offset = reader.read<std::uint64_t>("the offset of a tensor");
  if (offset % header.alignment != 0) {
    throw FormatError(
        reader.path(), entry,
        fmt::format("tensor '{}' lies at offset {}, no multiple of the alignment {}", name, offset, header.alignment));
  }
  header.tensors.push_back(std::move(tensor));
  return {offset, bytes, entry};
}

/// Gives each tensor its bytes; the data begin at `start`. Notes what lies between them.
void place_tensors(std::span<const std::byte> file, std::size_t start, const std::vector<Placed>& placed,
                   std::string_view path, GgufHeader& header) {
  const std::span<const std::byte> data = file.subspan(start);
  for (std::size_t i = 0; i < placed.size(); ++i) {
    const auto [offset, bytes, entry] = placed[i];
    GgufTensor& tensor = header.tensors[i];
    if (offset > data.size() || bytes > data.size() - offset) {
      throw FormatError(path, entry,
                        fmt::format("tensor '{}' of {} bytes at offset {} leaves the file, which has {} bytes of data: "
                                    "it may be cut off",
                                    tensor.name, bytes, offset, data.size()));
    }
    tensor.bytes = data.subspan(offset, bytes);
    tensor.offset = start + offset;
  }
  std::vector<std::size_t> order(placed.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return std::tuple(placed[i].offset, placed[i].bytes, i); });
  std::uint64_t covered = 0;  // up to here by tensors
  std::uint64_t padded = 0;   // the same with padding; data.size() bounds both, so the sums cannot wrap
  std::uint64_t gaps = 0;
  for (const std::size_t i : order) {
    if (placed[i].bytes == 0) continue;
    if (placed[i].offset < covered) {
      throw FormatError(path, placed[i].entry, fmt::format("tensor '{}' overlaps another", header.tensors[i].name));
    }
    gaps += placed[i].offset - std::min(padded, placed[i].offset);
    covered = placed[i].offset + placed[i].bytes;
    padded = checked_align_up<std::uint64_t>(covered, header.alignment, "the data");
  }
  if (gaps > 0) header.notes.push_back(fmt::format("{} bytes between the tensors belong to none", gaps));
  if (padded < data.size()) {
    header.notes.push_back(fmt::format("{} bytes behind the last tensor belong to none", data.size() - padded));
  }
}

void read_tensors(ByteReader& reader, std::span<const std::byte> file, std::size_t count, GgufHeader& header) {
  check_room(reader, count, kLeastTensor, "tensors");
  header.tensors.reserve(count);
  std::vector<Placed> placed;
  placed.reserve(count);
  for (std::size_t i = 0; i < count; ++i) placed.push_back(read_tensor(reader, i, header));
  const auto name_of = [&](std::size_t i) -> std::string_view { return header.tensors[i].name; };
  header.by_name = sort_by_text(count, name_of);
  if (const auto twice = find_repeated(header.by_name, name_of)) {
    throw FormatError(reader.path(), placed[*twice].entry, fmt::format("two tensors are named '{}'", name_of(*twice)));
  }
  const std::size_t data = checked_align_up<std::size_t>(reader.position(), header.alignment, "the header");
  if (data > file.size()) {
    if (count > 0) reader.fail("the file ends in front of the tensor data: it may be cut off");
    return;
  }
  place_tensors(file, data, placed, reader.path(), header);
}

}  // namespace

const GgufValue* GgufHeader::find(std::string_view key) const noexcept {
  const auto key_of = [&](std::size_t i) -> std::string_view { return metadata[i].key; };
  const std::optional<std::size_t> found = find_by_text(by_key, key, key_of);
  return found ? &metadata[*found].value : nullptr;
}

GgufHeader parse_gguf(std::span<const std::byte> file, std::string_view path) {
  static_assert(std::endian::native == std::endian::little);
  check_magic(file, path);
  ByteReader reader(file, path);
  reader.take(4, "the magic");
  GgufHeader header;
  header.version = read_version(reader);
  const std::size_t tensors = read_count(reader, "tensors");
  const std::size_t entries = read_count(reader, "metadata entries");
  read_metadata(reader, entries, header);
  header.alignment = read_alignment(reader, header);
  read_tensors(reader, file, tensors, header);
  return header;
}

void decode_gguf(const GgufTensor& tensor, std::span<float> out) {
  const Format format = *tensor.type.format;
  if (format.is_block()) {
    decode(format.block(), tensor.bytes, out);
  } else {
    constexpr float kOne = 1;
    decode(format.dtype(), tensor.bytes, {.values = {&kOne, 1}, .group = std::max<std::size_t>(out.size(), 1)}, out);
  }
}

}  // namespace imago::files
