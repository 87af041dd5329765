#pragma once

// The matvec of a few tokens, and of one token where matvec_stream.cuh does not apply. Weights are read once, and the
// point is to keep enough of them in flight at all times: 4.5 TB/s at a latency above 1 µs need 40 KiB per
// multiprocessor. A warp takes one row after the other and streams it through its own ring of stages in shared memory.
// The copies of all stages but one are always in flight, also across rows: 70 KB in 16 warps. Copies are asynchronous
// (cp.async), so they need no registers, and only the lanes of a warp have to synchronize.
//
// Registers and shared memory leave room for a second block: another one of this kernel if it has one token, else one
// of the next kernel, which fills its rings while this one still runs (programmatic dependent launch). Weights never
// depend on the previous kernel; activations are read after the wait.

#include <cuda_runtime.h>

#include <cstdint>

#include "device/cuda/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matvec_products.cuh"
#include "kernels/cuda/scalar_ops.h"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

// ---- stages: what the 32 lanes of a warp need for two code vectors each

/// Bytes of a stage: two vectors for every lane, first the codes of both, then their high bits, scales and
/// super-scales. Rings of 16 warps take 80 KiB, which leaves room for activations and for a block of the next kernel.
template <int kGroupsT, int kHighOfGroup, int kScaleOfGroup, int kSuperOfEight>
struct StageSizes {
  static constexpr int kVectors = 2;
  static constexpr int kGroups = kVectors * kGroupsT;
  static constexpr int kHighAt = kVectors * 512, kHighBytes = kGroups * kHighOfGroup;
  static constexpr int kScalesAt = kHighAt + kHighBytes, kScaleBytes = kGroups * kScaleOfGroup;
  /// In whole words: super-scales of two bytes come with that of a neighbouring row.
  static constexpr int kSupersAt = kScalesAt + kScaleBytes, kSuperBytes = kSuperOfEight == 0 ? 0 : kGroups / 8 * 4;
  static constexpr int kBytes = (kSupersAt + kSuperBytes + 15) / 16 * 16;
  static constexpr int kStages = 5120 / kBytes;  ///< stages in the ring of a warp
};
template <class Form>
struct Stage : StageSizes<0, 0, 0, 0> {};  // plain values have codes only
template <class Codes, class Scales, int kZero, int kStep>
struct Stage<Coded<Codes, Scales, kZero, kStep>>
    : StageSizes<512 / Codes::kBytes, Codes::kHighBytes, Scales::kBytes, Scales::kSuperBytes> {};

/// Copies rows of a matrix into stages. The last copies of a row may reach past its end; nobody reads those bytes.
template <class Form>
class RowStream {
 public:
  using S = Stage<Form>;

  __device__ __forceinline__ void open(const Planes& p, std::uint32_t lane) {
    stride_ = p.stride;
    codes_base_ = p.codes + lane * 16;
    if constexpr (S::kHighBytes > 0) high_base_ = p.high + lane * lane_bytes(S::kHighBytes);
    if constexpr (kHasScaleTiles) {
      // The scales of a row are a few bytes in each of its scale tiles.
      using Tile = ScaleTile<typename Form::Scales>;
      scale_tiles_ = p.scale_tiles;
      if constexpr (!kAreLevels<typename Form::Codes>) scale_tiles_.pairs = 0;  // tells the compiler what is known
      const std::uint32_t at = lane * lane_bytes(S::kScaleBytes);
      if constexpr (S::kScaleBytes > 0) {
        scales_base_ = p.scales + (at / Tile::kRow << scale_tiles_.pairs) * Tile::kBytes + at % Tile::kRow;
      }
      if constexpr (S::kSuperBytes > 0) {
        supers_base_ = p.scales + (lane << scale_tiles_.pairs) * Tile::kBytes + Tile::kSupersAt;
      }
    }
  }
  __device__ __forceinline__ void start(std::uint32_t row) {
    const auto bytes = [&](std::uint32_t of_group) { return static_cast<std::size_t>(row) * (stride_ * of_group); };
    codes_ = codes_base_ + bytes(code_bytes<Form>());
    if constexpr (S::kHighBytes > 0) high_ = high_base_ + bytes(Form::Codes::kHighBytes);
    if constexpr (kHasScaleTiles) {
      using Tile = ScaleTile<typename Form::Scales>;
      const ScaleTileRow place(scale_tiles_, row);
      const std::size_t first = static_cast<std::size_t>(place.first) * Tile::kBytes;
      if constexpr (S::kScaleBytes > 0) scales_ = scales_base_ + first + place.row * Tile::kRow;
      if constexpr (S::kSuperBytes > 0) supers_ = supers_base_ + first + place.row * Form::Scales::kSuperBytes / 4 * 4;
    }
  }
  /// `left`: vectors of the row that are not copied yet.
  __device__ __forceinline__ void copy(std::uint32_t to, std::uint32_t lane, std::uint32_t left) {
    copy_async<16>(to + lane * 16, codes_);
    if (left > 32) copy_async<16>(to + 512 + lane * 16, codes_ + 512);
    codes_ += 1024;
    if constexpr (S::kHighBytes > 0) {
      copy_shared<S::kHighBytes>(to + S::kHighAt, lane, high_);
      high_ += S::kHighBytes;
    }
    if constexpr (kHasScaleTiles) {
      const std::uint32_t step = S::kGroups / kScaleTileGroups * ScaleTile<typename Form::Scales>::kBytes
                                 << scale_tiles_.pairs;
      copy_shared<S::kScaleBytes>(to + S::kScalesAt, lane, scales_);
      copy_shared<S::kSuperBytes>(to + S::kSupersAt, lane, supers_);
      if constexpr (S::kScaleBytes > 0) scales_ += step;
      if constexpr (S::kSuperBytes > 0) supers_ += step;
    }
  }

