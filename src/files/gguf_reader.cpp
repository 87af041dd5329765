#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <numeric>
#include <utility>

#include "base/checked.h"
#include "base/file.h"
#include "files/detect.h"
#include "files/gguf.h"
#include "files/tensor_file.h"
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
                      fmt::format("this is not a GGUF file but {}", start.json ? "a JSON text" : name(start.form)));
  }
}

std::uint32_t read_version(ByteReader& reader) {
  const std::size_t at = reader.position();
  const auto version = reader.read<std::uint32_t>("the version");
  if (version == 2 || version == 3) return version;
  std::string problem = fmt::format("GGUF version {} is not known: 2 and 3 are", version);
  if (version == 1) problem = "GGUF version 1 is obsolete: convert the model again";
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
  header.by_key = {header.metadata, &GgufMetadata::key};
  if (const GgufMetadata* twice = header.by_key.find_repeated()) {
    reader.fail(fmt::format("the key '{}' comes twice", twice->key));
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
    header.notes.push_back(fmt::format("{} bytes after the last tensor belong to no tensor", data.size() - padded));
  }
}

void read_tensors(ByteReader& reader, std::span<const std::byte> file, std::size_t count, GgufHeader& header) {
  check_room(reader, count, kLeastTensor, "tensors");
  header.tensors.reserve(count);
  std::vector<Placed> placed;
  placed.reserve(count);
  for (std::size_t i = 0; i < count; ++i) placed.push_back(read_tensor(reader, i, header));
  header.by_name = {header.tensors, &GgufTensor::name};
  if (const GgufTensor* twice = header.by_name.find_repeated()) {
    const auto place = static_cast<std::size_t>(twice - header.tensors.data());
    throw FormatError(reader.path(), placed[place].entry, fmt::format("two tensors are named '{}'", twice->name));
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
  const GgufMetadata* found = by_key.find(key);
  return found != nullptr ? &found->value : nullptr;
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

void decode_gguf(const GgufTensor& tensor, std::span<float> out) { decode_tensor(stored_tensor(tensor), 0, out); }

}  // namespace imago::files

namespace imago {

namespace {

struct Part {
  MappedFile file;
  files::GgufHeader header;
};

Part open_part(const std::string& path, bool eager) {
  MappedFile file = MappedFile::open(path, eager ? Reading::eager : Reading::automatic);
  files::GgufHeader header = files::parse_gguf(file.bytes(), path);
  return {std::move(file), std::move(header)};
}

/// The path without "-00001-of-00003.gguf". Only names made of the split's own numbers count: what else the metadata
/// say never becomes a path.
std::string part_prefix(const std::string& path, const files::GgufSplit& split) {
  const std::string ending = gguf_part_path("", split.index, split.count);
  if (!path.ends_with(ending)) {
    throw FormatError(path, 0,
                      fmt::format("this is part {} of a model in {} files, so its name must end in '{}'",
                                  split.index + 1, split.count, ending));
  }
  return path.substr(0, path.size() - ending.size());
}

/// Part `index` must belong to the model that `first` begins.
void check_part(const Part& first, const Part& part, std::size_t index, const files::GgufSplit& whole) {
  const std::string& path = part.file.path();
  const files::GgufSplit split = files::read_gguf_split(part.header, path);
  if (split.count != whole.count) {
    throw FormatError(path, 0, fmt::format("split.count is {}, where other parts have {}", split.count, whole.count));
  }
  if (split.index != index) {
    throw FormatError(path, 0, fmt::format("split.no is {}, where the name of the file says {}", split.index, index));
  }
  if (split.tensors != whole.tensors) {
    throw FormatError(path, 0,
                      fmt::format("this part is of another model: it has split.tensors.count {}, the first part {}",
                                  split.tensors, whole.tensors));
  }
  for (const std::string_view key : {"general.architecture", "general.name"}) {
    const GgufValue* here = part.header.find(key);
    const GgufValue* there = first.header.find(key);
    if (here != nullptr && there != nullptr && !(*here == *there)) {
      throw FormatError(path, 0, fmt::format("this part is of another model: its {} is not that of the first", key));
    }
  }
}

std::vector<Part> open_parts(const std::string& path, bool eager) {
  std::vector<Part> parts;
  parts.push_back(open_part(path, eager));
  const files::GgufSplit split = files::read_gguf_split(parts[0].header, path);
  if (split.count == 1) return parts;
  const std::string prefix = part_prefix(path, split);
  if (split.index != 0) parts.clear();
  std::size_t tensors = 0;
  for (std::size_t i = 0; i < split.count; ++i) {
    if (i >= parts.size()) {
      const std::string part_path = gguf_part_path(prefix, i, split.count);
      std::error_code error;
      if (!std::filesystem::exists(part_path, error)) {
        throw IoError(part_path, fmt::format("part {} of {} is missing", i + 1, split.count));
      }
      parts.push_back(open_part(part_path, eager));
    }
    check_part(parts[0], parts[i], i, split);
    tensors += parts[i].header.tensors.size();
  }
  if (tensors != split.tensors) {
    throw FormatError(path, 0,
                      fmt::format("the {} parts hold {} tensors, but split.tensors.count is {}", split.count, tensors,
                                  split.tensors));
  }
  return parts;
}

}  // namespace

std::string gguf_part_path(std::string_view prefix, std::size_t index, std::size_t count) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", prefix, index + 1, count);
}

namespace files {

GgufSplit read_gguf_split(const GgufHeader& header, std::string_view path) {
  const auto read = [&](std::string_view key, std::size_t max) -> std::size_t {
    const GgufValue* value = header.find(key);
    if (value == nullptr) throw FormatError(path, 0, fmt::format("this is part of a split model, but has no {}", key));
    const std::optional<std::int64_t> number = value->integer();
    if (!number || *number < 0 || static_cast<std::size_t>(*number) > max) {
      throw FormatError(path, 0, fmt::format("{} must be an integer from 0 to {}", key, max));
    }
    return static_cast<std::size_t>(*number);
  };
  // llama.cpp leaves the keys in files that it has merged, with a count of 0.
  GgufSplit split;
  split.tensors = header.tensors.size();
  if (header.find("split.count") == nullptr) return split;
  split.count = std::max<std::size_t>(read("split.count", kMaxGgufParts), 1);
  if (split.count == 1) return split;
  split.index = read("split.no", split.count - 1);
  split.tensors = read("split.tensors.count", kMaxGgufEntries);
  return split;
}

}  // namespace files

struct GgufFile::State {
  std::string path;
  std::vector<Part> parts;
  std::vector<GgufTensor> tensors;  // of all parts
  files::NameIndex<GgufTensor> by_name;
  std::vector<std::string> notes;
};

GgufFile::GgufFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;
GgufFile::~GgufFile() = default;

GgufFile GgufFile::open(const std::string& path, bool eager) {
  auto state = std::make_unique<State>();
  state->path = path;
  state->parts = open_parts(path, eager);
  for (Part& part : state->parts) {
    for (GgufTensor& tensor : part.header.tensors) tensor.file = part.file.path();
    std::ranges::move(part.header.tensors, std::back_inserter(state->tensors));
    for (const std::string& note : part.header.notes) {
      state->notes.push_back(state->parts.size() > 1 ? fmt::format("{}: {}", part.file.path(), note) : note);
    }
    part.header.tensors.clear();
  }
  state->by_name = {state->tensors, &GgufTensor::name};
  if (const GgufTensor* twice = state->by_name.find_repeated()) {
    throw FormatError(path, 0, fmt::format("two parts have a tensor '{}'", twice->name));
  }
  return GgufFile(std::move(state));
}

const std::string& GgufFile::path() const noexcept { return state_->path; }
std::uint32_t GgufFile::version() const noexcept { return state_->parts[0].header.version; }
std::uint32_t GgufFile::alignment() const noexcept { return state_->parts[0].header.alignment; }
std::size_t GgufFile::parts() const noexcept { return state_->parts.size(); }
std::uint64_t GgufFile::file_bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (const Part& part : state_->parts) bytes += part.file.bytes().size();
  return bytes;
}
std::span<const GgufMetadata> GgufFile::metadata() const noexcept { return state_->parts[0].header.metadata; }
std::span<const GgufTensor> GgufFile::tensors() const noexcept { return state_->tensors; }
std::span<const std::string> GgufFile::notes() const noexcept { return state_->notes; }
const GgufValue* GgufFile::find(std::string_view key) const noexcept { return state_->parts[0].header.find(key); }

