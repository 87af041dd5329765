#pragma once

// Coded weights in the streaming matvec. A warp takes eight rows at a time, of some columns: a tile, whose products are
// those of tensor cores, 256 columns at once. Their tile has 16 rows, 8 columns and 32 bytes between; here
//   rows g and g + 8    are row g of the matrix, its first and its last four groups
//   bytes of lane c     of four that share a row, are codes of groups c and c + 4, eight at a time
//   column n            has the activations of group n where the bytes are of that group, and zeros else
// so that a result is the sum of a single group, which has a scale of its own. Half of the results are of no use, but a
// lane has two that are, for groups 2c and 2c + 1 of row g, and a quarter of the instructions of products of four bytes.

#include <cstdint>

#include "kernels/cuda/code_dot.cuh"
#include "kernels/cuda/matvec_tile_feed.cuh"
#include "kernels/cuda/shared_loads.cuh"

namespace imago::kernels::cuda {

/// Of CodeDot, by tensor cores.
struct TileSums {
  std::int32_t c[4] = {};

  template <bool kSigned>
  __device__ __forceinline__ void add(const WordPair& first, const WordPair& second, const std::uint32_t (&x)[8],
                                      int i) {
    const std::uint32_t x0 = x[2 * i], x1 = x[2 * i + 1];
    if constexpr (kSigned) {
      asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
          : "r"(first.group[0]), "r"(first.group[1]), "r"(second.group[0]), "r"(second.group[1]), "r"(x0), "r"(x1));
    } else {
      asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
          : "r"(first.group[0]), "r"(first.group[1]), "r"(second.group[0]), "r"(second.group[1]), "r"(x0), "r"(x1));
    }
  }
  __device__ __forceinline__ void times_plus(std::int32_t factor, const TileSums& others) {
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] = c[i] * factor + others.c[i];
  }
};

/// What a lane knows of the activations of a piece, and what it makes of tiles.
template <class Form, bool kGrouped>
class TileLane {
 public:
  using S = TileSlice<Form, kGrouped>;
  using Codes = typename Form::Codes;
  using Scales = typename Form::Scales;
  static constexpr int kHalves = Scales::kParts;  ///< of a group, with scales of their own
  static constexpr bool kHasSum = Scales::kHasMin || Scales::kRow || Form::kZeroOfFormat != 0.0f;
  /// In shared memory, of 256 columns: codes, and of each half of a group scale and sum.
  static constexpr std::uint32_t kPartBytes = kPartGroups * (32 + 8 * kHalves), kXBytes = S::kParts * kPartBytes;
  static constexpr std::uint32_t kZeroBytes = 32;  ///< behind them, for lanes without activations

  /// Begins with what does not depend on the kernel before. `x`: where the warp keeps its activations in shared memory.
  __device__ __forceinline__ TileLane(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place,
                                      std::uint32_t lane, std::uint32_t x)
      : tables_(plan.zero), is_of_first_(lane % 4 < 2), lane_(lane), x_at_(x) {
    const std::uint32_t row = lane / 4, c = lane % 4;
    codes_at_ = row * S::kCodeStride + c * Codes::kBytes + row % 2 * S::kExchanged;
    other_at_ = row * S::kCodeStride + c * Codes::kBytes + (1 - row % 2) * S::kExchanged;
    high_at_ = S::kHighAt + row * S::kHighStride + c * Codes::kHighBytes;
    const std::uint32_t zeros = x + plan.warp_pieces * kXBytes;
    const bool has_x = row % 4 == c;
    words_at_ = has_x ? x + row * 32 : zeros;
    words_step_ = has_x ? kXBytes : 0;
    for (std::uint32_t* number : {&codes_at_, &other_at_, &high_at_, &words_at_, &words_step_}) keep(*number);
    if (lane < 8) store_shared(zeros + lane * 4, 0);
    find_scales(args, place.columns * S::kGroups);
  }

  /// Puts codes of 256 columns where `take` finds them: words 2 · (lane % 4) and the next of group lane / 4, its scale
  /// and that times the sum of its codes. Parts are counted through the warp's pieces.
  __device__ __forceinline__ void put(const MatVecArgs& args, std::uint32_t part, uint2 words, float2 scale) const {
    const std::uint32_t group = lane_ / 4, c = lane_ % 4, at = x_at_ + part * kPartBytes;
    if constexpr (CodeDot<Codes>::kInOrder) {
      store_shared(at + lane_ * 8, words.x, words.y);
    } else {
      store_shared(at + group * 32 + CodeDot<Codes>::place(2 * c) * 4, words.x);
      store_shared(at + group * 32 + CodeDot<Codes>::place(2 * c + 1) * 4, words.y);
    }
    if constexpr (kHalves == 2 && kHasSum) {
      std::int32_t sum = dot4(0x01010101u, words.x, dot4(0x01010101u, words.y, 0));
      sum += __shfl_xor_sync(~0u, sum, 1);
      scale.y = times(scale.x, static_cast<float>(sum));
    }
    if constexpr (!Scales::kHasMin) scale.y *= Scales::kRow ? args.products[0].planes.zero : Form::kZeroOfFormat;
    if (c % (4 / kHalves) != 0) return;
    const int half = kHalves == 2 ? static_cast<int>(c / 2) : 0;
    const float unit = Form::kStep / CodeDot<Codes>::factor(half, kHalves);
    store_shared(at + 256 + (half * kPartGroups + group) * 8, __float_as_uint(scale.x * unit),
                 __float_as_uint(scale.y));
  }

