#pragma once

// Coded weights in the streaming matvec. A warp takes a tile at a time, of eight or 16 rows and some columns, and
// multiplies parts of eight rows and 256 columns on tensor cores. Theirs have 16 rows, 8 columns and 32 bytes between;
// here
//   rows g and g + 8    are row g of the matrix, its first and its last four groups
//   bytes of lane c     of four that share a row, are codes of groups c and c + 4, eight at a time
//   column n            has the activations of group n where the bytes are of that group, and zeros else
// so that a result is the sum of a single group, which has a scale of its own. Half of the results are of no use, but a
// lane has two that are, for groups 2c and 2c + 1 of row g, and a quarter of the instructions of products of four
// bytes.

#include <cstdint>

#include "kernels/cuda/code_dot.cuh"
#include "kernels/cuda/matvec_tile_feed.cuh"
#include "kernels/cuda/tile_scales.cuh"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

/// Of CodeDot, by tensor cores.
struct TileSums {
  std::int32_t c[4] = {};

  template <bool kSigned>
  __device__ __forceinline__ void add(const WordPair& first, const WordPair& second, const std::uint32_t (&x)[8],
                                      int i) {
    multiply_tile<kSigned>(c, {first.group[0], first.group[1], second.group[0], second.group[1]},
                           {x[2 * i], x[2 * i + 1]});
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
  using Weighing = TileScales<Form>;
  static constexpr int kHalves = Weighing::kHalves, kXWords = Weighing::kXWords;
  static constexpr bool kDecodesAhead = CodeDot<Codes>::kIsSlow;
  static constexpr bool kHasSum = Weighing::kHasSum;
  /// In shared memory, of 256 columns: codes, and of each group scale and sums.
  static constexpr std::uint32_t kXAt = kPartGroups * 32, kPartBytes = kXAt + kPartGroups * kXWords * 4;
  static constexpr std::uint32_t kXBytes = S::kParts * kPartBytes;
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
    const Planes& p = args.products[0].planes;
    const bool has_end = (plan.pieces - 1) % plan.column_warps == place.columns;
    end_piece_ = has_end ? place.pieces(plan) - 1 : ~0u;
    for (std::uint32_t* number : {&codes_at_, &other_at_, &high_at_, &words_at_, &words_step_, &end_piece_})
      keep(*number);
    if (lane < 8) store_shared(zeros + lane * 4, 0);
    put_at_ = x + row * 32 + CodeDot<Codes>::place(2 * c) * 4;
    put_entry_at_ = x + kXAt + row * (kXWords * 4);
    keep(put_at_), keep(put_entry_at_);
    if constexpr (kGrouped) {
      whole_ = find_scales(p, S::kGroups);
      end_ = find_scales(p, p.groups - (plan.pieces - 1) * S::kGroups);
    } else {
      using Patch = ScalePatch<Scales>;
      const std::uint32_t of_row = S::kScalesAt + row * Patch::kRow;
      scales_at_ = of_row + 2 * c * Scales::kBytes;
      supers_at_ = Scales::kHidesSuper ? of_row : S::kScalesAt + Patch::kSupersAt + row * Scales::kSuperBytes;
      own_bytes_ = 0x10 + 0x22 * c;
      for (std::uint32_t* number : {&scales_at_, &supers_at_, &own_bytes_}) keep(*number);
    }
  }

  /// Puts codes of 256 columns where `take` finds them: words 2 · (lane % 4) and the next of group lane / 4, its scale
  /// and what TileScales asks for besides. Parts are counted through the warp's pieces.
  __device__ __forceinline__ void put(const MatVecArgs& args, std::uint32_t part, uint2 words, float2 scale) const {
    const std::uint32_t c = lane_ % 4, at = put_at_ + part * kPartBytes;
    if constexpr (CodeDot<Codes>::kInOrder) {
      store_shared(at, words.x, words.y);
    } else {
      store_shared(at, words.x);
      store_shared(at + (CodeDot<Codes>::place(1) - CodeDot<Codes>::place(0)) * 4, words.y);
    }
    const std::uint32_t entry = put_entry_at_ + part * kPartBytes;
    const float zero = Form::zero(args.products[0].planes);
    const std::uint32_t x_scale = __float_as_uint(scale.x * Weighing::unit());
    if constexpr (!kHasSum) {
      if (c == 0) store_shared(entry, x_scale);
    } else if constexpr (kHalves == 1) {
      if (c == 0) store_shared(entry, x_scale, Weighing::sum_bits(scale.y, 0, zero));
    } else {
      std::int32_t sum = dot4(0x01010101u, words.x, dot4(0x01010101u, words.y, 0));
      sum += __shfl_xor_sync(~0u, sum, 1);
      const std::uint32_t bits = Weighing::sum_bits(times(scale.x, static_cast<float>(sum)), sum, zero);
      if (c == 0) store_shared(entry, x_scale, bits);
      if (c == 2) store_shared(entry + 8, bits);
    }
  }

