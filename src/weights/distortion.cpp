#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "imago/error.h"
#include "imago/weights.h"

namespace imago {

namespace {

struct Sums {
  double signal = 0;   // Σ reference²
  double other = 0;    // Σ got²
  double product = 0;  // Σ reference · got
  double noise = 0;    // Σ (reference - got)²
  double max_error = 0;

  void add(double reference, double got) {
    const double error = reference - got;
    signal += reference * reference;
    other += got * got;
    product += reference * got;
    noise += error * error;
    max_error = std::max(max_error, std::fabs(error));
  }
  void add(const Sums& more) {
    signal += more.signal;
    other += more.other;
    product += more.product;
    noise += more.noise;
    max_error = std::max(max_error, more.max_error);
  }
};

// Parts of fixed length, added up in order: the result does not depend on the number of threads.
constexpr std::size_t kPart = 16384;

Sums sum_all(std::span<const float> reference, std::span<const float> got) {
  std::vector<Sums> parts((reference.size() + kPart - 1) / kPart);
  parallel_rows(parts.size(), kPart, [&](std::size_t part) {
    const std::size_t last = std::min(reference.size(), (part + 1) * kPart);
    for (std::size_t i = part * kPart; i < last; ++i) {
      parts[part].add(static_cast<double>(reference[i]), static_cast<double>(got[i]));
    }
  });
  Sums total;
  for (const Sums& part : parts) total.add(part);
  return total;
}

double cosine(const Sums& sums) {
  if (sums.noise == 0) return 1;  // equal, both zero included; rounding must not say otherwise
  if (sums.signal == 0 || sums.other == 0) return 0;
  return std::clamp(sums.product / (std::sqrt(sums.signal) * std::sqrt(sums.other)), -1.0, 1.0);
}

}  // namespace

Distortion measure_distortion(std::span<const float> reference, std::span<const float> got) {
  if (reference.size() != got.size()) {
    throw ShapeError(fmt::format("{} weights cannot be compared with {}", got.size(), reference.size()));
  }
  const Sums sums = sum_all(reference, got);
  Distortion distortion;
  distortion.cosine = cosine(sums);
  distortion.max_error = sums.max_error;
  distortion.sqnr_db = std::numeric_limits<double>::infinity();
  if (sums.noise == 0) return distortion;
  distortion.rmse = std::sqrt(sums.noise / static_cast<double>(reference.size()));
  distortion.relative_rmse = std::sqrt(sums.noise / sums.signal);  // infinite for a reference of zeros
  distortion.sqnr_db = 10 * std::log10(sums.signal / sums.noise);
  return distortion;
}

}  // namespace imago
