#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/expert_products.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matvec_products.cuh"
#include "kernels/cuda/scalar_ops.h"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

namespace {

/// Rows of a block, one group of quantized results.
constexpr unsigned kBlockRows = 32;
constexpr unsigned kWarps = 16;
/// A warp has their weights in flight at the same time.
constexpr unsigned kWarpRows = kBlockRows / kWarps;

/// Sums of a lane over its groups of columns, with the matrix and, where it is gated, with `up`.
struct TwoSums {
  float matrix = 0, up = 0;
};

// ---- float32 activations

template <class Form>
__device__ __forceinline__ float float_product(const Planes& planes, std::uint32_t row, std::uint32_t group,
                                               const float* x) {
  float weights[kGroup], sum = 0;
  decode_group<Form>(planes, row, group, weights);
  const std::uint32_t first = group * static_cast<std::uint32_t>(kGroup);
#pragma unroll  // the weights stay in registers
  for (unsigned i = 0; i < kGroup; ++i) {
    if (first + i < planes.cols) sum += weights[i] * __ldg(x + first + i);
  }
  return sum;
}

template <class Form>
struct FloatInput {
  const float* x;

  __device__ __forceinline__ FloatInput(const ExpertProducts& a, std::size_t row)
      : x(a.x + row * (a.x_stride == 0 ? a.layer.cols : a.x_stride)) {}

  template <bool kGated>
  __device__ __forceinline__ void add(const ExpertMatrices& expert, const std::uint32_t (&rows)[kWarpRows],
                                      std::uint32_t group, TwoSums (&sums)[kWarpRows]) const {
#pragma unroll
    for (unsigned r = 0; r < kWarpRows; ++r) {
      sums[r].matrix += float_product<Form>(expert.matrix, rows[r], group, x);
      if constexpr (kGated) sums[r].up += float_product<Form>(expert.up, rows[r], group, x);
    }
  }
};

// ---- quantized activations

template <class Form>
__device__ __forceinline__ GroupBytes<Form> load_aligned_group(const Planes& p, std::uint32_t row,
                                                               std::uint32_t group) {
  using Codes = typename Form::Codes;
  using Scales = typename Form::Scales;
  GroupBytes<Form> g{};
  const std::size_t at = static_cast<std::size_t>(row) * p.stride + group;
  load_words<Codes::kBytes / 4>(g.codes, p.codes + at * Codes::kBytes);
  load_words<Codes::kHighBytes / 4>(g.high, p.high + at * Codes::kHighBytes);
  g.scales = load_scales<Scales>(p, ScaleTileRow(p.scale_tiles, row), group);
  if constexpr (Scales::kRow) {
    g.row_scale = __ldg(p.row_scales + static_cast<std::size_t>(row) * p.row_scale_count + (group >> p.scale_shift));
  }
  return g;
}

template <class Form>
struct Int8Input {
  const std::byte* q;
  const float2* scales;

  __device__ __forceinline__ Int8Input(const ExpertProducts& a, std::size_t row) {
    const std::size_t groups = (a.layer.cols + kGroup - 1) / kGroup;
    q = reinterpret_cast<const std::byte*>(a.q) + row * groups * kGroup;
    scales = reinterpret_cast<const float2*>(a.scales) + row * groups;
  }

  template <bool kGated>
  __device__ __forceinline__ void add(const ExpertMatrices& expert, const std::uint32_t (&rows)[kWarpRows],
                                      std::uint32_t group, TwoSums (&sums)[kWarpRows]) const {
    GroupBytes<Form> matrix[kWarpRows], up[kWarpRows];
#pragma unroll
    for (unsigned r = 0; r < kWarpRows; ++r) {
      matrix[r] = load_aligned_group<Form>(expert.matrix, rows[r], group);
      if constexpr (kGated) up[r] = load_aligned_group<Form>(expert.up, rows[r], group);
    }
    std::uint32_t x[8];
    load_words<8>(x, q + group * kGroup);
    const float2 s = __ldg(scales + group);
#pragma unroll
    for (unsigned r = 0; r < kWarpRows; ++r) {
      sums[r].matrix += product(matrix[r], expert.matrix, x, s);
      if constexpr (kGated) sums[r].up += product(up[r], expert.up, x, s);
    }
  }

