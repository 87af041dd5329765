#pragma once

// The matvec of a few tokens, and of one where matvec_stream.cuh is nothing for the matrices. Weights are read once and
// their bytes are the cost. What matters is that enough of them are on their way at all times: 4.5 TB/s at a latency
// above 1 µs ask for 40 KiB per multiprocessor. A warp takes one row after the other and streams it through a ring of
// its own in shared memory, the copies of all stages but one always under way, also across rows: 16 warps have some 70
// KB of them. No barriers but those of a warp.
//
// Registers and shared memory leave room for a second block: another one of this kernel if it has one token, else the
// next kernel's, which fills its rings while this one still runs (programmatic dependent launch). Weights never depend
// on the kernel before; activations are touched behind the wait.

#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/matvec_dot.cuh"
#include "kernels/cuda/matvec_finish.cuh"
#include "kernels/cuda/matvec_ring.cuh"

namespace imago::kernels::cuda {

inline constexpr int kMatVecWarps = 16;

/// The rows of a warp in order: outputs `number`, each of one row, or of the gate's and then that of `up`. Behind the
/// last output `exists` is false.
struct RowWalk {
  std::uint32_t row, rows, step;  ///< rows: of the product
  const MatVecProduct* product;
  bool is_up = false, gated, exists = true;

  __device__ __forceinline__ RowWalk(const MatVecArgs& args, std::uint32_t warp) {
    step = blockDim.x / 32 * gridDim.x;
    product = args.products;
    row = warp * gridDim.x + blockIdx.x;  // neighbours on different multiprocessors: all have as many
    settle(args);
  }
  /// True if the matrix is another one now.
  __device__ __forceinline__ bool advance(const MatVecArgs& args) {
    if (gated) {
      is_up = !is_up;
      if (is_up) return true;
    }
    row += step;
    if (row < rows) return gated;
    settle(args);
    return true;
  }
  __device__ __forceinline__ const Planes& planes() const { return is_up ? product->up : product->planes; }

 private:
  __device__ __forceinline__ void settle(const MatVecArgs& args) {
    while (row >= product->planes.rows) {
      row -= product->planes.rows;
      if (++product == args.products + args.count) {
        exists = false;
        return;
      }
    }
    rows = product->planes.rows;
    gated = product->gated;
  }
};

template <class Form>
inline constexpr bool kHasRowScales = Form::Scales::kRow;
template <class T>
inline constexpr bool kHasRowScales<Plain<T>> = is_scaled(dtype_of<T>);

/// Row scales of one row. Those of whole rows are applied to finished sums; they are loaded early, to be there.
template <bool kExist>
struct RowScales {
  const float* values = nullptr;  ///< of groups
  std::uint32_t shift = 0, last_group = 0;
  float whole = 1;

  __device__ __forceinline__ RowScales(const Planes& p, std::uint32_t row) {
    if constexpr (kExist) {
      if (p.row_scale_count == 1) {
        whole = __ldg(p.row_scales + row);
      } else {
        values = p.row_scales + static_cast<std::size_t>(row) * p.row_scale_count;
        shift = p.scale_shift;
        last_group = p.groups - 1;
      }
    }
  }
  __device__ __forceinline__ float of(std::uint32_t group) const {
    return !kExist || values == nullptr ? 1.0f : __ldg(values + (min(group, last_group) >> shift));
  }
};

/// Finished sums of a warp's rows, kept by one lane each until there are as many as lanes, so that the rest is done at
/// once.
template <int kTokens>
struct Results {
  static constexpr std::uint32_t kLanes = 32 / kTokens;  ///< that share a token
  const MatVecProduct* product = nullptr;                ///< of what this lane keeps; null: nothing
  std::uint32_t row, count = 0;
  float gate, up;

