#pragma once

// Kernels of scans. A block takes the tokens of a sequence one after the other with its part of the state in registers,
// so a prompt is one launch; blocks share out the heads and columns of states, which do not depend on each other.
// Tokens come through shared memory, the next ones while the present ones are computed.

#include <type_traits>

#include "kernels/cuda/recurrent_shared.cuh"

namespace imago::kernels::cuda {

/// ln(1 + e^x).
__device__ inline float softplus_of(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// ---- linear scans

/// Lanes that share columns of a state: each has the keys of every eighth vector of four, so that their loads of a row
/// of keys fall into different banks.
inline constexpr unsigned kScanParts = 8;
/// Columns of a thread: with one, loads of keys and queries from shared memory take longer than the arithmetic.
inline constexpr unsigned kScanColumns = 2;
inline constexpr unsigned kScanThreads = kScanParts * kStateColumns / kScanColumns;

struct ScanLaunch {
  LinearScanWork work;
  const StateRun* runs;
  std::size_t stride, y_stride;  ///< of rows of channels and of results
  bool is_aligned;               ///< keys, queries and values lie in whole vectors of four
  unsigned tiles;                ///< of kStateColumns columns, in a head. Blocks: for each run, each head, each tile
};

/// Tokens in shared memory: of each its keys, its queries, its values in the columns of the block, and its scalars. Two
/// stages take turns.
template <int kVectors>
struct ScanStage {
  static constexpr unsigned kKeys = 4 * kScanParts * kVectors;
  static constexpr unsigned kTokens = kVectors <= 4 ? 16 : 8;
  static constexpr unsigned kQueryAt = kKeys, kValueAt = 2 * kKeys, kScalarsAt = kValueAt + kStateColumns;
  static constexpr unsigned kFloats = kScalarsAt + 8;  ///< of a token
  static constexpr unsigned kBytes = 2 * kTokens * kFloats * sizeof(float);
  static_assert(kBytes <= 48u << 10);
};

/// Where a head finds its queries, keys and values in a row of channels.
struct HeadPlaces {
  std::size_t query, key, value;
};
IMAGO_HD HeadPlaces places_of_head(const LinearScanShape& shape, std::size_t head) noexcept {
  const std::size_t group_heads = shape.heads / shape.groups, all_keys = shape.groups * shape.keys;
  const std::size_t group = shape.tiled ? head % shape.groups : head / group_heads;
  if (shape.grouped) {
    const std::size_t first = group * (2 * shape.keys + group_heads * shape.values);
    return {first, first + shape.keys, first + 2 * shape.keys + head % group_heads * shape.values};
  }
  const std::size_t value = head * shape.values, own = group * shape.keys;
  if (shape.delta) return {own, all_keys + own, 2 * all_keys + value};
  const std::size_t all_values = shape.heads * shape.values;
  return {all_values + all_keys + own, all_values + own, value};
}

/// Turns the raw sizes of steps and gates into what updates need: a warp for four of the tokens of a stage, eight lanes
/// for each. The lengths of keys and queries become factors of sums, so that the rows stay as they are.
template <int kVectors, bool kDelta>
__device__ inline void make_scan_scalars(const LinearScanWork& a, std::uint32_t stage, unsigned count, float bias,
                                         float rate) {
  using Stage = ScanStage<kVectors>;
  constexpr float kEps = 1e-6f;  // as in normalize_keys
  const unsigned part = threadIdx.x % kScanParts, token = threadIdx.x / kScanParts;
  if (threadIdx.x / 32 * (32 / kScanParts) >= count) return;  // whole warps
  const std::uint32_t row = stage + 4 * min(token, count - 1) * Stage::kFloats;
  float key_squares = 0, query_squares = 0, both = 0;
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const unsigned at = 4 * (part + kScanParts * static_cast<unsigned>(j));
    float k[4], q[4];
    read_shared(row + 4 * at, k);
    read_shared(row + 4 * (Stage::kQueryAt + at), q);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      key_squares = fmaf(k[i], k[i], key_squares);
      query_squares = fmaf(q[i], q[i], query_squares);
      both = fmaf(k[i], q[i], both);
    }
  }
#pragma unroll
  for (unsigned step = 1; step < kScanParts; step *= 2) {
    both += __shfl_xor_sync(~0u, both, step);
    if constexpr (kDelta) {
      key_squares += __shfl_xor_sync(~0u, key_squares, step);
      query_squares += __shfl_xor_sync(~0u, query_squares, step);
    }
  }
  if (part != 0 || token >= count) return;
  float of_key = 1, of_query = 1;
  if constexpr (kDelta) {
    of_key = 1.0f / sqrtf(key_squares + kEps);
    of_query = 1.0f / sqrtf((query_squares + kEps) * static_cast<float>(a.shape.keys));
  }
  const std::uint32_t scalars = row + 4 * Stage::kScalarsAt;
  const float step = fminf(a.high_step, fmaxf(a.low_step, softplus_of(read_shared(scalars) + bias)));
  const float decay = expf(step * rate);
  const float strength = kDelta ? sigmoid_of(read_shared(scalars + 4)) : step;
  write_shared(scalars, decay);
  write_shared(scalars + 4, strength);
  write_shared(scalars + 8, decay * of_key);
  write_shared(scalars + 12, of_key);
  write_shared(scalars + 16, decay * of_query);
  write_shared(scalars + 20, both * of_key * of_query);
}

