#pragma once

// What decoders do between matrix products. Each function checks its sizes (ShapeError, UsageError), takes the best
// kernel that IMAGO_KERNELS allows and splits long work over the pool. Results do not depend on the number of
// threads, and lie within 1e-5 of float64 arithmetic on the scale of the operation. Safe from any thread.
// Attention: kernels/attention.h.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops_args.h"

namespace imago::kernels {

/// y = x / sqrt(mean(x²) + eps) · (weight + weight_offset) for each row of weight.size() values. `y` may be `x`.
void rms_norm(std::span<const float> x, std::span<const float> weight, float eps, std::span<float> y,
              float weight_offset = 0);

/// y = (x - mean) / sqrt(variance + eps) · gamma + beta for each row of gamma.size() values. `beta` may be empty:
/// zeros. `y` may be `x`.
void layer_norm(std::span<const float> x, std::span<const float> gamma, std::span<const float> beta, float eps,
                std::span<float> y);

/// Softmax of each row of `cols` values in place, see SoftmaxArgs. Throws UsageError unless scale > 0 and cap >= 0.
void softmax(std::span<float> x, std::size_t cols, float scale = 1, float cap = 0);

struct RopeSettings {
  std::size_t rotary = 0;  ///< values of a head that turn, even
  double base = 10000;
  /// One factor per pair on its frequency base^(-2j/rotary); empty: all 1. Linear scaling by s: 1/s. The tensor
  /// `rope_freqs` of GGUF files holds divisors: pass their reciprocals.
  std::vector<double> frequency_factors = {};
  double attention_factor = 1;  ///< on every cosine and sine (YaRN)
};

/// Cosines and sines of the positions 0 … positions-1, computed in float64. Immutable; 4 · rotary bytes per position.
class RopeTable {
 public:
  /// Throws UsageError for an odd `rotary`, a base that is not positive, or a wrong number of factors.
  RopeTable(const RopeSettings& settings, std::size_t positions);
  std::size_t rotary() const noexcept { return rotary_; }
  std::size_t positions() const noexcept { return positions_; }
  /// rotary/2 cosines, then rotary/2 sines. Throws UsageError past the last position.
  std::span<const float> at(std::size_t position) const;

 private:
  std::size_t rotary_, positions_;
  std::vector<float> cos_sin_;  // [positions][rotary]
};

/// Turns the heads of one or more tokens at consecutive positions: x is [tokens][heads][head_values].
void rope(std::span<float> x, std::size_t heads, std::size_t head_values, const RopeTable& table,
          std::size_t first_position, RopePairs pairs);

/// y = f(x); `y` may be `x`.
void activate(Activation function, std::span<const float> x, std::span<float> y);

/// y = f(gate) · up, as in SwiGLU (silu) and GeGLU (gelu); `y` may be `gate` or `up`.
void activate_mul(Activation function, std::span<const float> gate, std::span<const float> up, std::span<float> y);

/// y += x.
void add(std::span<const float> x, std::span<float> y);
/// y += factor · x.
void add_scaled(std::span<const float> x, float factor, std::span<float> y);
/// y *= factor.
void scale(std::span<float> y, float factor);

/// to = from; both of one length.
void copy(std::span<const float> from, std::span<float> to);
/// y = 0.
void clear(std::span<float> y);

// The same over doubles, in float64 throughout and in plain C++, for layers of float64. Rows and lengths must fit.

void rms_norm(std::span<const double> x, std::span<const double> weight, double eps, std::span<double> y);
void layer_norm(std::span<const double> x, std::span<const double> gamma, std::span<const double> beta, double eps,
                std::span<double> y);
void softmax(std::span<double> x, std::size_t cols, double scale = 1);
void activate(Activation function, std::span<const double> x, std::span<double> y);
void activate_mul(Activation function, std::span<const double> gate, std::span<const double> up, std::span<double> y);
void add(std::span<const double> x, std::span<double> y);
void add_scaled(std::span<const double> x, double factor, std::span<double> y);
void scale(std::span<double> y, double factor);
void copy(std::span<const double> from, std::span<double> to);

/// One step of an optimizer, see UpdateArgs. The pointers of `args` are those of whole arrays.
void update(const UpdateArgs& args);
/// The sum of SquaresArgs over one range, on the calling thread.
double clipped_squares(std::span<const float> x, float bound);

}  // namespace imago::kernels
