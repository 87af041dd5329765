#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "files/dataset_readers.h"
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

/// The values of the line, or nothing if this is a header: the first line, with something that is no number.
std::optional<std::vector<float>> first_row(CsvReader& reader) {
  std::vector<float> row;
  while (const std::optional<std::string_view> field = reader.next_field()) {
    const std::optional<float> value = parse_number(*field);
    if (!value) return std::nullopt;
    row.push_back(*value);
  }
  return row;
}

}  // namespace

Dataset parse_csv(std::string_view text, std::string_view file, std::size_t target_columns) {
  if (target_columns == 0) throw UsageError("a dataset needs at least one target column");
  CsvReader reader(text, file);
  if (!reader.next_line()) throw FormatError(file, 0, "the file is empty");
  std::vector<float> x, y, row;
  std::size_t columns = 0, rows = 0;
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

  if (std::optional<std::vector<float>> first = first_row(reader)) {
    row = std::move(*first);
    add_row();
  }
  while (reader.next_line()) {
    row.clear();
    while (const std::optional<std::string_view> field = reader.next_field()) {
      const std::optional<float> value = parse_number(*field);
      if (!value) reader.fail(fmt::format("'{}' is no number", field->substr(0, 40)));
      row.push_back(*value);
    }
    add_row();
  }
  if (rows == 0) throw FormatError(file, text.size(), "a header line and no examples");
  return {Tensor<float>({rows, columns - target_columns}, std::move(x)),
          Tensor<float>({rows, target_columns}, std::move(y))};
}

}  // namespace imago::files
