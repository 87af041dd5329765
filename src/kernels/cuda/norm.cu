// RMS and layer norm, with the residual sum before and the int8 form behind them in the same pass: a row is read once
// and stays in registers.

#include "kernels/cuda/int8_form.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.cuh"

namespace imago::kernels::cuda {

namespace {

__device__ float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ void store4(float* to, float4 v) { *reinterpret_cast<float4*>(to) = v; }

/// Rows in pieces of kWide columns a thread, kPieces pieces: thread t has pieces t, t + threads, … . With 32 threads in
/// x a warp has a row of its own, and y counts the rows of a block.
template <int kPieces, int kWide>
__global__ void norm_rows(NormArgs a) {
  __shared__ float room[33];
  const std::size_t row = blockIdx.x * std::size_t{blockDim.y} + threadIdx.y;
  const unsigned cols = static_cast<unsigned>(a.cols);
  float v[kPieces][kWide], weight[kPieces][kWide];
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const unsigned col = (threadIdx.x + p * blockDim.x) * kWide;
    if (a.weight == nullptr || col >= cols) continue;
    if constexpr (kWide == 4) {
      const float4 w = load4(a.weight + col);
      weight[p][0] = w.x, weight[p][1] = w.y, weight[p][2] = w.z, weight[p][3] = w.w;
    } else {
      weight[p][0] = a.weight[col];
    }
  }
  wait_for_previous();
  if (row >= a.rows) return;  // whole warps, or nobody: rows fill the grid where a block has one
  float* const x = a.x + row * cols;
  const float* const branch = a.branch == nullptr ? nullptr : a.branch + row * cols;

  float sum = 0;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const unsigned col = (threadIdx.x + p * blockDim.x) * kWide;
#pragma unroll
    for (int i = 0; i < kWide; ++i) v[p][i] = 0;
    if (col >= cols) continue;
    if constexpr (kWide == 4) {
      float4 t = load4(x + col);
      if (branch != nullptr) {
        const float4 b = load4(branch + col);
        t = {t.x + a.branch_factor * b.x, t.y + a.branch_factor * b.y, t.z + a.branch_factor * b.z,
             t.w + a.branch_factor * b.w};
        store4(x + col, t);
      }
      v[p][0] = t.x, v[p][1] = t.y, v[p][2] = t.z, v[p][3] = t.w;
    } else {
      v[p][0] = x[col];
      if (branch != nullptr) x[col] = v[p][0] += a.branch_factor * branch[col];
    }
#pragma unroll
    for (int i = 0; i < kWide; ++i) sum += a.layer_norm ? v[p][i] : v[p][i] * v[p][i];
  }

  if (a.weight != nullptr) {
    float mean = 0, squares = team_sum(sum, room);
    if (a.layer_norm) {
      mean = squares / static_cast<float>(cols);
      sum = 0;
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        if ((threadIdx.x + p * blockDim.x) * kWide >= cols) continue;
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          v[p][i] -= mean;
          sum += v[p][i] * v[p][i];
        }
      }
      squares = team_sum(sum, room);
    }
    const float factor = 1.0f / sqrtf(squares / static_cast<float>(cols) + a.eps);
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const unsigned col = (threadIdx.x + p * blockDim.x) * kWide;
      if (col >= cols) continue;
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        v[p][i] = v[p][i] * factor * weight[p][i];
        if (a.layer_norm && a.bias != nullptr) v[p][i] += a.bias[col + i];
      }
    }
  }

  const std::size_t padded = 32 * int8_blocks(cols);
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const unsigned col = (threadIdx.x + p * blockDim.x) * kWide;
    if (a.y != nullptr && col < cols) {
      if constexpr (kWide == 4) {
        store4(a.y + row * cols + col, {v[p][0], v[p][1], v[p][2], v[p][3]});
      } else {
        a.y[row * cols + col] = v[p][0];
      }
    }
    if (a.int8.q != nullptr) {
      store_int8_form(v[p], col < padded, a.int8.q + row * padded + col,
                      a.int8.scales + row * (padded / 32) + col / 32);
    }
  }
}

