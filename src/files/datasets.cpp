#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "files/datasets.h"
#include "files/detect.h"
#include "imago/data.h"
#include "imago/error.h"

namespace imago::files {

namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

/// The number that is all of `field`, if it is one.
std::optional<float> parse_number(std::string_view field) {
  field = trimmed(field);
  if (field.size() >= 2 && field.front() == '"' && field.back() == '"')
    field = trimmed(field.substr(1, field.size() - 2));
  if (field.starts_with('+')) field.remove_prefix(1);
  float value = 0;
  const std::from_chars_result result = std::from_chars(field.data(), field.data() + field.size(), value);
  if (result.ec != std::errc() || result.ptr != field.data() + field.size() || field.empty()) return std::nullopt;
  return value;
}

/// Takes text apart, one line and one field at a time. A separator inside quotes separates nothing.
class CsvReader {
 public:
  CsvReader(std::string_view text, std::string_view file) : text_(text), file_(file) {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (text_.starts_with(kByteOrderMark)) next_ = kByteOrderMark.size();
  }

  /// The next line that is not blank; its fields are then taken with next_field.
  bool next_line() {
    while (next_ < text_.size()) {
      const std::size_t end = std::min(text_.find('\n', next_), text_.size());
      line_ = text_.substr(next_, end - next_);
      line_at_ = next_;
      next_ = end + 1;
      ++number_;
      if (trimmed(line_).empty()) continue;
      if (separator_ == 0) find_separator();
      field_at_ = 0;
      return true;
    }
    return false;
  }

  std::optional<std::string_view> next_field() {
    if (field_at_ > line_.size()) return std::nullopt;
    std::size_t end = field_at_;
    for (bool quoted = false; end < line_.size() && (quoted || line_[end] != separator_); ++end) {
      if (line_[end] == '"') quoted = !quoted;
    }
    const std::string_view field = line_.substr(field_at_, end - field_at_);
    last_field_at_ = line_at_ + field_at_;
    field_at_ = end + 1;
    return field;
  }

  /// Throws FormatError at the last field taken.
  [[noreturn]] void fail(std::string_view problem) const {
    throw FormatError(file_, last_field_at_, fmt::format("line {}: {}", number_, problem));
  }

 private:
  void find_separator() {
    const std::size_t at = line_.find_first_of(",;\t");
    separator_ = at == std::string_view::npos ? ',' : line_[at];
  }

  std::string_view text_, file_, line_;
  char separator_ = 0;
  std::size_t next_ = 0, line_at_ = 0, field_at_ = 0, last_field_at_ = 0, number_ = 0;
};

}  // namespace

Dataset parse_csv(std::string_view text, std::string_view file, std::size_t target_columns) {
  if (target_columns == 0) throw UsageError("a dataset needs at least one target column");
  CsvReader reader(text, file);
  std::vector<float> x, y, row;
  std::size_t lines = 0, columns = 0, rows = 0;
  const auto add_row = [&] {
    if (rows == 0) columns = row.size();
    if (row.size() != columns)
      reader.fail(fmt::format("{} columns where the lines before have {}", row.size(), columns));
    if (columns <= target_columns) {
      reader.fail(fmt::format("{} columns are too few for {} targets and at least one input", columns, target_columns));
    }
    for (const float value : row) {
      if (!std::isfinite(value)) reader.fail("a value is infinite or not a number");
    }
    const std::ptrdiff_t inputs = static_cast<std::ptrdiff_t>(columns - target_columns);
    x.insert(x.end(), row.begin(), row.begin() + inputs);
    y.insert(y.end(), row.begin() + inputs, row.end());
    ++rows;
  };

  for (; reader.next_line(); ++lines) {
    row.clear();
    bool header = false;  // the first line, if something in it is not a number
    while (const std::optional<std::string_view> field = reader.next_field()) {
      const std::optional<float> value = parse_number(*field);
      if (!value && lines > 0) reader.fail(fmt::format("'{}' is not a number", field->substr(0, 40)));
      header |= !value;
      row.push_back(value.value_or(0));
    }
    if (!header) add_row();
  }
  if (lines == 0) throw FormatError(file, 0, "the file is empty");
  if (rows == 0) throw FormatError(file, text.size(), "a header line and no examples");
  return {Tensor<float>({rows, columns - target_columns}, std::move(x)),
          Tensor<float>({rows, target_columns}, std::move(y))};
}

