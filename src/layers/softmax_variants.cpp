#include "layers/softmax_variants.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>
#include <limits>

#include "weights/random.h"

namespace imago::layers {

namespace {

/// The largest value, or NaN for a row that has no meaning: values compare with it as with any other only if it is
/// finite.
double peak(std::span<const float> z) noexcept {
  float largest = -std::numeric_limits<float>::infinity();
  for (const float value : z) {
    if (std::isnan(value)) return std::numeric_limits<double>::quiet_NaN();
    largest = std::max(largest, value);
  }
  return std::isfinite(largest) ? static_cast<double>(largest) : std::numeric_limits<double>::quiet_NaN();
}

/// x^exponent for x > 0; the default alpha, 1.5, needs a square and a square root only.
double power(double x, double exponent) noexcept {
  if (exponent == 2) return x * x;
  if (exponent == 0.5) return std::sqrt(x);
  if (exponent == 1) return x;
  return std::pow(x, exponent);
}

/// One row of entmax on its way: values relative to the largest, so that tau lies in [-1, 0).
struct EntmaxRow {
  std::span<const float> z;
  double largest, factor, exponent;

  double probability(std::size_t i, double tau) const noexcept {
    const double above = factor * (static_cast<double>(z[i]) - largest) - tau;
    return above > 0 ? power(above, exponent) : 0;
  }
  double sum(double tau) const noexcept {
    double total = 0;
    for (std::size_t i = 0; i < z.size(); ++i) total += probability(i, tau);
    return total;
  }
};

/// Between tau = -1, where the largest value alone gives 1, and the tau where it gives 1/n and the others no more.
double find_tau(const EntmaxRow& row) noexcept {
  double low = -1;
  double high = -std::pow(static_cast<double>(row.z.size()), -row.factor);
  for (;;) {
    const double middle = low + (high - low) / 2;
    if (!(middle > low && middle < high)) return low;
    (row.sum(middle) >= 1 ? low : high) = middle;
  }
}

}  // namespace

void add_gumbel_noise(std::span<float> z, std::uint64_t seed, std::size_t first) {
  for (std::size_t i = 0; i < z.size(); ++i) {
    const double u = static_cast<double>(derive_seed(seed, first + i) >> 11) * 0x1p-53;  // below 1
    z[i] += static_cast<float>(-std::log(-std::log(std::max(u, 1e-10))));
  }
}

void sparsemax(std::span<const float> z, std::span<float> p) {
  assert(z.size() == p.size() && z.data() != p.data());
  const double largest = peak(z);
  if (std::isnan(largest)) {
    std::ranges::fill(p, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  std::ranges::copy(z, p.begin());
  std::ranges::sort(p, std::greater<>());
  double sum = 0;
  double tau = 0;
  for (std::size_t k = 0; k < p.size(); ++k) {  // relative to the largest: no digits are lost to a common offset
    const double value = static_cast<double>(p[k]) - largest;
    const double mean = (sum + value - 1) / static_cast<double>(k + 1);
    if (!(value > mean)) break;
    sum += value;
    tau = mean;
  }
  for (std::size_t i = 0; i < z.size(); ++i) {
    p[i] = static_cast<float>(std::max(0.0, static_cast<double>(z[i]) - largest - tau));
  }
}

void entmax(std::span<const float> z, double alpha, std::span<float> p) {
  assert(z.size() == p.size() && alpha > 1 && alpha < 2);
  const EntmaxRow row{.z = z, .largest = peak(z), .factor = alpha - 1, .exponent = 1 / (alpha - 1)};
  if (std::isnan(row.largest)) {
    std::ranges::fill(p, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const double tau = find_tau(row);
  for (std::size_t i = 0; i < z.size(); ++i) p[i] = static_cast<float>(row.probability(i, tau));
}

void simplex_backward(std::span<const float> p, double alpha, float temperature, std::span<const float> grad_p,
                      std::span<float> grad_z) {
  const auto slope = [&](std::size_t i) {
    return p[i] > 0 ? power(static_cast<double>(p[i]), 2 - alpha) : static_cast<double>(p[i]);  // NaN stays
  };
  double slopes = 0;
  double weighted = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double s = slope(i);
    slopes += s;
    weighted += s * static_cast<double>(grad_p[i]);
  }
  const double mean = slopes == 0 ? 0 : weighted / slopes;  // a row of zeros: softmax of nothing but -inf
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double gradient = slope(i) * (static_cast<double>(grad_p[i]) - mean);
    grad_z[i] = static_cast<float>(gradient / static_cast<double>(temperature));
  }
}

}  // namespace imago::layers
