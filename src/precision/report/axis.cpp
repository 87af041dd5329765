#include "precision/report/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace imago::precision {

namespace {

/// 1, 2 or 5 times a power of ten, at least `step`.
double round_step(double step) {
  const double power = std::pow(10.0, std::floor(std::log10(step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= step * 0.999) return factor * power;
  }
  return 10 * power;
}

std::string power_label(AxisScale scale, int exponent) {
  if (scale == AxisScale::log2) return fmt::format("{:g}", std::pow(2.0, exponent));
  return exponent >= -4 && exponent <= 4 ? fmt::format("{:g}", std::pow(10.0, exponent))
                                         : fmt::format("1e{}", exponent);
}

}  // namespace

Axis::Axis(AxisScale scale, double low, double high, double from, double to, int ticks)
    : scale_(scale), low_(position(low)), high_(position(high)), from_(from), to_(to) {
  if (scale_ == AxisScale::linear) {
    tick_linear(ticks);
  } else {
    tick_powers(ticks);
  }
}

double Axis::position(double value) const noexcept {
  if (scale_ == AxisScale::linear) return value;
  return scale_ == AxisScale::log2 ? std::log2(value) : std::log10(value);
}

double Axis::place(double value) const noexcept {
  const double share = std::clamp((position(value) - low_) / (high_ - low_), 0.0, 1.0);
  return from_ + share * (to_ - from_);
}

void Axis::tick_linear(int ticks) {
  if (!(high_ > low_)) high_ = low_ + std::max(1e-12, std::abs(low_));
  const double step = round_step((high_ - low_) / ticks);
  low_ = std::floor(low_ / step + 1e-9) * step;
  high_ = std::ceil(high_ / step - 1e-9) * step;
  const int count = static_cast<int>(std::round((high_ - low_) / step));
  for (int i = 0; i <= count; ++i) {
    const double value = low_ + i * step;
    ticks_.push_back({place(value), fmt::format("{:.4g}", std::abs(value) < step / 1000 ? 0.0 : value)});
  }
}

void Axis::tick_powers(int ticks) {
  low_ = std::floor(low_ + 1e-9);
  high_ = std::max(std::ceil(high_ - 1e-9), low_ + 1);
  const int first = static_cast<int>(low_), last = static_cast<int>(high_);
  const int step = std::max(1, (last - first + ticks - 1) / ticks);
  for (int exponent = first; exponent <= last; exponent += step) {
    const double value = std::pow(scale_ == AxisScale::log2 ? 2.0 : 10.0, exponent);
    ticks_.push_back({place(value), power_label(scale_, exponent)});
  }
}

}  // namespace imago::precision
