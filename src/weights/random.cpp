#include "weights/random.h"

#include <bit>
#include <cmath>

#include "base/parallel.h"

namespace imago {

namespace {

constexpr std::size_t kGrain = 4096;
constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio, odd

/// The output function of splitmix64 (Steele, Lea, Flood 2014): a bijection that scatters neighbouring inputs.
std::uint64_t mix(std::uint64_t z) noexcept {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// The random numbers of one weight: a splitmix64 sequence that starts where seed and index say.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t index) noexcept : state_(mix(seed + kStep) + mix(index)) {}

  /// Uniform in [-1, 1): 53 bits.
  double next() noexcept {
    state_ += kStep;
    return static_cast<double>(mix(state_) >> 11) * 0x1p-52 - 1;
  }

 private:
  std::uint64_t state_;
};

/// ln x by x = m · 2^e with m around 1 and ln m = 2·artanh((m-1)/(m+1)). REQUIRES: x is positive and normal.
/// |t| <= 0.172, so the first term left out, t^23 / 23, is below 2^-60 of the sum.
double exact_steps_log(double x) noexcept {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double mantissa = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFu) | 0x3FF0000000000000u);
  if (mantissa > 1.4142135623730951) {
    mantissa /= 2;
    ++exponent;
  }
  const double t = (mantissa - 1) / (mantissa + 1);
  double series = 0;
  for (int odd = 21; odd >= 1; odd -= 2) series = series * (t * t) + 1.0 / odd;
  return exponent * 0.6931471805599453 + 2 * t * series;
}

/// Marsaglia's polar method: a point in the unit disc; its direction and its distance are independent.
double normal(Draws draws) noexcept {
  for (;;) {
    const double x = draws.next();
    const double y = draws.next();
    const double square = x * x + y * y;
    if (square > 0 && square < 1) return x * std::sqrt(-2 * exact_steps_log(square) / square);
  }
}

}  // namespace

std::uint64_t derive_seed(std::uint64_t seed, std::uint64_t index) noexcept {
  return mix(mix(seed) + (index + 1) * kStep);  // each step a bijection of the index: no two parts share a seed
}

void fill_uniform(std::span<float> weights, std::uint64_t seed, float range) {
  parallel_for(weights.size(), kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      weights[i] = static_cast<float>(static_cast<double>(range) * Draws(seed, i).next());
    }
  });
}

void fill_normal(std::span<float> weights, std::uint64_t seed, double deviation) {
  parallel_for(weights.size(), kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) weights[i] = static_cast<float>(deviation * normal(Draws(seed, i)));
  });
}

}  // namespace imago