  /// Takes up a piece.
  __device__ __forceinline__ void take(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place,
                                       std::uint32_t piece) {
    const std::uint32_t words = words_at_ + piece * words_step_, next = words_step_ / S::kParts;
    const std::uint32_t scales = x_at_ + lane_ % 4 * 16 + 256 + piece * kXBytes;
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
      load_shared<8>(words + part * next, x_[part]);
      take_scales(part, scales + part * kPartBytes);
    }
    if (args.products[0].planes.groups % S::kGroups != 0) {  // the last piece differs
      find_scales(args, (piece * plan.column_warps + place.columns) * S::kGroups);
    }
  }

  /// Of this lane's row and groups 2c and 2c + 1 of all parts; `slice`: address in shared memory.
  __device__ __forceinline__ float product(std::uint32_t slice) const {
    float result = 0;
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) add_part(slice, part, result);
    return result;
  }

 private:
  __device__ __forceinline__ void take_scales(int part, std::uint32_t at) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      std::uint32_t both[4];
      load_shared<4>(at + half * kPartGroups * 8, both);
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        scale_[part][half][u] = __uint_as_float(both[2 * u]);
        sum_[part][half][u] = __uint_as_float(both[2 * u + 1]);
      }
    }
  }
  /// Scales behind the end might be infinite: the first are read in their place, for activations that are zeros.
  __device__ __forceinline__ void find_scales(const MatVecArgs& args, std::uint32_t first) {
    const Planes& p = args.products[0].planes;
    const std::uint32_t row = lane_ / 4, scales_at = S::kScalesAt + row * S::kScaleRow;
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
      const std::uint32_t own = part * kPartGroups + 2 * (lane_ % 4);
      const bool exists = first + own < p.groups;
      if constexpr (kGrouped) {
        scale_at_[part][0] = scales_at + (exists ? (own >> p.scale_shift) * 4 : 0);
        scale_at_[part][1] = scales_at + (first + own + 1 < p.groups ? (own + 1 >> p.scale_shift) * 4 : 0);
        keep(scale_at_[part][1]);
      } else {
        scale_at_[part][0] = scales_at + (exists ? own * Scales::kBytes : 0);
      }
      // Rows of two bytes each begin in the middle of a word if there is an odd number of them.
      const std::uint32_t behind = Scales::kSuperBytes == 2 ? p.stride / kPartGroups * row % 2 * 2 : 0;
      super_at_[part] = S::kSupersAt + row * 8 + behind + (exists ? part * Scales::kSuperBytes : 0);
      if constexpr (S::kScaleRow > 0) keep(scale_at_[part][0]);
      if constexpr (S::kSuperRow > 0) keep(super_at_[part]);
    }
  }

  __device__ __forceinline__ void add_part(std::uint32_t slice, int part, float& result) const {
    CodePair<Codes> pair;
    load_codes(slice, part, pair);
    std::uint32_t scales[2] = {}, supers = 0;
    float group_scales[2] = {1, 1};
    if constexpr (kGrouped) {
#pragma unroll
      for (int u = 0; u < 2; ++u) group_scales[u] = __uint_as_float(load_shared_small<4>(slice + scale_at_[part][u]));
    } else if constexpr (Scales::kBytes == 4) {
      load_shared<2>(slice + scale_at_[part][0], scales);
    } else if constexpr (Scales::kBytes > 0) {
      scales[0] = load_shared_small<2 * Scales::kBytes>(slice + scale_at_[part][0]);
      scales[1] = scales[0] >> 8 * Scales::kBytes;
    }
    if constexpr (Scales::kSuperBytes > 0) supers = load_shared_small<Scales::kSuperBytes>(slice + super_at_[part]);
    TileSums dots[kHalves];
    CodeDot<Codes>::template dots<kHalves>(pair, x_[part], tables_, dots);
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const GroupScale s = Scales::read(scales[u], supers, group_scales[u]);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const std::int32_t dot = is_of_first_ ? dots[half].c[u] : dots[half].c[2 + u];
        float value = scale_[part][half][u] * static_cast<float>(dot);
        if constexpr (kHasSum && !Scales::kHasMin) value -= sum_[part][half][u];
        result += s.scale[half] * value;
        if constexpr (Scales::kHasMin) result -= s.min[half] * sum_[part][half][u];
      }
    }
  }

  __device__ __forceinline__ void load_codes(std::uint32_t slice, int part, CodePair<Codes>& pair) const {
    constexpr int kQuad = 4 * Codes::kBytes;  // four groups
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const int quad = 2 * part + g;
      if constexpr (S::kExchanged == 16) {
        load_shared<4>(slice + codes_at_ + kQuad * quad, pair.codes[g]);
        load_shared<4>(slice + other_at_ + kQuad * quad, pair.codes[g] + 4);
      } else if constexpr (S::kExchanged == 64) {
        load_shared<4>(slice + (g == 0 ? codes_at_ : other_at_) + 2 * kQuad * part, pair.codes[g]);
      } else {
        load_shared<Codes::kBytes / 4>(slice + codes_at_ + kQuad * quad, pair.codes[g]);
      }
      if constexpr (S::kHighRow > 0) {
        load_shared<Codes::kHighBytes / 4>(slice + high_at_ + 4 * Codes::kHighBytes * quad, pair.high[g]);
      }
    }
  }

  typename CodeDot<Codes>::Tables tables_;
  bool is_of_first_;  // groups 2c, 2c + 1 are among the first four
  std::uint32_t lane_, x_at_, words_at_, words_step_;
  std::uint32_t codes_at_, other_at_, high_at_, scale_at_[S::kParts][2], super_at_[S::kParts];  // in a slice
  std::uint32_t x_[S::kParts][8];
  float scale_[S::kParts][kHalves][2], sum_[S::kParts][kHalves][2];  // sums: times their scale, and zero points
};

}  // namespace imago::kernels::cuda