  /// The totals of token lane / kLanes for a row.
  __device__ __forceinline__ void add(const MatVecArgs& args, const MatVecProduct& p, std::uint32_t number, float first,
                                      float second, std::uint32_t lane) {
    if (lane % kLanes == count) {
      product = &p;
      row = number;
      gate = first;
      up = second;
    }
    if (++count == kLanes) store(args);
  }
  __device__ __forceinline__ void store(const MatVecArgs& args) {
    const std::uint32_t token = threadIdx.x % 32 / kLanes;
    if (product != nullptr && token < args.tokens) store_result(*product, token, row, gate, up);
    product = nullptr;
    count = 0;
  }
};

template <class Products>
__global__ void __launch_bounds__(kMatVecWarps * 32, Products::kTokens == 1 ? 2 : 1)
    matvec_kernel(const __grid_constant__ MatVecArgs args) {
  using Form = typename Products::Form;
  using S = Stage<Form>;
  using Load = Unit<Form>;
  constexpr int kStages = S::kCount, kTokens = Products::kTokens;
  extern __shared__ __align__(16) std::byte memory[];
  let_next_in();
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::uint32_t groups = args.products[0].planes.groups;
  const std::uint32_t units = args.units;
  std::byte* const ring = memory + args.rings_at + warp * kStages * S::kBytes;
  const std::uint32_t ring_address = static_cast<std::uint32_t>(__cvta_generic_to_shared(ring));
  const Products products(args, memory);

  constexpr std::uint32_t kStep = S::kParts * 32;  // units of a stage
  RowWalk ahead(args, warp);                       // what is copied next
  RowStream<Form> from;
  std::uint32_t left = units;  // of the row
  if (ahead.exists) {
    from.open(ahead.planes(), lane);
    from.start(ahead.row);
  }
  const auto copy_next = [&](std::uint32_t to) {
    if (ahead.exists) {
      from.copy(to, lane, left);
      if (left > kStep) {
        left -= kStep;
      } else {
        left = units;
        if (ahead.advance(args) && ahead.exists) from.open(ahead.planes(), lane);
        from.start(ahead.row);
      }
    }
    end_copies();  // empty ones too: waiting counts them
  };
  for (int i = 0; i < kStages - 1; ++i) copy_next(ring_address + i * S::kBytes);
  wait_for_previous();
  products.fill(args, groups, units);
  __syncthreads();

  std::uint32_t at = 0, free = (kStages - 1) * S::kBytes;  // of the ring: the next stage, the one that is done with
  float gate = 0;
  Results<kTokens> results;
  for (RowWalk now(args, warp); now.exists; now.advance(args)) {
    const RowScales<kHasRowScales<Form>> row_scales(now.planes(), now.row);
    const float zero = kHasRowScales<Form> ? now.planes().zero : 0.0f;
    float sums[kTokens] = {};
    for (std::uint32_t begin = 0; begin < units; begin += kStep) {
      wait_for_copies<kStages - 2>();
      __syncwarp();
      copy_next(ring_address + free);
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) {
        const std::uint32_t number = begin + part * 32 + lane;
        if (number >= units) continue;
        Load unit = read_stage<Form>(ring + at, part, lane, now.row);
        if constexpr (!Form::kCoded) {
          products.add(args, unit, number, row_scales.of(number * Load::kValues / kGroup), sums);
        } else {
          if constexpr (Form::Scales::kRow) {
#pragma unroll
            for (int i = 0; i < Load::kGroups; ++i) {
              unit.row_scales[i] = row_scales.of(Load::kHalf ? number / 2 : number * Load::kGroups + i);
            }
          }
          products.add(args, unit, number, zero, sums);
        }
      }
      free = at;
      at = at + S::kBytes == kStages * S::kBytes ? 0 : at + S::kBytes;
    }
    const float total = total_of(sums, lane) * row_scales.whole;
    if (now.gated && !now.is_up) {
      gate = total;
    } else {
      results.add(args, *now.product, now.row, now.gated ? gate : total, total, lane);
    }
  }
  results.store(args);
}

/// Launches that take as many tokens as there are kernels for at once, until all are done.
template <class Form>
struct MatVecLauncher {
  MatVecArgs args;
  const LaunchFacts& facts;
  cudaStream_t stream;

