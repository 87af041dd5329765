#pragma once

// Where the tiles of a streaming matvec get their activations: a warp fetches the int8 form of its own columns, or
// makes it, of x or of its RMS norm. A kernel of its own for that costs as much as a small product. The factor of the
// norm is one number for all columns, so nobody waits for it: results are multiplied with it at the end.

#include <cstdint>

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/matvec_tile.cuh"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

/// Eight activations of a lane: the fourth part of group lane / 4 of 256 columns.
struct LaneX {
  float4 first = {0, 0, 0, 0}, second = {0, 0, 0, 0};

  __device__ __forceinline__ LaneX() = default;
  __device__ __forceinline__ explicit LaneX(const float* from) {
    first = *reinterpret_cast<const float4*>(from);
    second = *reinterpret_cast<const float4*>(from + 4);
  }
  __device__ __forceinline__ float squares() const {
    return first.x * first.x + first.y * first.y + first.z * first.z + first.w * first.w + second.x * second.x +
           second.y * second.y + second.z * second.z + second.w * second.w;
  }
};

/// Waits for the kernel before, and takes up what it has made. Calls `meanwhile` when the first of that is asked for.
template <class Lane, bool kSingle>
class TileX {
 public:
  __device__ __forceinline__ TileX(const MatVecArgs& args, const StreamPlan& plan, const WarpPlace& place)
      : args_(args), first_(place.columns), step_(plan.column_warps), parts_(plan.warp_pieces * kParts) {
    is_whole_ = ((plan.warp_pieces - 1) * step_ + first_ + 1) * (kParts * kPartGroups) <= groups();
  }

  /// Of an int8 form that is there. Where it is found is worked out before the kernel before has ended.
  template <class Meanwhile>
  __device__ __forceinline__ void fetch(const Lane& lane, Meanwhile meanwhile) const {
    Int8Places places(*this, 0);
    places.keep_all();
    wait_for_previous();
    const Int8Parts first(places);
    meanwhile();
    put(lane, 0, first);
    for (std::uint32_t part = kFetched; part < parts_; part += kFetched) {
      put(lane, part, Int8Parts(Int8Places(*this, part)));
    }
  }

  /// Of x. Returns this lane's part of the sum of squares.
  template <class Meanwhile>
  __device__ __forceinline__ float make(const Lane& lane, Meanwhile meanwhile) const {
    LaneX weights[kMade];  // they do not depend on the kernel before: asked for while that one runs
    const float* from[kMade];
#pragma unroll
    for (std::uint32_t i = 0; i < kMade; ++i) {
      weights[i] = weight(i);
      from[i] = args_.x + column(i);
      keep(from[i]);
    }
    wait_for_previous();
    float squares = 0;
    for (std::uint32_t part = 0;;) {
      LaneX x[kMade];
#pragma unroll
      for (std::uint32_t i = 0; i < kMade; ++i) {
        if (exists(part + i)) x[i] = LaneX(from[i]);
      }
      if (part == 0) meanwhile();
#pragma unroll
      for (std::uint32_t i = 0; i < kMade; ++i) {
        if (part + i < parts_) put(lane, part + i, x[i], weights[i]);
        squares += x[i].squares();
      }
      part += kMade;
      if (part >= parts_) return squares;
#pragma unroll
      for (std::uint32_t i = 0; i < kMade; ++i) {
        weights[i] = weight(part + i);
        from[i] = args_.x + column(part + i);
      }
    }
  }

 private:
  static constexpr std::uint32_t kParts = Lane::S::kParts;
  // Parts that are on their way together.
  static constexpr std::uint32_t kFetched = kSingle ? kParts : 8, kMade = 2;

  /// Of parts that are fetched together. Those that do not exist are somewhere, too.
  struct Int8Places {
    const uint2* codes[kFetched];
    const float2* scales[kFetched];

