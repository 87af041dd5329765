#include "output.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <system_error>

#include "imago/error.h"
#include "imago/lm.h"

namespace imago::cli {

namespace {

/// Writes all of `text`; returns errno, or 0 on success.
int write_all(int descriptor, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

bool wants_colour() {
  const char* const no_colour = std::getenv("NO_COLOR");
  return is_terminal(STDOUT_FILENO) && (no_colour == nullptr || *no_colour == '\0');
}

std::string coloured(std::string_view code, std::string_view text) {
  static const bool colour = wants_colour();
  return colour ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
}

nlohmann::ordered_json histogram_json(const DivergenceReport& report) {
  nlohmann::ordered_json bins = nlohmann::ordered_json::array();
  std::size_t end = report.histogram.size();
  while (end > 0 && report.histogram[end - 1] == 0) --end;
  for (std::size_t bin = 0; bin < end; ++bin) {
    if (bins.empty() && report.histogram[bin] == 0) continue;
    bins.push_back({{"from", divergence_bin_start(bin)}, {"count", report.histogram[bin]}});
  }
  return bins;
}

}  // namespace

void print(std::string_view text) {
  const int error = write_all(STDOUT_FILENO, text);
  if (error == EPIPE) throw ReaderGone{};
  if (error != 0) {
    throw IoError("standard output",
                  fmt::format("cannot write: {}; redirect it elsewhere", std::generic_category().message(error)));
  }
}

void print_json(const nlohmann::ordered_json& object) {
  // File names need not be UTF-8, but JSON must be.
  print(object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void add_divergence(const DivergenceReport& report, nlohmann::ordered_json& object) {
  object["kl_mean"] = report.mean;
  object["kl_median"] = report.median;
  object["kl_p99"] = report.percentile_99;
  object["kl_max"] = report.largest;
  object["same_top"] = report.same_top;
  object["kl_histogram"] = histogram_json(report);
}

void print_error(std::string_view message) noexcept try {
  std::string line(message);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  // Messages quote files, which may contain control characters.
  write_all(STDERR_FILENO, fmt::format("imago: error: {}\n", printable(line)));
} catch (...) {
  write_all(STDERR_FILENO, "imago: error: out of memory\n");
}

std::string bold(std::string_view text) { return coloured("1", text); }
std::string dim(std::string_view text) { return coloured("2", text); }

bool is_terminal(int descriptor) {
  const char* const terminal = std::getenv("TERM");
  return ::isatty(descriptor) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

std::size_t terminal_columns() {
  constexpr std::size_t kUsual = 100;
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kUsual;
}

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string join(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += separator;
    text += word;
  }
  return text;
}

std::string format_bytes(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  const bool whole = value == static_cast<double>(static_cast<std::uint64_t>(value));
  return whole ? fmt::format("{:.0f} {}", value, kUnits[unit]) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string format_count(std::uint64_t count) {
  std::string text = std::to_string(count);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

std::string counted(int count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

double bits_per_weight(std::uint64_t bytes, std::uint64_t weights) {
  return weights == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(weights);
}

std::string format_shape(const Shape& shape) {
  std::string text;
  for (const std::size_t extent : shape.extents()) text += fmt::format("{}{}", text.empty() ? "" : " × ", extent);
  return text.empty() ? "scalar" : text;
}

std::string fact(std::string_view label, std::string_view value) { return fmt::format("{:<17}{}\n", label, value); }

std::string printable(std::string_view text) {
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const std::size_t length = byte(at) < 0x80 ? 1 : byte(at) >= 0xF0 ? 4 : byte(at) >= 0xE0 ? 3 : 2;
    bool valid = length <= text.size() - at && (length == 1 || (byte(at) >= 0xC2 && byte(at) <= 0xF4));
    for (std::size_t i = 1; valid && i < length; ++i) valid = (byte(at + i) & 0xC0) == 0x80;
    const bool control = byte(at) < 0x20 || byte(at) == 0x7F || (valid && byte(at) == 0xC2 && byte(at + 1) < 0xA0);
    if (valid && !control) {
      shown += text.substr(at, length);
      at += length;
    } else {
      shown += fmt::format("\\x{:02x}", byte(at));
      ++at;
    }
  }
  return shown;
}

std::string shortened(std::string_view text, std::size_t characters) {
  if (display_width(text) <= characters) return std::string(text);
  std::size_t at = 0;
  for (std::size_t left = characters - 1; left > 0 && at < text.size(); --left) {
    do {
      ++at;
    } while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  }
  return std::string(text.substr(0, at)) + "…";
}

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)), rows_(1) {
  for (const Column& column : columns_) rows_.front().push_back(column.heading);
}

std::string Table::text() const {
  std::vector<std::size_t> widths(columns_.size());
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < widths.size(); ++c) widths[c] = std::max(widths[c], display_width(row.at(c)));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < widths.size(); ++c) {
      const std::string padding(widths[c] - display_width(row[c]), ' ');
      line += (c == 0 ? "" : "  ") + (columns_[c].align == Align::right ? padding + row[c] : row[c] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += (&row == &rows_.front() ? dim(line) : line) + "\n";
  }
  return text;
}

void TypeTotals::add(const std::string& type, std::uint64_t weights, std::uint64_t bytes) {
  Total& total = totals_[type];
  ++total.tensors;
  total.weights += weights;
  total.bytes += bytes;
}

std::vector<std::pair<std::string, TypeTotals::Total>> TypeTotals::sorted() const {
  std::vector<std::pair<std::string, Total>> list(totals_.begin(), totals_.end());
  std::ranges::stable_sort(list, std::ranges::greater{}, [](const auto& entry) { return entry.second.bytes; });
  return list;
}

std::string TypeTotals::table() const {
  using enum Table::Align;
  Table table({{"type"}, {"tensors", right}, {"weights", right}, {"size", right}});
  for (const auto& [type, total] : sorted()) {
    table.add({printable(type), format_count(total.tensors), format_count(total.weights), format_bytes(total.bytes)});
  }
  return table.text();
}

nlohmann::ordered_json TypeTotals::json() const {
  nlohmann::ordered_json types = nlohmann::ordered_json::object();
  for (const auto& [type, total] : sorted()) {
    types[type] = {{"tensors", total.tensors}, {"weights", total.weights}, {"bytes", total.bytes}};
  }
  return types;
}

// ---- progress

namespace {

constexpr const char* kEraseLine = "\r\x1b[K";

std::string minutes_and_seconds(double seconds) {
  const int whole = static_cast<int>(seconds + 0.5);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(bool quiet, std::size_t done_before)
    : visible_(!quiet && is_terminal(STDERR_FILENO)), done_before_(done_before) {}

Progress::~Progress() {
  if (drawn_) std::fputs(kEraseLine, stderr);
}

bool Progress::is_due(std::size_t done, std::size_t total) const {
  if (!visible_ || total == 0) return false;
  return !drawn_ || done >= total || std::chrono::steady_clock::now() - drawn_at_ >= std::chrono::milliseconds(50);
}

void Progress::show(std::size_t done, std::size_t total, std::string_view label, Unit unit) {
  if (!is_due(done, total)) return;
  const auto now = std::chrono::steady_clock::now();
  drawn_at_ = now;
  constexpr std::size_t kBarWidth = 24;
  const std::size_t filled = kBarWidth * done / total;
  const auto amount = [&](std::size_t count) {
    return unit == Unit::bytes ? format_bytes(count) : std::to_string(count);
  };
  std::string line = fmt::format("{}[{}{}] {}/{}", kEraseLine, std::string(filled, '='),
                                 std::string(kBarWidth - filled, ' '), amount(done), amount(total));
  if (done > done_before_) {
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    const double rate = static_cast<double>(done - done_before_) / elapsed;
    const std::string speed =
        unit == Unit::bytes ? format_bytes(static_cast<std::uint64_t>(rate)) : fmt::format("{:.1f}", rate);
    line += fmt::format("  {}/s, {} left", speed, minutes_and_seconds(static_cast<double>(total - done) / rate));
  }
  line += fmt::format("  {}", label);
  std::fputs(line.c_str(), stderr);
  drawn_ = true;
}

void PhasedProgress::operator()(std::string_view phase, std::size_t done, std::size_t total) {
  if (!progress_ || phase != phase_) {
    phase_ = phase;
    progress_.emplace(quiet_);
  }
  progress_->show(done, total, phase_);
}

}  // namespace imago::cli
