#pragma once

// Everything the program prints: plain text, tables, JSON, colour and progress on terminals.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "imago/numeric.h"

namespace imago {
struct DivergenceReport;
}

namespace imago::cli {

/// Thrown by `print` when the reader of standard output has closed the pipe, which is not an error.
struct ReaderGone {};

/// Writes all of `text` to standard output. Throws IoError if that fails, ReaderGone if the pipe is closed.
void print(std::string_view text);

/// One JSON object and a newline.
void print_json(const nlohmann::ordered_json& object);

/// Adds kl_mean, kl_median, kl_p99, kl_max, same_top and kl_histogram: [{"from":0,"count":12},…] without the empty bins
/// at both ends.
void add_divergence(const DivergenceReport& report, nlohmann::ordered_json& object);

/// "imago: error: MESSAGE" on standard error, always as one line.
void print_error(std::string_view message) noexcept;

/// Emphasis; plain text unless standard output is a terminal and NO_COLOR is unset.
std::string bold(std::string_view text);
std::string dim(std::string_view text);

/// Whether a person watches this descriptor, on a terminal that can move its cursor.
bool is_terminal(int descriptor);
/// Columns of the terminal; 100 if standard output is not a terminal.
std::size_t terminal_columns();
/// Columns that a UTF-8 text takes on the screen, assuming no wide or combining characters.
std::size_t display_width(std::string_view text);

/// Like fmt::join, about which GCC 12 gives a false warning at -O3.
std::string join(const std::vector<std::string>& words, std::string_view separator);

/// "31.3 GiB"
std::string format_bytes(std::uint64_t bytes);

/// "1,234,567"
std::string format_count(std::uint64_t count);

/// "1 thread", "3 threads"
std::string counted(int count, std::string_view noun);

/// 0 without weights.
double bits_per_weight(std::uint64_t bytes, std::uint64_t weights);

/// "512 × 64"; "scalar" without extents.
std::string format_shape(const Shape& shape);

/// One line of a report: "label            value".
std::string fact(std::string_view label, std::string_view value);

/// `text` made safe to print: control characters, which could manipulate a terminal, and invalid UTF-8 are escaped as
/// "\x1b".
std::string printable(std::string_view text);

/// At most `characters` of the text, ending with "…" if it was cut. REQUIRES: characters > 0.
std::string shortened(std::string_view text, std::size_t characters);

/// Rows under headings, in columns as wide as their widest cell and two spaces apart.
class Table {
 public:
  enum class Align : std::uint8_t { left, right };
  struct Column {
    std::string heading;
    Align align = Align::left;
  };

  explicit Table(std::vector<Column> columns);
  /// REQUIRES: one cell per column.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // the first holds the headings
};

/// How much of a model each type holds; the type with the most bytes comes first.
class TypeTotals {
 public:
  void add(const std::string& type, std::uint64_t weights, std::uint64_t bytes);
  std::string table() const;
  nlohmann::ordered_json json() const;

 private:
  struct Total {
    std::uint64_t tensors = 0, weights = 0, bytes = 0;
  };
  std::vector<std::pair<std::string, Total>> sorted() const;

  std::map<std::string, Total> totals_;
};

/// A line on standard error with a bar, a label, the rate and the time left, redrawn at most 20 times a second. Nothing
/// is shown if standard error is not a terminal or `quiet` is true. The destructor erases the line.
class Progress {
 public:
  /// `done_before`: steps done by an earlier run, which do not count for the rate.
  explicit Progress(bool quiet, std::size_t done_before = 0);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  enum class Unit : std::uint8_t { steps, bytes };
  /// Whether `show` would draw now: for work in steps of microseconds, where making the label takes time.
  bool is_due(std::size_t done, std::size_t total) const;
  /// Draws nothing if `total` is 0, which means unknown. REQUIRES: done <= total.
  void show(std::size_t done, std::size_t total, std::string_view label, Unit unit = Unit::steps);
  /// As functions of the library report progress; pass them std::ref of this object.
  void operator()(std::string_view label, std::size_t done, std::size_t total) { show(done, total, label); }

 private:
  bool visible_;
  std::size_t done_before_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point drawn_at_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Progress of an operation in several phases, each with its own bar.
class PhasedProgress {
 public:
  explicit PhasedProgress(bool quiet) : quiet_(quiet) {}
  /// Draws nothing if `total` is 0, which means unknown. REQUIRES: done <= total.
  void operator()(std::string_view phase, std::size_t done, std::size_t total);

 private:
  bool quiet_;
  std::string phase_;
  std::optional<Progress> progress_;
};

}  // namespace imago::cli