  /// Takes up a piece.
  __device__ __forceinline__ void take(std::uint32_t piece) {
    const std::uint32_t words = words_at_ + piece * words_step_, next = words_step_ / S::kParts;
    const std::uint32_t scales = x_at_ + kXAt + lane_ % 4 * (2 * kXWords * 4) + piece * kXBytes;
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
      load_shared<8>(words + part * next, x_[part]);
      load_shared<2 * kXWords>(scales + part * kPartBytes, &x_scales_[part][0][0]);
    }
    if constexpr (kGrouped) now_ = piece == end_piece_ ? end_ : whole_;
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
    add_parts(slice, results,
              [&](int eight, int part, TileSums(&dots)[kHalves]) { ahead.parts[eight][part].dots(x_[part], dots); });
  }

 private:
  /// Where a lane finds the numbers of its groups in a slice.
  struct ScalePlaces {
    std::uint32_t scale[S::kParts][2];
  };
  /// Of a piece with so many groups. What lies behind them might be infinite: the first are read in their place, for
  /// activations that are zeros.
  __device__ __forceinline__ ScalePlaces find_scales(const Planes& p, std::uint32_t groups) const {
    const std::uint32_t row = lane_ / 4, scales_at = S::kScalesAt + row * S::kScaleRow;
    ScalePlaces places{};
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const std::uint32_t own = part * kPartGroups + 2 * (lane_ % 4) + u;
        places.scale[part][u] = scales_at + (own < groups ? (own >> p.scale_shift) * 4 : 0);
        keep(places.scale[part][u]);
      }
    }
    return places;
  }

  template <class Dots>
  __device__ __forceinline__ void add_parts(std::uint32_t slice, float (&results)[S::kHeight], Dots dots_of) const {
#pragma unroll
    for (int eight = 0; eight < S::kHeight; ++eight) {
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) {
        TileSums dots[kHalves];
        dots_of(eight, part, dots);
        add_part(slice, eight, part, dots, results[eight]);
      }
    }
  }

  __device__ __forceinline__ void add_part(std::uint32_t slice, int eight, int part, const TileSums (&dots)[kHalves],
                                           float& result) const {
    PairBits bits;
    if constexpr (kGrouped) {
      const std::uint32_t row = slice + eight * (kPartRows * S::kScaleRow);
#pragma unroll
      for (int u = 0; u < 2; ++u) bits.rows[u] = __uint_as_float(load_shared_small<4>(row + now_.scale[part][u]));
    } else if constexpr (S::kPatch > 0) {
      load_bits(slice + (eight * S::kParts + part) * S::kPatch, bits);
    }
    std::int32_t sums[2][kHalves];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) sums[u][half] = is_of_first_ ? dots[half].c[u] : dots[half].c[2 + u];
    }
    result = Weighing::add(bits, sums, x_scales_[part], result);
  }

  /// Scales of groups 2c and 2c + 1, from a patch.
  __device__ __forceinline__ void load_bits(std::uint32_t patch, PairBits& bits) const {
    if constexpr (Scales::kHidesSuper) {
      load_shared<Scales::kSuperWords>(patch + supers_at_, bits.supers);
    } else if constexpr (Scales::kSuperBytes > 0) {
      bits.supers[0] = load_shared_small<Scales::kSuperBytes>(patch + supers_at_);
    }
    if constexpr (Scales::kHidesSuper && Scales::kBytes == 1) {  // they are there already
      bits.words[0] = pick_bytes(bits.supers[0], bits.supers[1], own_bytes_);
    } else if constexpr (Scales::kBytes == 4) {
      load_shared<2>(patch + scales_at_, bits.words);
    } else if constexpr (Scales::kBytes > 0) {
      bits.words[0] = load_shared_small<2 * Scales::kBytes>(patch + scales_at_);
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
  std::uint32_t put_at_, put_entry_at_;  // where this lane's part of the first activations and of their scales goes
  std::uint32_t end_piece_;              // the last of a row, which may reach past its end, if it is the warp's
  std::uint32_t codes_at_, other_at_, high_at_;  // in a slice
  std::uint32_t scales_at_, supers_at_;          // in a patch of a slice, the first one
  std::uint32_t own_bytes_;                      // scales of one byte: 2c and 2c + 1, for pick_bytes
  ScalePlaces whole_, end_, now_;
  std::uint32_t x_[S::kParts][8];
  std::uint32_t x_scales_[S::kParts][2][kXWords];  // of groups 2c and 2c + 1
};

}  // namespace imago::kernels::cuda
