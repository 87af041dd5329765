#pragma once

// Kernels of short convolutions, and of norms and gates of what scans make.

#include "kernels/cuda/recurrent_shared.cuh"

namespace imago::kernels::cuda {

// ---- short convolutions

inline constexpr unsigned kConvThreads = 128;
/// Tokens of a thread: more than a kernel has taps, so only the first tokens of a sequence see its state.
inline constexpr unsigned kConvTokens = 32;
static_assert(kConvTokens >= kMaxTaps);

struct ConvLaunch {
  ShortConvWork work;
  const StateRun* runs;
  unsigned channel_blocks, chunks;  ///< blocks: for each run, for each chunk of its tokens, for each block of channels
};

/// A thread has a channel. Taps are aligned at the end of an array of kMaxTaps, zeros before them.
__global__ void __launch_bounds__(kConvThreads) short_conv_kernel(const __grid_constant__ ConvLaunch launch) {
  const ShortConvWork& a = launch.work;
  const unsigned channel = blockIdx.x % launch.channel_blocks * kConvThreads + threadIdx.x;
  const unsigned chunk = blockIdx.x / launch.channel_blocks % launch.chunks;
  const StateRun* const runs = launch.runs + blockIdx.x / launch.channel_blocks / launch.chunks;
  const bool is_inside = channel < a.channels;
  const int before = static_cast<int>(a.kernel) - 1, unused = static_cast<int>(kMaxTaps) - 1 - before;
  float taps[kMaxTaps], seen[kMaxTaps] = {};
#pragma unroll
  for (int k = 0; k < static_cast<int>(kMaxTaps); ++k) {
    taps[k] = is_inside && k >= unused ? a.taps[static_cast<std::size_t>(k - unused) * a.channels + channel] : 0.0f;
  }
  const float bias = is_inside && a.bias != nullptr ? a.bias[channel] : 0.0f;
  wait_for_previous();
  const StateRun run = *runs;
  const int begin = static_cast<int>(chunk * kConvTokens);
  if (!is_inside || begin >= run.tokens) return;

  float* const state = run.state + a.state_at + channel;
  // Token t of the run; before the first one are those of the state.
  const auto value = [&](int t) {
    if (t < 0) return run.is_new != 0 ? 0.0f : state[static_cast<std::size_t>(t + before) * a.channels];
    const std::size_t at = static_cast<std::size_t>(run.first + t) * a.channels + channel;
    return a.x_gate == nullptr ? a.x[at] : a.x[at] * a.x_gate[at];
  };
#pragma unroll
  for (int k = 0; k + 1 < static_cast<int>(kMaxTaps); ++k) {
    if (k >= unused) seen[k] = value(begin + k - static_cast<int>(kMaxTaps) + 1);
  }
  if (begin == 0) {
    // This thread alone reads the old state, so it also writes the new one; short runs keep rows of the old one.
    const auto store = [&](float* to, int tokens) {
      float rows[kMaxTaps - 1];
#pragma unroll
      for (int k = 0; k + 1 < static_cast<int>(kMaxTaps); ++k) {
        if (k < before) rows[k] = value(tokens - before + k);
      }
#pragma unroll
      for (int k = 0; k + 1 < static_cast<int>(kMaxTaps); ++k) {
        if (k < before) to[static_cast<std::size_t>(k) * a.channels] = rows[k];
      }
    };
    if (run.kept_tokens != 0) store(run.kept + a.state_at + channel, run.kept_tokens);
    store(state, run.tokens);
  }
  const int end = min(begin + static_cast<int>(kConvTokens), run.tokens);
  constexpr int kTogether = 8;  // loads that are under way at a time
  for (int first = begin; first < end; first += kTogether) {
    const int count = min(kTogether, end - first);
    const std::size_t at = static_cast<std::size_t>(run.first + first) * a.channels + channel;
    float next[kTogether], factor[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      next[i] = i < count ? value(first + i) : 0.0f;
      factor[i] = i < count && a.y_gate != nullptr ? a.y_gate[at + i * a.channels] : 1.0f;
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      seen[kMaxTaps - 1] = next[i];
      float sum = bias;
#pragma unroll
      for (unsigned k = 0; k < kMaxTaps; ++k) sum = fmaf(taps[k], seen[k], sum);
      if (a.silu) sum = activation_of(Activation::silu, sum);
      if (i < count) a.y[at + i * a.channels] = sum * factor[i];
#pragma unroll
      for (unsigned k = 0; k + 1 < kMaxTaps; ++k) seen[k] = seen[k + 1];
    }
  }
}

template <class Launch>
void launch_short_conv(const ShortConvWork& work, const StateRuns& runs, Launch&& launch) {
  const ConvLaunch all{work, runs.runs, blocks_of(work.channels, kConvThreads),
                       blocks_of(runs.most_tokens, kConvTokens)};
  launch("short_conv", short_conv_kernel, static_cast<unsigned>(runs.count) * all.chunks * all.channel_blocks,
         kConvThreads, 0u, all);
}

// ---- norms of results

inline constexpr unsigned kNormGateThreads = 256;

/// A warp for each run of values, or a block if they are many.
template <bool kIsWarp>
__global__ void __launch_bounds__(kNormGateThreads) norm_and_gate_kernel(const __grid_constant__ NormGateWork a) {
  extern __shared__ __align__(16) std::byte memory[];
  const std::uint32_t room = shared_address(memory);
  constexpr unsigned kWarps = kNormGateThreads / 32;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned values = static_cast<unsigned>(a.values);
  const unsigned start = kIsWarp ? lane : threadIdx.x, step = kIsWarp ? 32 : kNormGateThreads;
  const std::size_t run = kIsWarp ? std::size_t{blockIdx.x} * kWarps + warp : blockIdx.x;
  wait_for_previous();
  if (run >= a.rows * (a.cols / a.values)) return;  // whole warps, or no threads of any block
  float* const x = a.x + run * values;
  const float* const gate = a.gate == nullptr ? nullptr : a.gate + run * values;
  const float* const weight = a.weight + run % a.groups * values;
  const auto gated = [&](unsigned i, bool now) {
    return now && gate != nullptr ? activation_of(a.activation, gate[i]) : 1.0f;
  };
  float squares = 0;
  for (unsigned i = start; i < values; i += step) {
    const float v = x[i] * gated(i, a.gate_first);
    squares = fmaf(v, v, squares);
  }
  squares = warp_sum(squares);
  if constexpr (!kIsWarp) {
    if (lane == 0) write_shared(room + 4 * warp, squares);
    __syncthreads();
    squares = 0;
    for (unsigned i = 0; i < kWarps; ++i) squares += read_shared(room + 4 * i);
  }
  const float factor = 1.0f / sqrtf(squares / static_cast<float>(values) + a.eps);
  for (unsigned i = start; i < values; i += step) x[i] = x[i] * gated(i, true) * factor * weight[i];
}

template <class Launch>
void launch_norm_and_gate(const NormGateWork& work, Launch&& launch) {
  constexpr unsigned kWarps = kNormGateThreads / 32;
  constexpr std::size_t kWarpValues = 512;  // more are too many for a warp
  const std::size_t runs = work.rows * (work.cols / work.values);
  if (work.values <= kWarpValues) {
    launch("norm_and_gate", norm_and_gate_kernel<true>, blocks_of(runs, kWarps), kNormGateThreads, 0u, work);
  } else {
    launch("norm_and_gate", norm_and_gate_kernel<false>, static_cast<unsigned>(runs), kNormGateThreads,
           static_cast<unsigned>(kWarps * sizeof(float)), work);
  }
}

}  // namespace imago::kernels::cuda