const GgufTensor* GgufFile::find_tensor(std::string_view name) const noexcept { return state_->by_name.find(name); }

const GgufValue& GgufFile::require(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) throw FormatError(path(), 0, fmt::format("the metadata have no '{}'", key));
  return *value;
}

std::int64_t GgufFile::require_integer(std::string_view key, std::int64_t min, std::int64_t max) const {
  const GgufValue& value = require(key);
  const std::optional<std::int64_t> number = value.integer();
  if (!number && value.type() != GgufType::u64) {
    throw FormatError(path(), 0, fmt::format("'{}' is of type {}: it must be an integer", key, name(value.type())));
  }
  if (!number || *number < min || *number > max) {
    const std::string found = number ? std::to_string(*number) : "beyond 2^63";
    throw FormatError(path(), 0, fmt::format("'{}' is {}: it must be from {} to {}", key, found, min, max));
  }
  return *number;
}

double GgufFile::require_number(std::string_view key) const {
  const GgufValue& value = require(key);
  if (const std::optional<double> number = value.number()) return *number;
  throw FormatError(path(), 0, fmt::format("'{}' is of type {}: it must be a number", key, name(value.type())));
}

std::string_view GgufFile::require_string(std::string_view key) const {
  const GgufValue& value = require(key);
  if (const std::optional<std::string_view> text = value.string()) return *text;
  throw FormatError(path(), 0, fmt::format("'{}' is of type {}: it must be a string", key, name(value.type())));
}

const GgufArray& GgufFile::require_array(std::string_view key, GgufType elements) const {
  const GgufArray* array = require(key).array();
  if (array == nullptr || array->type() != elements) {
    throw FormatError(path(), 0, fmt::format("'{}' must be an array of {}", key, name(elements)));
  }
  return *array;
}

std::string_view GgufFile::architecture() const {
  const std::string_view architecture = require_string("general.architecture");
  if (architecture.empty()) throw FormatError(path(), 0, "'general.architecture' is empty");
  return architecture;
}

const GgufTensor& GgufFile::require_tensor(std::string_view name) const {
  const GgufTensor* tensor = find_tensor(name);
  if (tensor == nullptr) throw FormatError(path(), 0, fmt::format("there is no tensor '{}'", name));
  return *tensor;
}

Tensor<float> GgufFile::read_float32(std::string_view name) const {
  const GgufTensor& tensor = require_tensor(name);
  Tensor<float> values(tensor.shape);
  files::decode_gguf(tensor, values.values());
  return values;
}

}  // namespace imago
