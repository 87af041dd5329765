#include <algorithm>

#include "device/cuda/check.h"
#include "kernels/cuda/cublas.h"
#include "layers/cuda/kernels.h"

namespace imago::layers::cuda {

namespace {

// A block of 16 × 16 threads computes a tile of 64 × 64, 4 × 4 values a thread, 16 values of k at a time: fast enough
// for machines without cuBLAS, and short.
constexpr int kTile = 64, kDepth = 16, kSide = 16, kEach = kTile / kSide;

struct Operand {
  const float* values;
  std::size_t outer, inner;  // strides of the tile's own axis and of k
};

__device__ void load(const Operand& from, std::size_t first, std::size_t extent, std::size_t k0, std::size_t k,
                     float (&tile)[kDepth][kTile + 4]) {
  // Neighbouring threads read along the axis that is contiguous.
  const bool along_k = from.inner == 1;
  for (int i = threadIdx.x; i < kTile * kDepth; i += kSide * kSide) {
    const int depth = along_k ? i % kDepth : i / kTile, place = along_k ? i / kDepth : i % kTile;
    const bool inside = first + place < extent && k0 + depth < k;
    tile[depth][place] = inside ? from.values[(first + place) * from.outer + (k0 + depth) * from.inner] : 0.0f;
  }
}

__global__ void __launch_bounds__(kSide* kSide) gemm_kernel(GemmArgs g) {
  __shared__ float a_tile[kDepth][kTile + 4], b_tile[kDepth][kTile + 4];
  const std::size_t row0 = static_cast<std::size_t>(blockIdx.x) * kTile,
                    col0 = static_cast<std::size_t>(blockIdx.y) * kTile;
  const int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
  for (std::size_t batch = blockIdx.z; batch < g.batch; batch += gridDim.z) {
    const Operand a{g.a + batch * g.a_step, g.a_transposed ? 1 : g.k, g.a_transposed ? g.m : 1};
    const Operand b{g.b + batch * g.b_step, g.b_transposed ? g.k : 1, g.b_transposed ? 1 : g.n};
    float sums[kEach][kEach] = {};
    for (std::size_t k0 = 0; k0 < g.k; k0 += kDepth) {
      load(a, row0, g.m, k0, g.k, a_tile);
      load(b, col0, g.n, k0, g.k, b_tile);
      __syncthreads();
#pragma unroll
      for (int depth = 0; depth < kDepth; ++depth) {
        float left[kEach], right[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          left[i] = a_tile[depth][ty * kEach + i];
          right[i] = b_tile[depth][tx * kEach + i];
        }
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
#pragma unroll
          for (int j = 0; j < kEach; ++j) sums[i][j] += left[i] * right[j];
        }
      }
      __syncthreads();
    }
    float* const c = g.c + batch * g.c_step;
    for (int i = 0; i < kEach; ++i) {
      for (int j = 0; j < kEach; ++j) {
        const std::size_t row = row0 + ty * kEach + i, col = col0 + tx * kEach + j;
        if (row >= g.m || col >= g.n) continue;
        float& to = c[row * g.n + col];
        to = g.add ? to + sums[i][j] : sums[i][j];
      }
    }
  }
}

}  // namespace

void plain_gemm(const GemmArgs& args, Stream& stream) {
  if (args.m == 0 || args.n == 0 || args.batch == 0) return;
  const auto tiles = [](std::size_t extent) { return static_cast<unsigned>((extent + kTile - 1) / kTile); };
  const dim3 grid(tiles(args.m), tiles(args.n), static_cast<unsigned>(std::min<std::size_t>(args.batch, 65535)));
  gemm_kernel<<<grid, kSide * kSide, 0, stream.handle()>>>(args);
  imago::cuda::check_launch("gemm");
}

void gemm(const GemmArgs& args, Stream& stream) {
  static const bool has_library = kernels::cuda::cublas_problem().empty();
  if (!has_library) return plain_gemm(args, stream);
  kernels::cuda::gemm({.m = args.m,
                       .n = args.n,
                       .k = args.k,
                       .a = args.a,
                       .b = args.b,
                       .c = args.c,
                       .transpose_a = args.a_transposed,
                       .transpose_b = args.b_transposed,
                       .beta = args.add ? 1.0f : 0.0f,
                       .batch = args.batch,
                       .a_batch_stride = args.a_step,
                       .b_batch_stride = args.b_step,
                       .c_batch_stride = args.c_step},
                      stream);
}

}  // namespace imago::layers::cuda