 private:
  /// Bytes that each lane copies of data that all lanes share: 4, 8 or 16, or 4 in some of the lanes.
  static constexpr int lane_bytes(int bytes) noexcept { return bytes < 128 ? 4 : bytes / 32; }
  static constexpr bool kHasScaleTiles = S::kScaleBytes + S::kSuperBytes > 0;

  template <int kBytes>
  static __device__ __forceinline__ void copy_shared(std::uint32_t to, std::uint32_t lane, const std::byte* from) {
    if constexpr (kBytes > 0) {
      constexpr int kLaneBytes = lane_bytes(kBytes);
      if (kBytes >= 128 || lane * 4 < kBytes) copy_async<kLaneBytes>(to + lane * kLaneBytes, from);
    }
  }

  std::uint32_t stride_;
  ScaleTileGrid scale_tiles_;
  const std::byte* codes_base_;
  const std::byte* high_base_;
  const std::byte* scales_base_;
  const std::byte* supers_base_;
  const std::byte* codes_;
  const std::byte* high_;
  const std::byte* scales_;
  const std::byte* supers_;
};

/// The vector of a lane in a stage, the first or the second; `row`: of the matrix.
template <class Form>
__device__ __forceinline__ CodeVector<Form> read_stage(const std::byte* stage, int which, std::uint32_t lane,
                                                       std::uint32_t row) {
  using S = Stage<Form>;
  using Vector = CodeVector<Form>;
  Vector vector;
  const uint4 v = *reinterpret_cast<const uint4*>(stage + which * 512 + lane * 16);
  if constexpr (!Form::kCoded) {
    vector.bytes = v;
  } else {
    vector.codes[0] = v.x;
    vector.codes[1] = v.y;
    vector.codes[2] = v.z;
    vector.codes[3] = v.w;
    const std::uint32_t number = which * 32 + lane;
    if constexpr (S::kHighBytes > 0) {
      constexpr int kOwnBytes = S::kHighBytes / 64;
      const std::uint32_t* high = reinterpret_cast<const std::uint32_t*>(stage + S::kHighAt + number * kOwnBytes);
#pragma unroll
      for (int i = 0; i < kOwnBytes / 4; ++i) vector.high[i] = high[i];
    }
    if constexpr (S::kScaleBytes > 0) {
      constexpr int kOwnBytes = Vector::kGroups * Form::Scales::kBytes;
      const std::uint32_t own = Vector::kHalf ? number / 2 : number;
      vector.scales = detail::load_small<kOwnBytes>(stage + S::kScalesAt + own * kOwnBytes);
    }
    using Scales = typename Form::Scales;
    const std::uint32_t eight = (Vector::kHalf ? number / 2 : number * Vector::kGroups) / kScaleTileGroups;
    if constexpr (Scales::kHidesSuper) {
      const std::byte* const own = stage + S::kScalesAt + eight * ScaleTile<Scales>::kRow;
      if constexpr (Scales::kSuperWords == 4) {
        const uint4 words = *reinterpret_cast<const uint4*>(own);
        vector.supers[0] = words.x, vector.supers[1] = words.y, vector.supers[2] = words.z, vector.supers[3] = words.w;
      } else {
        const uint2 words = *reinterpret_cast<const uint2*>(own);
        vector.supers[0] = words.x, vector.supers[1] = words.y;
      }
    } else if constexpr (S::kSuperBytes > 0) {
      const std::uint32_t odd = Scales::kSuperBytes == 2 ? row % 2 * 2 : 0;
      vector.supers[0] = detail::load_small<Scales::kSuperBytes>(stage + S::kSupersAt + eight * 4 + odd);
    }
  }
  return vector;
}