 private:
  static __device__ __forceinline__ float product(const GroupBytes<Form>& g, const Planes& planes,
                                                  const std::uint32_t (&x)[8], float2 s) {
    std::uint32_t codes[8];
    Form::Codes::words(g.codes, g.high, codes);
    return int8_product(codes, x, s, GroupFactors<Form>(scales_of(g), Form::zero(planes)), false);
  }
};

// ---- the kernel

/// The sum over each `lanes` neighbouring lanes, a power of two.
__device__ __forceinline__ float sum_of_lanes(float value, unsigned lanes) {
  for (unsigned step = lanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

/// Grid: rows / (kBlockRows · 32 / lanes) × rows of the result. Short rows take `lanes` lanes of a warp, which has
/// several then.
template <class Form, template <class> class Input, bool kGated>
__global__ void __launch_bounds__(kWarps * 32, 2) expert_rows(ExpertProducts a, unsigned lanes) {
  __shared__ float results[kBlockRows];
  let_next_in();
  wait_for_previous();
  const unsigned lane = threadIdx.x % lanes, first = threadIdx.x / lanes, apart = kWarps * 32 / lanes;
  const std::size_t i = blockIdx.y;
  const std::size_t number = a.chosen == nullptr ? i % a.count_of_experts : static_cast<std::size_t>(a.chosen[i]);
  const ExpertMatrices expert = a.layer.experts[number];
  const Input<Form> input(a, i / a.share);
  std::uint32_t rows[kWarpRows];  // those past the end repeat the last one
#pragma unroll
  for (unsigned r = 0; r < kWarpRows; ++r) {
    rows[r] = min((blockIdx.x * kWarpRows + r) * apart + first, static_cast<std::uint32_t>(a.layer.rows) - 1);
  }
  TwoSums sums[kWarpRows];
  for (std::uint32_t group = lane; group < expert.matrix.groups; group += lanes) {
    input.template add<kGated>(expert, rows, group, sums);
  }
#pragma unroll
  for (unsigned r = 0; r < kWarpRows; ++r) {
    const std::uint32_t row = (blockIdx.x * kWarpRows + r) * apart + first;
    float value = sum_of_lanes(sums[r].matrix, lanes);
    const float up = kGated ? sum_of_lanes(sums[r].up, lanes) : 0.0f;
    if (lane != 0) continue;
    if (row < a.layer.rows) {
      if (expert.bias != nullptr) value += expert.bias[row];
      value = activation_of(a.layer.activation, value);
      if constexpr (kGated) {
        value *= up_of(a.layer.activation, up + (expert.up_bias != nullptr ? expert.up_bias[row] : 0.0f));
      }
      if (a.y != nullptr) a.y[i * (a.y_stride == 0 ? a.layer.rows : a.y_stride) + row] = value;
    } else {
      value = 0;
    }
    if (lanes == 32) results[r * kWarps + first] = value;
  }
  if (a.int8.q == nullptr) return;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const bool active = lane < kBlockRows / 4;
  float values[4] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j) values[j] = active ? results[lane * 4 + j] : 0.0f;
  const std::size_t to = i * gridDim.x * kBlockRows + blockIdx.x * kBlockRows + (active ? lane * 4 : 0);
  store_quantized(values, active, a.int8.q + to, a.int8.scales + to / kGroup);
}

}  // namespace

bool takes_int8(Format format) {
  return visit_form(format, []<class Form>(std::type_identity<Form>) { return Form::kCoded; });
}

void multiply_experts(Format format, const ExpertProducts& products, Stream& stream) {
  static_assert(kBlockRows == kGroup);
  const ExpertLayer& layer = products.layer;
  if (products.count == 0 || layer.rows == 0) return;
  // Quantized results need a whole group in a block.
  const std::size_t groups = products.int8.q != nullptr ? 32 : (layer.cols + kGroup - 1) / kGroup;
  const auto lanes = static_cast<unsigned>(std::min<std::size_t>(32, std::bit_ceil(groups)));
  const std::size_t rows_of_block = kBlockRows * 32 / lanes;
  const dim3 grid(static_cast<unsigned>((layer.rows + rows_of_block - 1) / rows_of_block),
                  static_cast<unsigned>(products.count));
  const auto launch = [&](auto* kernel) {
    launch_overlapped("products of experts", kernel, grid, kWarps * 32, 0, stream, products, lanes);
  };
  visit_form(format, [&]<class Form>(std::type_identity<Form>) {
    if constexpr (Form::kCoded) {
      if (products.q != nullptr) {
        return launch(layer.gated ? expert_rows<Form, Int8Input, true> : expert_rows<Form, Int8Input, false>);
      }
    }
    launch(layer.gated ? expert_rows<Form, FloatInput, true> : expert_rows<Form, FloatInput, false>);
  });
}

}  // namespace imago::kernels::cuda