  /// Up to Products::kTokens tokens. False, and nothing is done, if rings and activations do not fit in shared memory.
  template <class Products>
  bool run() {
    constexpr std::uint32_t kRing = Stage<Form>::kCount * Stage<Form>::kBytes;
    args.units = Unit<Form>::count(args.products[0].planes.groups);
    args.stride = Products::stride(args.units);
    args.scales_at = Products::scales_at(args.units);
    args.rings_at = (Products::bytes(args.units) + 15) / 16 * 16;
    // Two blocks on a multiprocessor where they fit: the 16 warps of one wait for each other's instructions.
    const bool two = Products::kTokens == 1 && 2 * (args.rings_at + kMatVecWarps * kRing) <= facts.shared_bytes;
    const std::uint32_t blocks = static_cast<std::uint32_t>(facts.multiprocessors) * (two ? 2 : 1);
    // As many warps as leave the fewest without a row in the last round.
    const std::uint32_t rows = (args.rows + blocks - 1) / blocks;
    const std::uint32_t rounds = (rows + kMatVecWarps - 1) / kMatVecWarps;
    const std::uint32_t warps = (rows + rounds - 1) / rounds;
    const std::uint32_t bytes = args.rings_at + warps * kRing;
    if (bytes > facts.shared_bytes) return false;
    const int most = static_cast<int>(facts.shared_bytes);
    imago::cuda::check(cudaFuncSetAttribute(matvec_kernel<Products>, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
                       "shared memory");
    const std::uint32_t grid = args.rows < blocks ? args.rows : blocks;
    launch_overlapped("a product of few tokens", matvec_kernel<Products>, grid, warps * 32, bytes, stream,
                      take(Products::kTokens));
    return true;
  }

 private:
  /// The arguments for up to `most` tokens; what is left of them stays.
  MatVecArgs take(std::uint32_t most) {
    MatVecArgs now = args;
    now.tokens = args.tokens < most ? args.tokens : most;
    if (args.x != nullptr) args.x += static_cast<std::size_t>(now.tokens) * args.x_stride;
    if (args.q != nullptr) {
      args.q += static_cast<std::size_t>(now.tokens) * args.products[0].planes.groups * kGroup;
      args.scales += static_cast<std::size_t>(now.tokens) * args.products[0].planes.groups;
    }
    for (int p = 0; p < args.count; ++p)
      args.products[p].y += static_cast<std::size_t>(now.tokens) * args.products[p].y_stride;
    args.tokens -= now.tokens;
    return now;
  }
};

/// Kernels exist for 1, 4 and 8 tokens in int8, for 1 and 4 of float32, float16, bfloat16 and fp8, for 1 of others and
/// of exact products: the next larger one is taken, or several.
template <class Form>
void launch_matvec(MatVecArgs args, bool int8, const LaunchFacts& facts, CUstream_st* stream) {
  args.rows = 0;
  for (int p = 0; p < args.count; ++p) args.rows += args.products[p].planes.rows;
  MatVecLauncher<Form> launcher{args, facts, stream};
  while (launcher.args.tokens > 0) {
    const std::uint32_t tokens = launcher.args.tokens;
    if constexpr (Form::kCoded) {
      if (int8 && tokens > 4 && launcher.template run<Int8Products<Form, 8>>()) continue;
      if (int8 && tokens > 1 && launcher.template run<Int8Products<Form, 4>>()) continue;
      if (int8 && launcher.template run<Int8Products<Form, 1>>()) continue;
      launcher.template run<ExactProducts<Form>>();
    } else {
      using T = typename Form::Value;
      if constexpr (sizeof(T) <= 4 && !std::is_integral_v<T>) {
        if (tokens > 1 && launcher.template run<PlainProducts<T, 4, true>>()) continue;
      }
      if (launcher.template run<PlainProducts<T, 1, true>>()) continue;
      launcher.template run<PlainProducts<T, 1, false>>();
    }
  }
}

}  // namespace imago::kernels::cuda
