#pragma once

// What passes states from token to token: short convolutions and scans, as ops_args.h defines them. The functions check
// their sizes (ShapeError) and split channels and heads over the pool. A sequence gets the same results however its
// tokens are cut into calls, and for any number of threads.

#include <cstddef>
#include <span>

#include "kernels/ops_args.h"

namespace imago::kernels {

/// Rows of x and y have `channels` values; taps are [kernel][channels], the state [kernel - 1][channels]. `y` has rows
/// from token `first_result` on; it may be x if that is 0.
void short_conv(std::span<const float> x, std::size_t channels, std::span<const float> taps,
                std::span<const float> bias, Activation activation, std::span<float> state, std::size_t first_result,
                std::span<float> y);

/// See StepSizeArgs. `step` and `decay` may be empty, `step` may be x.
void step_sizes(std::span<const float> x, std::span<const float> bias, std::span<const float> rate, float low,
                float high, std::span<float> step, std::span<float> decay);

/// The heads of a linear scan. Those of one group share queries and keys.
struct LinearScanShape {
  std::size_t heads = 0, groups = 0;
  std::size_t keys = 0, values = 0;  ///< values of a head
  bool delta = false;                ///< by the delta rule
  /// Head h is of group h % groups, as in GGUF files of qwen3_5; else of group h / (heads / groups).
  bool tiled = false;
  /// With the delta rule: channels go group after group, each with its queries, its keys and the values of its heads,
  /// as in folders of qwen3_next.
  bool grouped = false;

  std::size_t channels() const noexcept { return 2 * groups * keys + heads * values; }
  std::size_t results() const noexcept { return heads * values; }
  std::size_t state() const noexcept { return heads * keys * values; }
  bool operator==(const LinearScanShape&) const = default;
};

/// Makes all keys of length 1 and all queries of length 1 / √keys.
void normalize_keys(const LinearScanShape& shape, std::span<float> channels);

/// A row of channels has queries, keys and values of all heads with the delta rule, and values, keys and queries
/// without it. `decay` and `strength` are [tokens][heads], `skip` is [heads] or empty; the state is
/// [heads][keys][values], in tiles of kStateColumns. `y` has rows from token `first_result` on.
void linear_scan(const LinearScanShape& shape, std::span<const float> channels, std::span<const float> decay,
                 std::span<const float> strength, std::span<const float> skip, std::span<float> state,
                 std::size_t first_result, std::span<float> y);

/// x and step are [tokens][channels], rates and state [states][channels]. A row of `inputs` has what the states take in
/// and what reads them, [states] each.
void channel_scan(std::span<const float> x, std::span<const float> step, std::span<const float> inputs,
                  std::span<const float> rates, std::span<const float> skip, std::span<float> state,
                  std::size_t first_result, std::span<float> y);

}  // namespace imago::kernels
