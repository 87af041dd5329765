#pragma once

// What passes states from token to token on a CUDA device, as kernels/ops_args.h defines it: short convolutions and
// scans of several sequences at once, each over all of its tokens in one launch. Pointers are device memory, and
// callers check sizes. Free of CUDA types, so that any host code may include it.

#include <cstddef>
#include <cstdint>

#include "device/cuda/stream.h"
#include "kernels/ops_args.h"
#include "kernels/recurrent.h"

namespace imago::kernels::cuda {

using imago::cuda::Stream;

/// The tokens of one sequence in a batch, and its states in one block.
struct alignas(16) StateRun {
  float* state;              ///< of the block; each step has some values of it
  float* kept;               ///< where they are copied to after `kept_tokens` of the tokens
  std::int32_t first;        ///< in the batch
  std::int32_t tokens;       ///< at least 1
  std::int32_t kept_tokens;  ///< 0: they are not copied
  std::int32_t is_new;       ///< states are zeros before the first token, whatever the memory holds
};

/// The sequences of a batch. The runs are in device memory, so that a recorded graph reads current ones.
struct StateRuns {
  const StateRun* runs;
  std::size_t count;
  std::size_t most_tokens;  ///< of a run: determines how much work is launched
};

/// ShortConvArgs for whole rows of x and y, which must not overlap.
struct ShortConvWork {
  const float* x;
  const float* x_gate = nullptr;  ///< x is multiplied by it; null: it is not
  float* y;
  const float* y_gate = nullptr;  ///< likewise
  const float* taps;
  const float* bias = nullptr;
  std::size_t channels, kernel;
  std::size_t state_at;  ///< where its values begin in StateRun::state
  bool silu = false;
};
void short_conv(const ShortConvWork& work, const StateRuns& runs, Stream& stream);

/// Scans with more keys are not supported.
inline constexpr std::size_t kMostScanKeys = 256;

/// linear_scan of kernels/recurrent.h from raw sizes of steps, which it turns into decay and strength. With the delta
/// rule it also normalizes queries and keys, and the strength is the sigmoid of `gate`.
struct LinearScanWork {
  LinearScanShape shape;
  const float* channels;        ///< [tokens][shape.channels()]
  const float* step;            ///< [tokens][heads]
  const float* gate = nullptr;  ///< [tokens][heads], with the delta rule only
  const float* step_bias;       ///< [heads]
  const float* decay_rate;      ///< [heads]
  const float* skip = nullptr;  ///< [heads]; null: zeros
  float low_step, high_step;
  float* y;              ///< [tokens][shape.results()]
  std::size_t state_at;  ///< as in ShortConvWork
};
/// REQUIRES: shape.keys <= kMostScanKeys.
void linear_scan(const LinearScanWork& work, const StateRuns& runs, Stream& stream);

/// Scans of channels with more states are not supported.
inline constexpr std::size_t kMostChannelStates = 64;

/// channel_scan of kernels/recurrent.h, from raw sizes of steps.
struct ChannelScanWork {
  const float* x;           ///< [tokens][channels]
  const float* step;        ///< likewise
  const float* inputs;      ///< [tokens][2 · states]
  const float* step_bias;   ///< [channels]
  const float* decay_rate;  ///< [states][channels]
  const float* skip;        ///< [channels]
  float* y;                 ///< [tokens][channels]
  std::size_t channels, states;
  std::size_t state_at;
};
/// REQUIRES: states <= kMostChannelStates.
void channel_scan(const ChannelScanWork& work, const StateRuns& runs, Stream& stream);

/// In place, an RMS norm of each run of `values` values, and a product with f(gate) before or after it. The weights are
/// those of `groups` runs.
struct NormGateWork {
  float* x;  ///< [rows][cols]
  std::size_t rows, cols, values, groups;
  const float* weight;  ///< [groups · values]
  float eps;
  const float* gate = nullptr;  ///< [rows][cols]; null: a norm alone
  Activation activation = Activation::linear;
  bool gate_first = false;
};
/// REQUIRES: cols is a multiple of `values`.
void norm_and_gate(const NormGateWork& work, Stream& stream);

}  // namespace imago::kernels::cuda
