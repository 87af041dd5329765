#pragma once

// How far a long piece of work is, for people who watch.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace imago::cli {

/// One line on standard error with a bar, what is under way, the rate and the time left. Silent unless standard error
/// is a terminal and `quiet` is false; drawn anew 20 times a second at most. The line is gone when the object is.
class Progress {
 public:
  /// `done_before`: what was done before this run, and says nothing about its rate.
  explicit Progress(bool quiet, std::size_t done_before = 0);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  enum class Unit : std::uint8_t { steps, bytes };
  /// REQUIRES: done <= total, total > 0.
  void show(std::size_t done, std::size_t total, std::string_view label, Unit unit = Unit::steps);

 private:
  bool visible_;
  std::size_t done_before_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point drawn_at_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace imago::cli
