#pragma once

// Coded weights in the streaming matvec. A warp takes a tile at a time, of eight or 16 rows and some columns, and
// multiplies parts of eight rows and 256 columns on tensor cores. Theirs have 16 rows, 8 columns and 32 bytes between;
// here
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
template <class Form, bool kGrouped, bool kSingle>
class TileLane {
 public:
  using S = TileSlice<Form, kGrouped, kSingle>;
  using Codes = typename Form::Codes;
  using Scales = typename Form::Scales;
  static constexpr int kHalves = Scales::kParts;  ///< of a group, with scales of their own
  static constexpr bool kDecodesAhead = CodeDot<Codes>::kIsSlow;
  static constexpr bool kHasSum = Scales::kHasMin || Scales::kRow || Form::kZeroOfFormat != 0.0f;
  /// In shared memory, of 256 columns: codes, and of each half of a group scale and sum.
  static constexpr std::uint32_t kPartBytes = kPartGroups * (32 + 8 * kHalves), kXBytes = S::kParts * kPartBytes;
  /// Behind them, for lanes without activations: 32, in other banks than those that are read together with them.
  static constexpr std::uint32_t kZerosAt = 16, kZeroBytes = kZerosAt + 32;

  /// Begins with what does not depend on the kernel before. `x`: where the warp keeps its activations in shared memory.
  __device__ __forceinline__ TileLane(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place,
                                      std::uint32_t lane, std::uint32_t x)
      : is_of_first_(lane % 4 < 2), lane_(lane), x_at_(x) {
    const std::uint32_t row = lane / 4, c = lane % 4;
    codes_at_ = row * S::kCodeStride + c * Codes::kBytes + row % 2 * S::kExchanged;
    other_at_ = row * S::kCodeStride + c * Codes::kBytes + (1 - row % 2) * S::kExchanged;
    high_at_ = S::kHighAt + row * S::kHighStride + c * Codes::kHighBytes;
    const std::uint32_t zeros = x + plan.warp_pieces * kXBytes + kZerosAt;
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
    const std::uint32_t number = piece * plan.column_warps + place.columns;
    if (args.products[0].planes.groups % S::kGroups != 0) find_scales(args, number * S::kGroups);  // the last differs
    // Of two bytes, alone: the second of a word if the number is odd.
    if constexpr (S::kSuperBytes == 2) super_at_[0] = S::kSupersAt + lane_ / 4 * S::kSuperRow + number % 2 * 2;
  }

  /// Codes of the first tile, taken apart while activations are on their way. A second one finds no registers.
  struct Ahead {
    CodeWords<Codes> parts[S::kHeight][S::kParts];
  };
  __device__ __forceinline__ void decode(std::uint32_t slice, Ahead& ahead) const {
#pragma unroll
    for (int i = 0; i < S::kAll; ++i) {
      const int eight = i / S::kParts, part = i % S::kParts;
      ahead.parts[eight][part] = CodeWords<Codes>(load_codes(slice, eight, part));
    }
  }

  /// Adds products of this lane's row in each eight, and of groups 2c and 2c + 1 of all parts; `slice`: address in
  /// shared memory.
  __device__ __forceinline__ void add_products(std::uint32_t slice, float (&results)[S::kHeight]) const {
    add_parts(slice, results, [&](int eight, int part, TileSums(&dots)[kHalves]) {
      CodeDot<Codes>::template dots<kHalves>(load_codes(slice, eight, part), x_[part], dots);
    });
  }
  __device__ __forceinline__ void add_products(std::uint32_t slice, const Ahead& ahead,
                                               float (&results)[S::kHeight]) const {
    add_parts(slice, results, [&](int eight, int part, TileSums(&dots)[kHalves]) {
      ahead.parts[eight][part].dots(x_[part], dots);
    });
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
      super_at_[part] = S::kSupersAt + row * S::kSuperRow + (exists ? part * Scales::kSuperBytes : 0);
      if constexpr (S::kScaleRow > 0) keep(scale_at_[part][0]);
      if constexpr (S::kSuperRow > 0) keep(super_at_[part]);
    }
  }

  template <class Dots>
  __device__ __forceinline__ void add_parts(std::uint32_t slice, float (&results)[S::kHeight], Dots dots_of) const {
#pragma unroll
    for (int eight = 0; eight < S::kHeight; ++eight) {
      float result = 0;
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) {
        TileSums dots[kHalves];
        dots_of(eight, part, dots);
        add_part(slice, eight, part, dots, result);
      }
      results[eight] += result;
    }
  }

  __device__ __forceinline__ void add_part(std::uint32_t slice, int eight, int part, const TileSums (&dots)[kHalves],
                                           float& result) const {
    const std::uint32_t row = slice + eight * (kPartRows * S::kScaleRow);
    std::uint32_t scales[2] = {}, supers = 0;
    float group_scales[2] = {1, 1};
    if constexpr (kGrouped) {
#pragma unroll
      for (int u = 0; u < 2; ++u) group_scales[u] = __uint_as_float(load_shared_small<4>(row + scale_at_[part][u]));
    } else if constexpr (Scales::kBytes == 4) {
      load_shared<2>(row + scale_at_[part][0], scales);
    } else if constexpr (Scales::kBytes > 0) {
      scales[0] = load_shared_small<2 * Scales::kBytes>(row + scale_at_[part][0]);
      scales[1] = scales[0] >> 8 * Scales::kBytes;
    }
    if constexpr (Scales::kSuperBytes > 0) {
      supers = load_shared_small<Scales::kSuperBytes>(slice + eight * (kPartRows * S::kSuperRow) + super_at_[part]);
    }
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

  __device__ __forceinline__ CodePair<Codes> load_codes(std::uint32_t slice, int eight, int part) const {
    CodePair<Codes> pair;
    constexpr int kQuad = 4 * Codes::kBytes;  // four groups
    const std::uint32_t codes = slice + eight * (kPartRows * S::kCodeStride);
    const std::uint32_t high = slice + eight * (kPartRows * S::kHighStride);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      const int quad = 2 * part + g;
      if constexpr (S::kExchanged == 16) {
        load_shared<4>(codes + codes_at_ + kQuad * quad, pair.codes[g]);
        load_shared<4>(codes + other_at_ + kQuad * quad, pair.codes[g] + 4);
      } else if constexpr (S::kExchanged == 64) {
        load_shared<4>(codes + (g == 0 ? codes_at_ : other_at_) + 2 * kQuad * part, pair.codes[g]);
      } else {
        load_shared<Codes::kBytes / 4>(codes + codes_at_ + kQuad * quad, pair.codes[g]);
      }
      if constexpr (S::kHighRow > 0) {
        load_shared<Codes::kHighBytes / 4>(high + high_at_ + 4 * Codes::kHighBytes * quad, pair.high[g]);
      }
    }
    return pair;
  }

  bool is_of_first_;  // groups 2c, 2c + 1 are among the first four
  std::uint32_t lane_, x_at_, words_at_, words_step_;
  std::uint32_t codes_at_, other_at_, high_at_, scale_at_[S::kParts][2], super_at_[S::kParts];  // in a slice
  std::uint32_t x_[S::kParts][8];
  float scale_[S::kParts][kHalves][2], sum_[S::kParts][kHalves][2];  // sums: times their scale, and zero points
};

}  // namespace imago::kernels::cuda
