// Operations on whole rows. RMS and layer norm add the residual before and quantize the result in the same pass: a row
// is read once and stays in registers. Softmax takes a warp for a narrow row and a block for a wide one.

#include "device/cuda/check.h"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"

namespace imago::kernels::cuda {

namespace {

// ---- norms

__device__ float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }
__device__ void store4(float* to, float4 v) { *reinterpret_cast<float4*>(to) = v; }

/// A thread has kVectors vectors of kWide columns: thread t vectors t, t + blockDim.x, … . With blockDim.x 32 each warp
/// has a row of its own, and threadIdx.y counts the rows of a block.
template <int kVectors, int kWide>
__global__ void norm_rows(NormArgs a) {
  __shared__ float room[33];
  const std::size_t row = blockIdx.x * std::size_t{blockDim.y} + threadIdx.y;
  const unsigned cols = static_cast<unsigned>(a.cols);
  float v[kVectors][kWide], weight[kVectors][kWide];
#pragma unroll
  for (int p = 0; p < kVectors; ++p) {
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
  if (row >= a.rows) return;  // whole warps leave: where a row takes a block, there are as many rows as blocks
  float* const x = a.x + row * cols;
  const float* const branch = a.branch == nullptr ? nullptr : a.branch + row * cols;

  float sum = 0;
#pragma unroll
  for (int p = 0; p < kVectors; ++p) {
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
    float mean = 0, squares = row_sum(sum, room);
    if (a.layer_norm) {
      mean = squares / static_cast<float>(cols);
      sum = 0;
#pragma unroll
      for (int p = 0; p < kVectors; ++p) {
        if ((threadIdx.x + p * blockDim.x) * kWide >= cols) continue;
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          v[p][i] -= mean;
          sum += v[p][i] * v[p][i];
        }
      }
      squares = row_sum(sum, room);
    }
    const float factor = 1.0f / sqrtf(squares / static_cast<float>(cols) + a.eps);
#pragma unroll
    for (int p = 0; p < kVectors; ++p) {
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
  for (int p = 0; p < kVectors; ++p) {
    const unsigned col = (threadIdx.x + p * blockDim.x) * kWide;
    if (a.y != nullptr && col < cols) {
      if constexpr (kWide == 4) {
        store4(a.y + row * cols + col, {v[p][0], v[p][1], v[p][2], v[p][3]});
      } else {
        a.y[row * cols + col] = v[p][0];
      }
    }
    if (a.int8.q != nullptr) {
      store_quantized(v[p], col < padded, a.int8.q + row * padded + col,
                      a.int8.scales + row * (padded / 32) + col / 32);
    }
  }
}

/// Rows too long for registers: passes twice over memory, three times for a layer norm.
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
    float squares = row_sum(sum, room);
    if (a.layer_norm) {
      mean = squares / static_cast<float>(a.cols);
      sum = 0;
      for (std::size_t col = threadIdx.x; col < a.cols; col += blockDim.x) sum += (x[col] - mean) * (x[col] - mean);
      squares = row_sum(sum, room);
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
      store_quantized(v, true, a.int8.q + row * padded + col, a.int8.scales + row * (padded / 32) + col / 32);
    }
  }
}

template <int kWide>
void launch_norm(const NormArgs& args, Stream& stream) {
  const auto vectors = static_cast<unsigned>(padded_cols(args.cols) / kWide);
  const auto rows = static_cast<unsigned>(args.rows);
  if (vectors <= 8 * 32 && rows > 1) {  // narrow: a warp for each row
    const dim3 threads(32, 4), blocks((rows + 3) / 4);
    if (vectors <= 32) return launch_overlapped("norm", norm_rows<1, kWide>, blocks, threads, 0, stream, args);
    if (vectors <= 64) return launch_overlapped("norm", norm_rows<2, kWide>, blocks, threads, 0, stream, args);
    if (vectors <= 128) return launch_overlapped("norm", norm_rows<4, kWide>, blocks, threads, 0, stream, args);
    return launch_overlapped("norm", norm_rows<8, kWide>, blocks, threads, 0, stream, args);
  }
  // With few rows latency counts: one vector a thread. With many, fewer threads wait for each other.
  const auto threads_for = [&](unsigned per_thread) {
    return ((vectors + per_thread - 1) / per_thread + 31) / 32 * 32;
  };
  if (vectors <= 1024 && (rows <= 264 || vectors <= 256))
    return launch_overlapped("norm", norm_rows<1, kWide>, rows, threads_for(1), 0, stream, args);
  if (vectors <= 4096) return launch_overlapped("norm", norm_rows<4, kWide>, rows, threads_for(4), 0, stream, args);
  launch_overlapped("norm", norm_long_rows, rows, 1024, 0, stream, args);
}

// ---- softmax

struct SoftmaxWork {
  float* x;
  std::size_t rows, cols;
  float scale, cap;
};

__device__ float softmax_input(const SoftmaxWork& a, float v) {
  const float t = a.scale * v;
  // -infinity masks a value, with or without a cap.
  return a.cap > 0 && t != -INFINITY ? a.cap * tanhf(t / a.cap) : t;
}

__global__ void softmax_rows(SoftmaxWork a) {
  __shared__ float room[33];
  const std::size_t row = blockIdx.x * std::size_t{blockDim.y} + threadIdx.y;
  if (row >= a.rows) return;
  float* const x = a.x + row * a.cols;
  float largest = -INFINITY;
  for (std::size_t i = threadIdx.x; i < a.cols; i += blockDim.x) largest = fmaxf(largest, softmax_input(a, x[i]));
  largest = row_max(largest, room);
  const float base = largest == -INFINITY ? 0.0f : largest;
  float sum = 0;
  for (std::size_t i = threadIdx.x; i < a.cols; i += blockDim.x) {
    const float e = expf(softmax_input(a, x[i]) - base);
    x[i] = e;
    sum += e;
  }
  sum = row_sum(sum, room);
  const float factor = sum == 0 ? 0.0f : 1.0f / sum;
  for (std::size_t i = threadIdx.x; i < a.cols; i += blockDim.x) x[i] *= factor;
}

}  // namespace

void norm(const NormArgs& args, Stream& stream) {
  if (args.rows == 0 || args.cols == 0) return;
  const bool wide = args.cols % 4 == 0 && is_aligned(args.x) && is_aligned(args.branch) && is_aligned(args.y) &&
                    is_aligned(args.weight);
  if (wide) {
    launch_norm<4>(args, stream);
  } else {
    launch_norm<1>(args, stream);
  }
}

void softmax(float* x, std::size_t rows, std::size_t cols, float scale, float cap, Stream& stream) {
  if (rows == 0 || cols == 0) return;
  const SoftmaxWork work{x, rows, cols, scale, cap};
  if (cols <= 256) {
    softmax_rows<<<static_cast<unsigned>((rows + 3) / 4), dim3(32, 4), 0, stream.handle()>>>(work);
  } else {
    const unsigned threads = cols <= 1024 ? 128 : cols <= 8192 ? 256 : 1024;
    softmax_rows<<<static_cast<unsigned>(rows), threads, 0, stream.handle()>>>(work);
  }
  imago::cuda::check_launch("softmax");
}

}  // namespace imago::kernels::cuda