/// What a thread has of a row of keys or queries.
template <int kVectors>
__device__ inline void read_row(std::uint32_t row, unsigned part, float (&to)[kVectors][4]) {
#pragma unroll
  for (int j = 0; j < kVectors; ++j) read_shared(row + 16 * (part + kScanParts * static_cast<unsigned>(j)), to[j]);
}

/// Σ of the products of a column of the state with a row, of this thread's keys.
template <int kVectors>
__device__ inline float dot_column(const float (&s)[kVectors][4], const float (&row)[kVectors][4]) {
  float sums[4] = {};
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = fmaf(row[j][i], s[j][i], sums[i]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// S = decay · S + k ⊗ u with u = strength · (v - decay · Sᵀ k), and y = decay · Sᵀ q + (k · q) · u + skip · v with the
/// old S: one pass over the state finds both sums.
template <int kVectors, bool kDelta>
__global__ void __launch_bounds__(kScanThreads) linear_scan_kernel(const __grid_constant__ ScanLaunch launch) {
  using Stage = ScanStage<kVectors>;
  extern __shared__ __align__(16) std::byte memory[];
  const std::uint32_t room = shared_address(memory);
  const LinearScanWork& a = launch.work;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned part = threadIdx.x % kScanParts, column = threadIdx.x / kScanParts * kScanColumns;
  const unsigned units = static_cast<unsigned>(a.shape.heads) * launch.tiles, unit = blockIdx.x % units;
  const std::size_t head = unit / launch.tiles, first_column = unit % launch.tiles * kStateColumns;
  const unsigned keys = static_cast<unsigned>(a.shape.keys);
  const unsigned width = static_cast<unsigned>(min(kStateColumns, a.shape.values - first_column));
  const HeadPlaces places = places_of_head(a.shape, head);
  const float bias = a.step_bias[head], rate = a.decay_rate[head], skip = a.skip == nullptr ? 0.0f : a.skip[head];
  if (keys != Stage::kKeys || width != kStateColumns) {  // what no token fills must not disturb sums
    for (unsigned i = threadIdx.x; i < Stage::kBytes / 4; i += kScanThreads) store_shared(room + 4 * i, 0);
    __syncthreads();
  }
  wait_for_previous();
  const StateRun run = launch.runs[blockIdx.x / units];
  const unsigned tokens = static_cast<unsigned>(run.tokens);

  const auto stage_at = [&](unsigned stage) { return room + 4 * (stage % 2 * Stage::kTokens) * Stage::kFloats; };
  const auto fetch = [&](unsigned stage) {
    for (unsigned t = warp; t < Stage::kTokens && stage * Stage::kTokens + t < tokens; t += kScanThreads / 32) {
      const std::size_t token = static_cast<std::size_t>(run.first) + stage * Stage::kTokens + t;
      const float* const from = a.channels + token * launch.stride;
      const float* const value = from + places.value + first_column;
      const std::uint32_t to = stage_at(stage) + 4 * t * Stage::kFloats;
      if (launch.is_aligned) {
        for (unsigned i = 4 * lane; i < keys; i += 128) {
          copy_four_to_shared(to + 4 * i, from + places.key + i);
          copy_four_to_shared(to + 4 * (Stage::kQueryAt + i), from + places.query + i);
        }
        if (4 * lane < width) copy_four_to_shared(to + 4 * (Stage::kValueAt + 4 * lane), value + 4 * lane);
      } else {
        for (unsigned i = lane; i < keys; i += 32) {
          copy_to_shared(to + 4 * i, from + places.key + i);
          copy_to_shared(to + 4 * (Stage::kQueryAt + i), from + places.query + i);
        }
        if (lane < width) copy_to_shared(to + 4 * (Stage::kValueAt + lane), value + lane);
      }
      const std::uint32_t scalars = to + 4 * Stage::kScalarsAt;
      if (lane == 0) copy_to_shared(scalars, a.step + token * a.shape.heads + head);
      if (kDelta && lane == 1) copy_to_shared(scalars + 4, a.gate + token * a.shape.heads + head);
    }
    end_copies();
  };
  // Where the first key of the first column is in a state; those of a vector follow `width` apart.
  const std::size_t state_at = a.state_at + head * keys * a.shape.values + first_column * keys + column;
  const auto key_of = [&](int j, int i) { return 4 * (part + kScanParts * static_cast<unsigned>(j)) + i; };

  fetch(0);
  float s[kScanColumns][kVectors][4];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (unsigned c = 0; c < kScanColumns; ++c) {
        const bool has = run.is_new == 0 && column + c < width && key_of(j, i) < keys;
        s[c][j][i] = has ? run.state[state_at + key_of(j, i) * width + c] : 0.0f;
      }
    }
  }
  const auto store = [&](float* to) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (unsigned c = 0; c < kScanColumns; ++c) {
          if (column + c < width && key_of(j, i) < keys) to[state_at + key_of(j, i) * width + c] = s[c][j][i];
        }
      }
    }
  };

  // Rows of the next token come while one is computed, where there are registers for them.
  constexpr bool kAhead = kVectors <= 4;
  // Of each four neighbouring parts one writes the results of one of the columns.
  static_assert(kScanParts == 8 && kScanColumns == 2);
  const unsigned own = part / 4;
  const bool writes = part % 4 == 0 && column + own < width;
  float* y =
      a.y + static_cast<std::size_t>(run.first) * launch.y_stride + head * a.shape.values + first_column + column + own;
  for (unsigned stage = 0; stage * Stage::kTokens < tokens; ++stage) {
    wait_for_copies<0>();
    __syncthreads();  // this stage is there, and nobody reads the other one any more
    fetch(stage + 1);
    const unsigned first = stage * Stage::kTokens, count = min(Stage::kTokens, tokens - first);
    make_scan_scalars<kVectors, kDelta>(a, stage_at(stage), count, bias, rate);
    __syncthreads();
    std::uint32_t row = stage_at(stage);
    float k[kVectors][4], q[kVectors][4];
    const auto read_rows = [&](float(&keys_to)[kVectors][4], float(&queries_to)[kVectors][4]) {
      read_row(row, part, keys_to);
      read_row(row + 4 * Stage::kQueryAt, part, queries_to);
    };
    if constexpr (kAhead) read_rows(k, q);
#pragma unroll 2
    for (unsigned t = 0; t < count; ++t) {
      float scalars[4], more[4];
      read_shared(row + 4 * Stage::kScalarsAt, scalars);
      read_shared(row + 4 * Stage::kScalarsAt + 16, more);
      const std::uint32_t values = row + 4 * (Stage::kValueAt + column);
      const float value[kScanColumns] = {read_shared(values), read_shared(values + 4)};
      if constexpr (!kAhead) read_rows(k, q);
      if (t + 1 < count) row += 4 * Stage::kFloats;
      float next_k[kVectors][4], next_q[kVectors][4];
      if constexpr (kAhead) read_rows(next_k, next_q);

      const float decay = scalars[0], strength = scalars[1];
      float found[kScanColumns] = {}, update[kScanColumns];
      if constexpr (kDelta) {
#pragma unroll
        for (unsigned c = 0; c < kScanColumns; ++c) found[c] = dot_column(s[c], k);
#pragma unroll
        for (unsigned step = 1; step < kScanParts; step *= 2) {
#pragma unroll
          for (unsigned c = 0; c < kScanColumns; ++c) found[c] += __shfl_xor_sync(~0u, found[c], step);
        }
      }
      // Each half of the parts sums up its own column.
      const float seen[kScanColumns] = {dot_column(s[0], q), dot_column(s[1], q)};
      float own_seen = own == 0 ? seen[0] : seen[1];
      own_seen += __shfl_xor_sync(~0u, own == 0 ? seen[1] : seen[0], 4);
      own_seen += __shfl_xor_sync(~0u, own_seen, 2);
      own_seen += __shfl_xor_sync(~0u, own_seen, 1);
#pragma unroll
      for (unsigned c = 0; c < kScanColumns; ++c) {
        update[c] = strength * (kDelta ? value[c] - scalars[2] * found[c] : value[c]);
        const float of_key = update[c] * scalars[3];
#pragma unroll
        for (int j = 0; j < kVectors; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) s[c][j][i] = fmaf(k[j][i], of_key, decay * s[c][j][i]);
        }
      }
      if (writes) {
        *y = fmaf(more[0], own_seen,
                  fmaf(more[1], own == 0 ? update[0] : update[1], skip * (own == 0 ? value[0] : value[1])));
      }
      y += launch.y_stride;
      if (first + t + 1 == static_cast<unsigned>(run.kept_tokens)) store(run.kept);
      if constexpr (kAhead) {
#pragma unroll
        for (int j = 0; j < kVectors; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) k[j][i] = next_k[j][i], q[j][i] = next_q[j][i];
        }
      }
    }
  }
  store(run.state);
}

