#pragma once

// Everything the program prints: plain text, tables, JSON, and colour on terminals that want it.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace imago::cli {

/// Thrown by `print` when the reader of our output has gone: it has seen enough, and nothing is wrong.
struct ReaderGone {};

/// Writes to standard output, all of it. Throws IoError if the system refuses, ReaderGone if nobody reads.
void print(std::string_view text);

/// One JSON object and a newline.
void print_json(const nlohmann::ordered_json& object);

/// "imago: error: MESSAGE" on standard error, in one line whatever the message holds.
void print_error(std::string_view message) noexcept;

/// Emphasis for people; the bare text unless standard output is a terminal and NO_COLOR is unset.
std::string bold(std::string_view text);
std::string dim(std::string_view text);

/// Columns of the terminal that standard output is; 100 if it is none.
std::size_t terminal_columns();
/// Columns that a UTF-8 text takes on the screen, if it holds no wide or combining characters.
std::size_t display_width(std::string_view text);

/// fmt::join, which GCC 12 warns about at -O3 without cause.
std::string join(const std::vector<std::string>& words, std::string_view separator);

/// "31.3 GiB"
std::string format_bytes(std::uint64_t bytes);

/// "1,234,567"
std::string format_count(std::uint64_t count);

/// `text` from a file, safe to show: control characters, which could steer a terminal, and what is no UTF-8 become
/// "\x1b".
std::string printable(std::string_view text);

/// At most `characters` of it, the last one "…" where something was left out. REQUIRES: characters > 0.
std::string shortened(std::string_view text, std::size_t characters);

/// Rows under a heading, columns as wide as their widest cell and two spaces apart.
class Table {
 public:
  enum class Align : std::uint8_t { left, right };
  struct Column {
    std::string heading;
    Align align = Align::left;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// REQUIRES: one cell per column.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace imago::cli