/// Rows too long for registers: twice (layer norm: three times) over memory, the row as the residual left it.
__global__ void norm_long_rows(NormArgs a) {
  __shared__ float room[33];
  wait_for_previous();
  const std::size_t row = blockIdx.x, padded = 32 * int8_blocks(a.cols);
  float* const x = a.x + row * a.cols;
  float sum = 0;
  for (std::size_t col = threadIdx.x; col < a.cols; col += blockDim.x) {
    float v = x[col];
    if (a.branch != nullptr) x[col] = v += a.branch_factor * a.branch[row * a.cols + col];
    sum += a.layer_norm ? v : v * v;
  }
  float mean = 0, factor = 1;
  if (a.weight != nullptr) {
    float squares = team_sum(sum, room);
    if (a.layer_norm) {
      mean = squares / static_cast<float>(a.cols);
      sum = 0;
      for (std::size_t col = threadIdx.x; col < a.cols; col += blockDim.x) sum += (x[col] - mean) * (x[col] - mean);
      squares = team_sum(sum, room);
    }
    factor = 1.0f / sqrtf(squares / static_cast<float>(a.cols) + a.eps);
  }
  for (std::size_t col = threadIdx.x; col < padded; col += blockDim.x) {  // padded: whole warps stay together
    float v[1] = {0};
    if (col < a.cols) {
      v[0] = x[col];
      if (a.weight != nullptr) v[0] = (v[0] - mean) * factor * a.weight[col];
      if (a.weight != nullptr && a.layer_norm && a.bias != nullptr) v[0] += a.bias[col];
      if (a.y != nullptr) a.y[row * a.cols + col] = v[0];
    }
    if (a.int8.q != nullptr) {
      store_int8_form(v, true, a.int8.q + row * padded + col, a.int8.scales + row * (padded / 32) + col / 32);
    }
  }
}

bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

template <int kWide>
void launch(const NormArgs& args, Stream& stream) {
  const auto pieces = static_cast<unsigned>(padded_cols(args.cols) / kWide);
  const auto rows = static_cast<unsigned>(args.rows);
  if (pieces <= 8 * 32 && rows > 1) {  // narrow: a warp for each row
    const dim3 threads(32, 4), blocks((rows + 3) / 4);
    if (pieces <= 32) return launch_overlapped("norm", norm_rows<1, kWide>, blocks, threads, 0, stream, args);
    if (pieces <= 64) return launch_overlapped("norm", norm_rows<2, kWide>, blocks, threads, 0, stream, args);
    if (pieces <= 128) return launch_overlapped("norm", norm_rows<4, kWide>, blocks, threads, 0, stream, args);
    return launch_overlapped("norm", norm_rows<8, kWide>, blocks, threads, 0, stream, args);
  }
  // Few rows: latency counts, each thread takes as little as there is. Many: fewer threads wait for each other.
  const auto threads_for = [&](unsigned per_thread) { return ((pieces + per_thread - 1) / per_thread + 31) / 32 * 32; };
  if (pieces <= 1024 && (rows <= 264 || pieces <= 256))
    return launch_overlapped("norm", norm_rows<1, kWide>, rows, threads_for(1), 0, stream, args);
  if (pieces <= 4096) return launch_overlapped("norm", norm_rows<4, kWide>, rows, threads_for(4), 0, stream, args);
  launch_overlapped("norm", norm_long_rows, rows, 1024, 0, stream, args);
}

}  // namespace

void norm(const NormArgs& args, Stream& stream) {
  if (args.rows == 0 || args.cols == 0) return;
  const bool wide = args.cols % 4 == 0 && is_aligned(args.x) && is_aligned(args.branch) && is_aligned(args.y) &&
                    is_aligned(args.weight);
  if (wide) {
    launch<4>(args, stream);
  } else {
    launch<1>(args, stream);
  }
}

}  // namespace imago::kernels::cuda