template <class Launch>
void launch_linear_scan(const LinearScanWork& work, const StateRuns& runs, Launch&& launch) {
  const std::size_t stride = work.shape.channels();
  const bool is_aligned = work.shape.keys % 4 == 0 && work.shape.values % 4 == 0 && stride % 4 == 0 &&
                          reinterpret_cast<std::uintptr_t>(work.channels) % 16 == 0;
  const ScanLaunch all{
      work, runs.runs, stride, work.shape.results(), is_aligned, blocks_of(work.shape.values, kStateColumns)};
  const auto with = [&]<int kVectors>(std::integral_constant<int, kVectors>) {
    launch("linear_scan", work.shape.delta ? linear_scan_kernel<kVectors, true> : linear_scan_kernel<kVectors, false>,
           static_cast<unsigned>(runs.count * work.shape.heads) * all.tiles, kScanThreads, ScanStage<kVectors>::kBytes,
           all);
  };
  static_assert(ScanStage<8>::kKeys == kMostScanKeys);
  if (work.shape.keys <= ScanStage<1>::kKeys) return with(std::integral_constant<int, 1>());
  if (work.shape.keys <= ScanStage<2>::kKeys) return with(std::integral_constant<int, 2>());
  if (work.shape.keys <= ScanStage<4>::kKeys) return with(std::integral_constant<int, 4>());
  with(std::integral_constant<int, 8>());
}