// ---- epilogue

/// Applies the epilogue to the sum of a row, or to those of gate and `up` if the product is gated.
__device__ __forceinline__ void store_result(const MatVecProduct& p, std::uint32_t token, std::uint32_t row, float gate,
                                             float up) {
  float value = activation_of(p.activation, p.bias != nullptr ? gate + p.bias[row] : gate);
  if (p.gated) value *= up;
  float* y = p.y + static_cast<std::size_t>(token) * p.y_stride + row;
  *y = p.accumulate ? value * p.scale + *y : value * p.scale;
}

/// Sums kCount values over the lanes of a warp: lane i gets the total of value i / (32 / kCount). At each step lanes
/// give away half of their values, so it takes about kCount + 4 shuffles instead of 5 · kCount.
template <int kCount>
__device__ __forceinline__ float total_of(float (&values)[kCount], std::uint32_t lane) {
  static_assert(kCount <= 32 && (kCount & (kCount - 1)) == 0);
  int mask = 16;
#pragma unroll
  for (int count = kCount; count > 1; count /= 2, mask /= 2) {
    const bool upper = (lane & mask) != 0;
#pragma unroll
    for (int i = 0; i < count / 2; ++i) {
      const float kept = upper ? values[i + count / 2] : values[i];
      const float given = upper ? values[i] : values[i + count / 2];
      values[i] = kept + __shfl_xor_sync(~0u, given, mask);
    }
  }
#pragma unroll
  for (int m = 16 / kCount; m > 0; m /= 2) values[0] += __shfl_xor_sync(~0u, values[0], m);
  return values[0];
}

// ---- the kernel

inline constexpr int kMatVecWarps = 16;

/// Walks over the rows of a warp: those of one product after the other; in a gated product a row of the gate, then the
/// same row of `up`. After the last row `exists` is false.
struct RowWalk {
  std::uint32_t row, rows, step;  ///< rows: of the product
  const MatVecProduct* product;
  bool is_up = false, gated, exists = true;

  __device__ __forceinline__ RowWalk(const MatVecArgs& args, std::uint32_t warp) {
    step = blockDim.x / 32 * gridDim.x;
    product = args.products;
    row = warp * gridDim.x + blockIdx.x;  // neighbouring rows on different multiprocessors balance the load
    settle(args);
  }
  /// Returns true if the matrix has changed.
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

/// Row scales of one row. The scale of a whole row is loaded early and multiplies the finished sum.
template <bool kExist>
struct RowScales {
  const float* values = nullptr;  ///< of groups of the row
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

/// Finished sums of the rows of a warp. Each lane keeps one until all lanes have one; then all outputs are stored at
/// once.
template <int kTokens>
struct Results {
  static constexpr std::uint32_t kLanes = 32 / kTokens;  ///< of a token
  const MatVecProduct* product = nullptr;                ///< whose output this lane keeps; null: none
  std::uint32_t row, count = 0;
  float gate, up;

  /// Takes the totals of a row for token lane / kLanes.
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
  using Vector = CodeVector<Form>;
  constexpr int kStages = S::kStages, kTokens = Products::kTokens;
  extern __shared__ __align__(16) std::byte memory[];
  let_next_in();
  const std::uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::uint32_t groups = args.products[0].planes.groups;
  const std::uint32_t vectors = args.vectors;
  std::byte* const ring = memory + args.rings_at + warp * kStages * S::kBytes;
  const std::uint32_t ring_address = static_cast<std::uint32_t>(__cvta_generic_to_shared(ring));
  const Products products(args, memory);