    __device__ __forceinline__ Int8Places(const TileX& x, std::uint32_t part) {
      const uint2* const all_codes = reinterpret_cast<const uint2*>(x.args_.q) + threadIdx.x % 4;
      const float2* const all_scales = reinterpret_cast<const float2*>(x.args_.scales);
      if (x.is_whole_) {
        std::uint32_t group = x.group_of(part);
#pragma unroll
        for (std::uint32_t i = 0; i < kFetched; ++i) {
          codes[i] = all_codes + group * 4;
          scales[i] = all_scales + group;
          const std::uint32_t step = i % kParts + 1 < kParts ? 1 : (x.step_ - 1) * kParts + 1;
          if (part + i + 1 < x.parts_) group += step * kPartGroups;
        }
      } else {
#pragma unroll
        for (std::uint32_t i = 0; i < kFetched; ++i) {
          const std::uint32_t group = x.exists(part + i) ? x.group_of(part + i) : 0;
          codes[i] = all_codes + group * 4;
          scales[i] = all_scales + group;
        }
      }
    }
    __device__ __forceinline__ void keep_all() {
#pragma unroll
      for (std::uint32_t i = 0; i < kFetched; ++i) keep(codes[i]), keep(scales[i]);
    }
  };
  /// What is found there.
  struct Int8Parts {
    uint2 codes[kFetched];
    float2 scales[kFetched];

    __device__ __forceinline__ explicit Int8Parts(const Int8Places& places) {
#pragma unroll
      for (std::uint32_t i = 0; i < kFetched; ++i) {
        codes[i] = *places.codes[i];
        scales[i] = *places.scales[i];
      }
    }
  };
  /// Parts from number `part` on. Behind the end of a row there are zeros.
  __device__ __forceinline__ void put(const Lane& lane, std::uint32_t part, const Int8Parts& parts) const {
    const auto put_all = [&](auto scale_of) {
#pragma unroll
      for (std::uint32_t i = 0; i < kFetched; ++i) {
        if (kSingle || part + i < parts_) lane.put(args_, part + i, parts.codes[i], scale_of(i));
      }
    };
    if (is_whole_) {
      put_all([&](std::uint32_t i) { return parts.scales[i]; });
    } else {
      put_all([&](std::uint32_t i) { return exists(part + i) ? parts.scales[i] : float2{0, 0}; });
    }
  }

  __device__ __forceinline__ std::uint32_t groups() const { return args_.products[0].planes.groups; }
  __device__ __forceinline__ std::uint32_t group_of(std::uint32_t part) const {
    return ((part / kParts * step_ + first_) * kParts + part % kParts) * kPartGroups + threadIdx.x % 32 / 4;
  }
  __device__ __forceinline__ std::uint32_t column(std::uint32_t part) const {
    return group_of(part) * static_cast<std::uint32_t>(kGroup) + threadIdx.x % 4 * 8;
  }
  __device__ __forceinline__ bool exists(std::uint32_t part) const {
    return part < parts_ && group_of(part) < groups();
  }
  __device__ __forceinline__ LaneX weight(std::uint32_t part) const {
    if (args_.norm_weight != nullptr && exists(part)) return LaneX(args_.norm_weight + column(part));
    LaneX ones;
    ones.first = ones.second = {1, 1, 1, 1};
    return ones;
  }
  __device__ __forceinline__ void put(const Lane& lane, std::uint32_t part, const LaneX& x, const LaneX& w) const {
    const float values[8] = {x.first.x * w.first.x,   x.first.y * w.first.y,   x.first.z * w.first.z,
                             x.first.w * w.first.w,   x.second.x * w.second.x, x.second.y * w.second.y,
                             x.second.z * w.second.z, x.second.w * w.second.w};
    alignas(8) std::int8_t codes[8];
    float2 scale = {int8_codes(values, codes).scale, 0};
    const uint2 words = *reinterpret_cast<const uint2*>(codes);
    if constexpr (Lane::kHasSum && Lane::kHalves == 1) {
      std::int32_t sum = dot4(0x01010101u, words.x, dot4(0x01010101u, words.y, 0));
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      scale.y = times(scale.x, static_cast<float>(sum));
    }
    lane.put(args_, part, words, scale);
  }

  const MatVecArgs& args_;
  std::uint32_t first_, step_;  // the warp's first piece, and from one to the next
  std::uint32_t parts_;         // of all its pieces
  bool is_whole_;               // all of them exist
};

}  // namespace imago::kernels::cuda