namespace {

constexpr std::size_t kMostAxes = 8;
constexpr std::uint8_t kUnsignedByte = 8;

template <class T>
T big_endian(const std::byte* bytes) noexcept {
  std::array<std::byte, sizeof(T)> native;
  std::reverse_copy(bytes, bytes + sizeof(T), native.begin());
  return std::bit_cast<T>(native);
}

/// An element type, by the code in the third byte.
struct IdxType {
  std::uint8_t code;
  std::size_t bytes;
  float (*read)(const std::byte*) noexcept;
};
template <class T>
constexpr IdxType idx_type(std::uint8_t code) {
  return {code, sizeof(T), [](const std::byte* bytes) noexcept { return static_cast<float>(big_endian<T>(bytes)); }};
}
constexpr IdxType kIdxTypes[] = {idx_type<std::uint8_t>(kUnsignedByte),
                                 idx_type<std::int8_t>(9),
                                 idx_type<std::int16_t>(11),
                                 idx_type<std::int32_t>(12),
                                 idx_type<float>(13),
                                 idx_type<double>(14)};

/// Null if there is no such type.
const IdxType* find_idx_type(std::byte code) noexcept {
  const auto found = std::ranges::find(kIdxTypes, std::to_integer<std::uint8_t>(code), &IdxType::code);
  return found == std::end(kIdxTypes) ? nullptr : found;
}

}  // namespace

bool is_idx(std::span<const std::byte> bytes) noexcept {
  return bytes.size() >= 4 && bytes[0] == std::byte{0} && bytes[1] == std::byte{0} &&
         find_idx_type(bytes[2]) != nullptr && bytes[3] != std::byte{0};
}

IdxArray parse_idx(std::span<const std::byte> bytes, std::string_view file) {
  if (!is_idx(bytes))
    throw FormatError(file, 0, "no IDX file: it must start with 0, 0, a type code and the number of axes");
  const IdxType& type = *find_idx_type(bytes[2]);
  const std::size_t axes = std::to_integer<std::size_t>(bytes[3]);
  if (axes > kMostAxes) throw FormatError(file, 3, fmt::format("{} axes; at most {} are read", axes, kMostAxes));
  const std::size_t header = 4 + 4 * axes;
  if (bytes.size() < header) throw FormatError(file, bytes.size(), "the file ends within its header");

  // The elements that are there bound every extent, so that products of hostile ones cannot wrap.
  const std::size_t width = type.bytes, available = (bytes.size() - header) / width;
  std::vector<std::size_t> extents;
  std::size_t count = 1;
  for (std::size_t axis = 0; axis < axes; ++axis) {
    const std::size_t at = 4 + 4 * axis;
    extents.push_back(big_endian<std::uint32_t>(bytes.data() + at));
    if (extents.back() == 0) throw FormatError(file, at, "an axis of length 0");
    if (extents.back() > available / count) {
      throw FormatError(file, at,
                        fmt::format("axis {} of length {} goes past the end of the file", axis, extents.back()));
    }
    count *= extents.back();
  }
  if (bytes.size() - header != count * width) {
    throw FormatError(file, header + count * width,
                      fmt::format("{} bytes after the last element", bytes.size() - header - count * width));
  }

  IdxArray array{Tensor<float>(Shape(std::move(extents))), type.code == kUnsignedByte};
  for (std::size_t i = 0; i < count; ++i) array.values[i] = type.read(bytes.data() + header + i * width);
  return array;
}

Dataset join_idx(IdxArray images, IdxArray labels) {
  const std::size_t count = images.values.shape()[0];
  if (labels.values.shape()[0] != count) {
    throw ShapeError(fmt::format("IDX: {} images and {} labels", count, labels.values.shape()[0]));
  }
  if (images.is_bytes) {
    for (float& value : images.values.values()) value /= 255;
  }
  return {std::move(images.values), std::move(labels.values)};
}

