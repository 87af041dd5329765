#pragma once

// Progress of long operations, on a terminal.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace imago::cli {

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