  constexpr std::uint32_t kStep = S::kVectors * 32;  // vectors of a stage
  RowWalk ahead(args, warp);                         // the row that is copied next
  RowStream<Form> from;
  std::uint32_t left = vectors;  // of the row
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
        left = vectors;
        if (ahead.advance(args) && ahead.exists) from.open(ahead.planes(), lane);
        from.start(ahead.row);
      }
    }
    end_copies();  // commits empty groups too: wait_for_copies counts groups
  };
  for (int i = 0; i < kStages - 1; ++i) copy_next(ring_address + i * S::kBytes);
  wait_for_previous();
  products.fill(args, groups, vectors);
  __syncthreads();

  std::uint32_t at = 0, free = (kStages - 1) * S::kBytes;  // offsets of the next stage and of the free one
  float gate = 0;
  Results<kTokens> results;
  for (RowWalk now(args, warp); now.exists; now.advance(args)) {
    const RowScales<kHasRowScales<Form>> row_scales(now.planes(), now.row);
    const float zero = kHasRowScales<Form> ? now.planes().zero : 0.0f;
    float sums[kTokens] = {};
    for (std::uint32_t begin = 0; begin < vectors; begin += kStep) {
      wait_for_copies<kStages - 2>();
      __syncwarp();
      copy_next(ring_address + free);
#pragma unroll
      for (int which = 0; which < S::kVectors; ++which) {
        const std::uint32_t number = begin + which * 32 + lane;
        if (number >= vectors) continue;
        Vector vector = read_stage<Form>(ring + at, which, lane, now.row);
        if constexpr (!Form::kCoded) {
          products.add(args, vector, number, row_scales.of(number * Vector::kValues / kGroup), sums);
        } else {
          if constexpr (Form::Scales::kRow) {
#pragma unroll
            for (int i = 0; i < Vector::kGroups; ++i) {
              vector.row_scales[i] = row_scales.of(Vector::kHalf ? number / 2 : number * Vector::kGroups + i);
            }
          }
          products.add(args, vector, number, zero, sums);
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

/// Launches kernels for some of the tokens at a time, until all are done.
template <class Form>
struct MatVecLauncher {
  MatVecArgs args;
  const LaunchFacts& facts;
  cudaStream_t stream;

  /// Takes up to Products::kTokens tokens. Returns false and does nothing if rings and activations do not fit in shared
  /// memory.
  template <class Products>
  bool run() {
    constexpr std::uint32_t kRing = Stage<Form>::kStages * Stage<Form>::kBytes;
    args.vectors = CodeVector<Form>::count(args.products[0].planes.groups);
    args.stride = Products::stride(args.vectors);
    args.scales_at = Products::scales_at(args.vectors);
    args.rings_at = (Products::bytes(args.vectors) + 15) / 16 * 16;
    // Two blocks on a multiprocessor, if they fit: 16 warps alone do not keep it busy.
    const bool two = Products::kTokens == 1 && 2 * (args.rings_at + kMatVecWarps * kRing) <= facts.shared_bytes;
    const std::uint32_t blocks = static_cast<std::uint32_t>(facts.multiprocessors) * (two ? 2 : 1);
    // As many warps as leave the fewest idle in the last round.
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
                      take_tokens(args, Products::kTokens));
    return true;
  }
};

/// Kernels exist for 1 and 4 tokens with quantized activations (and for 8 where matvec_batch.cuh has none), for 1 and 4
/// with float32, float16, bfloat16 and fp8 weights, and for 1 with other weights and exact products. The next larger
/// one is launched, or several.
template <class Form>
void launch_matvec(MatVecArgs args, bool int8, const LaunchFacts& facts, CUstream_st* stream) {
  args.rows = 0;
  for (int p = 0; p < args.count; ++p) args.rows += args.products[p].planes.rows;
  MatVecLauncher<Form> launcher{args, facts, stream};
  while (launcher.args.tokens > 0) {
    const std::uint32_t tokens = launcher.args.tokens;
    if constexpr (Form::kCoded) {
      if constexpr (Form::Scales::kParts == 2) {
        if (int8 && tokens > 4 && launcher.template run<Int8Products<Form, 8>>()) continue;
      }
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