// ---- scans of channels

/// Lanes that share a channel: each has some of its states.
inline constexpr unsigned kChannelParts = 4;
inline constexpr unsigned kBlockChannels = 64;
inline constexpr unsigned kChannelThreads = kChannelParts * kBlockChannels;
inline constexpr unsigned kChannelTokens = 16;

struct ChannelLaunch {
  ChannelScanWork work;
  const StateRun* runs;
  unsigned channel_blocks;  ///< blocks: for each run, for each block of channels
};

/// Of a token in shared memory: x and steps of the channels of the block, then what states take in and what reads them.
template <int kStates>
struct ChannelStage {
  static constexpr unsigned kAll = kChannelParts * kStates;
  static constexpr unsigned kStepAt = kBlockChannels, kInAt = 2 * kBlockChannels, kOutAt = kInAt + kAll;
  static constexpr unsigned kFloats = kOutAt + kAll;
  static constexpr unsigned kBytes = 2 * kChannelTokens * kFloats * sizeof(float);
  static_assert(kBytes <= 48u << 10);
};

/// kStates: those of a lane.
template <int kStates>
__global__ void __launch_bounds__(kChannelThreads) channel_scan_kernel(const __grid_constant__ ChannelLaunch launch) {
  using Stage = ChannelStage<kStates>;
  extern __shared__ __align__(16) std::byte memory[];
  const std::uint32_t room = shared_address(memory);
  const ChannelScanWork& a = launch.work;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned part = threadIdx.x % kChannelParts, column = threadIdx.x / kChannelParts;
  const std::size_t first_channel = std::size_t{blockIdx.x % launch.channel_blocks} * kBlockChannels;
  const unsigned width = static_cast<unsigned>(min(std::size_t{kBlockChannels}, a.channels - first_channel));
  const std::size_t channel = first_channel + column;
  const unsigned states = static_cast<unsigned>(a.states);
  const bool is_inside = column < width;
  // Steps are prepared by a thread for each channel of the block.
  const unsigned prepared = threadIdx.x % kBlockChannels;
  const float bias = prepared < width ? a.step_bias[first_channel + prepared] : 0.0f;
  const float skip = is_inside ? a.skip[channel] : 0.0f;
  constexpr float kLog2E = 1.44269504f;
  float rate[kStates], h[kStates];
#pragma unroll
  for (int i = 0; i < kStates; ++i) {
    const unsigned n = part * kStates + i;
    rate[i] = is_inside && n < states ? kLog2E * a.decay_rate[n * a.channels + channel] : 0.0f;
  }
  if (states != Stage::kAll || width != kBlockChannels) {
    for (unsigned i = threadIdx.x; i < Stage::kBytes / 4; i += kChannelThreads) store_shared(room + 4 * i, 0);
    __syncthreads();
  }
  wait_for_previous();
  const StateRun run = launch.runs[blockIdx.x / launch.channel_blocks];
  const unsigned tokens = static_cast<unsigned>(run.tokens);

  const auto row_of = [&](unsigned stage, unsigned t) {
    return room + 4 * (stage % 2 * kChannelTokens + t) * Stage::kFloats;
  };
  const auto fetch = [&](unsigned stage) {
    for (unsigned t = warp; t < kChannelTokens && stage * kChannelTokens + t < tokens; t += kChannelThreads / 32) {
      const std::size_t token = static_cast<std::size_t>(run.first) + stage * kChannelTokens + t;
      const std::size_t from = token * a.channels + first_channel;
      const float* const inputs = a.inputs + token * 2 * states;
      const std::uint32_t to = row_of(stage, t);
      for (unsigned i = lane; i < width; i += 32) {
        copy_to_shared(to + 4 * i, a.x + from + i);
        copy_to_shared(to + 4 * (Stage::kStepAt + i), a.step + from + i);
      }
      for (unsigned i = lane; i < states; i += 32) {
        copy_to_shared(to + 4 * (Stage::kInAt + i), inputs + i);
        copy_to_shared(to + 4 * (Stage::kOutAt + i), inputs + states + i);
      }
    }
    end_copies();
  };
  const std::size_t state_at = a.state_at + part * kStates * a.channels + channel;

  fetch(0);
#pragma unroll
  for (int i = 0; i < kStates; ++i) {
    const bool has = run.is_new == 0 && is_inside && part * kStates + i < states;
    h[i] = has ? run.state[state_at + i * a.channels] : 0.0f;
  }
  const auto store = [&](float* to) {
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      if (is_inside && part * kStates + i < states) to[state_at + i * a.channels] = h[i];
    }
  };

  float* y = a.y + static_cast<std::size_t>(run.first) * a.channels + channel;
  // Some tokens from a row on. Their sums over the parts end in one part each, if there are as many tokens as parts.
  const auto take = [&]<unsigned kTokens>(std::integral_constant<unsigned, kTokens>, std::uint32_t row) {
    float x[kTokens], step[kTokens], sum[kTokens] = {};
#pragma unroll
    for (unsigned t = 0; t < kTokens; ++t) {
      x[t] = read_shared(row + 4 * (t * Stage::kFloats + column));
      step[t] = read_shared(row + 4 * (t * Stage::kFloats + Stage::kStepAt + column));
    }
#pragma unroll
    for (int i = 0; i < kStates; i += 4) {
      float in[kTokens][4], out[kTokens][4];
#pragma unroll
      for (unsigned t = 0; t < kTokens; ++t) {
        const std::uint32_t at = row + 4 * (t * Stage::kFloats + part * kStates + i);
        read_shared(at + 4 * Stage::kInAt, in[t]);
        read_shared(at + 4 * Stage::kOutAt, out[t]);
      }
#pragma unroll
      for (unsigned t = 0; t < kTokens; ++t) {
        const float input = step[t] * x[t];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          h[i + j] = fmaf(power_of_2(step[t] * rate[i + j]), h[i + j], input * in[t][j]);
          sum[t] = fmaf(h[i + j], out[t][j], sum[t]);
        }
      }
    }
    if constexpr (kTokens == 1) {
#pragma unroll
      for (unsigned lanes = 1; lanes < kChannelParts; lanes *= 2) sum[0] += __shfl_xor_sync(~0u, sum[0], lanes);
      if (part == 0 && is_inside) *y = fmaf(skip, x[0], sum[0]);
    } else {
      static_assert(kTokens == 4 && kChannelParts == 4);
      const bool upper = part >= 2, odd = part % 2 != 0;
      float first = upper ? sum[2] : sum[0], second = upper ? sum[3] : sum[1];
      first += __shfl_xor_sync(~0u, upper ? sum[0] : sum[2], 2);
      second += __shfl_xor_sync(~0u, upper ? sum[1] : sum[3], 2);
      float own = odd ? second : first;
      own += __shfl_xor_sync(~0u, odd ? first : second, 1);
      const float own_x = upper ? (odd ? x[3] : x[2]) : (odd ? x[1] : x[0]);
      if (is_inside) y[part * a.channels] = fmaf(skip, own_x, own);
    }
    y += kTokens * a.channels;
  };
  for (unsigned stage = 0; stage * kChannelTokens < tokens; ++stage) {
    wait_for_copies<0>();
    __syncthreads();
    fetch(stage + 1);
    const unsigned first = stage * kChannelTokens, count = min(kChannelTokens, tokens - first);
    for (unsigned t = threadIdx.x / kBlockChannels; t < count; t += kChannelThreads / kBlockChannels) {
      const std::uint32_t at = row_of(stage, t) + 4 * (Stage::kStepAt + prepared);
      write_shared(at, softplus_of(read_shared(at) + bias));
    }
    __syncthreads();
    const unsigned kept = static_cast<unsigned>(run.kept_tokens) - first;  // of this stage, if it is among them
    for (unsigned t = 0; t < count;) {
      // Four at a time, so that their loads and exponentials overlap, unless states are kept between them.
      const bool together = t + 4 <= count && (kept <= t || kept >= t + 4);
      if (together) {
        take(std::integral_constant<unsigned, 4>(), row_of(stage, t));
      } else {
        take(std::integral_constant<unsigned, 1>(), row_of(stage, t));
      }
      t += together ? 4 : 1;
      if (t == kept) store(run.kept);
    }
  }
  store(run.state);
}

template <class Launch>
void launch_channel_scan(const ChannelScanWork& work, const StateRuns& runs, Launch&& launch) {
  const ChannelLaunch all{work, runs.runs, blocks_of(work.channels, kBlockChannels)};
  const auto with = [&]<int kStates>(std::integral_constant<int, kStates>) {
    launch("channel_scan", channel_scan_kernel<kStates>, static_cast<unsigned>(runs.count) * all.channel_blocks,
           kChannelThreads, ChannelStage<kStates>::kBytes, all);
  };
  static_assert(ChannelStage<16>::kAll == kMostChannelStates);
  if (work.states <= ChannelStage<4>::kAll) return with(std::integral_constant<int, 4>());
  with(std::integral_constant<int, 16>());
}

}  // namespace imago::kernels::cuda
