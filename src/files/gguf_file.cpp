#include <fmt/format.h>

#include <filesystem>

#include "base/file.h"
#include "files/gguf.h"
#include "imago/error.h"

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
  std::vector<GgufTensor> tensors;   // of all parts
  std::vector<std::size_t> by_name;  // their indices, sorted
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
  const auto name_of = [&](std::size_t i) -> std::string_view { return state->tensors[i].name; };
  state->by_name = files::sort_by_text(state->tensors.size(), name_of);
  if (const auto twice = files::find_repeated(state->by_name, name_of)) {
    throw FormatError(path, 0, fmt::format("two parts have a tensor '{}'", name_of(*twice)));
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

const GgufTensor* GgufFile::find_tensor(std::string_view name) const noexcept {
  const auto name_of = [&](std::size_t i) -> std::string_view { return state_->tensors[i].name; };
  const std::optional<std::size_t> found = files::find_by_text(state_->by_name, name, name_of);
  return found ? &state_->tensors[*found] : nullptr;
}

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
  if (!tensor.type.format) {
    throw UnsupportedError(fmt::format("{}: tensor '{}' is of type {}, which imago does not compute with", path(), name,
                                       tensor.type.name));
  }
  Tensor<float> values(tensor.shape);
  files::decode_gguf(tensor, values.values());
  return values;
}

}  // namespace imago