void make_one_hot(Dataset& data) {
  constexpr double kMostElements = 1 << 30;  // 4 GiB
  const std::size_t rows = data.size();
  if (data.y.size() != rows) {
    throw ShapeError(
        fmt::format("one-hot rows need one column of class numbers, not targets {}", data.y.shape().to_string()));
  }
  float last = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    const float number = data.y[row];
    if (!(number >= 0) || number != std::floor(number)) {
      throw UsageError(fmt::format("one-hot rows need class numbers 0, 1, …: example {} has {}", row, number));
    }
    last = std::max(last, number);
  }
  // A class far beyond the number of examples is a mistake, and a small file of such must not cost gigabytes.
  const double most_classes = std::max(4096.0, 16 * static_cast<double>(rows));
  const double classes_wanted = static_cast<double>(last) + 1;
  if (classes_wanted > most_classes || classes_wanted * static_cast<double>(rows) > kMostElements) {
    throw UsageError(
        fmt::format("one-hot rows of {} examples and a class {} are too large; train with class numbers", rows, last));
  }
  const std::size_t classes = static_cast<std::size_t>(last) + 1;
  Tensor<float> one_hot({rows, classes});
  for (std::size_t row = 0; row < rows; ++row) one_hot[row * classes + static_cast<std::size_t>(data.y[row])] = 1;
  data.y = std::move(one_hot);
}

}  // namespace imago::files

namespace imago {

namespace {

/// A header of at most 4 GiB in JSON: byte 8 opens it, and the length before it is small.
bool is_safetensors(std::span<const std::byte> bytes) {
  return bytes.size() > 8 && bytes[8] == std::byte{'{'} &&
         std::all_of(bytes.begin() + 4, bytes.begin() + 8, [](std::byte b) { return b == std::byte{0}; });
}

/// "train-labels-idx1-ubyte" for "train-images-idx3-ubyte", whatever is before and after.
std::string labels_beside(const std::string& images) {
  std::string labels = images;
  const std::size_t folder_end = images.find_last_of('/') == std::string::npos ? 0 : images.find_last_of('/') + 1;
  const std::size_t what = labels.rfind("images");
  if (what == std::string::npos || what < folder_end) {
    throw UsageError(
        fmt::format("{}: no labels beside it: 'images' is not in its name; name the file of the labels", images));
  }
  labels.replace(what, 6, "labels");
  const std::size_t rank = labels.find("idx3", folder_end);
  if (rank != std::string::npos) labels.replace(rank, 4, "idx1");
  return labels;
}

Dataset load_idx(const MappedFile& images, const DatasetOptions& options) {
  const MappedFile labels = MappedFile::open(options.labels.empty() ? labels_beside(images.path()) : options.labels);
  if (!files::is_idx(labels.bytes())) files::refuse_mistakes(labels.bytes(), labels.path());
  return files::join_idx(files::parse_idx(images.bytes(), images.path()),
                         files::parse_idx(labels.bytes(), labels.path()));
}

Dataset load_safetensors(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  Dataset data{file.read_float32("x"), file.read_float32("y")};
  const auto examples = [](const Tensor<float>& tensor) { return tensor.shape().rank() == 0 ? 0 : tensor.shape()[0]; };
  if (examples(data.x) == 0 || examples(data.x) != examples(data.y)) {
    throw FormatError(
        path, 8,
        fmt::format("x {} and y {} are not as many examples", data.x.shape().to_string(), data.y.shape().to_string()));
  }
  return data;
}

Dataset load_any(const MappedFile& file, const DatasetOptions& options) {
  if (is_safetensors(file.bytes())) return load_safetensors(file.path());
  if (files::is_idx(file.bytes())) return load_idx(file, options);
  files::refuse_mistakes(file.bytes(), file.path());
  return files::parse_csv(file.text(), file.path(), options.target_columns);
}

}  // namespace

Dataset load_dataset(const std::string& path, const DatasetOptions& options) {
  Dataset data = load_any(MappedFile::open(path), options);
  if (options.one_hot) files::make_one_hot(data);
  return data;
}

}  // namespace imago
