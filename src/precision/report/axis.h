#pragma once

// Values to places on a chart, and the marks along it.

#include <cstdint>
#include <string>
#include <vector>

namespace imago::precision {

enum class AxisScale : std::uint8_t { linear, log2, log10 };

struct AxisTick {
  double place = 0;
  std::string label;
};

class Axis {
 public:
  /// From `low` at place `from` to `high` at place `to`, both widened to round values. Logarithmic scales need
  /// low > 0. `ticks`: about as many marks.
  Axis(AxisScale scale, double low, double high, double from, double to, int ticks = 6);

  /// Values outside are put at the nearer end.
  double place(double value) const noexcept;
  const std::vector<AxisTick>& ticks() const noexcept { return ticks_; }

 private:
  double position(double value) const noexcept;  // on the scale
  void tick_linear(int ticks);
  void tick_powers(int ticks);

  AxisScale scale_;
  double low_, high_;  // on the scale: logarithms of logarithmic ones
  double from_, to_;
  std::vector<AxisTick> ticks_;
};

}  // namespace imago::precision
