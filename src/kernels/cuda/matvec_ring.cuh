#pragma once

// How a warp streams rows of weights through shared memory. A stage is what its 32 lanes need for one unit each: 512
// bytes of codes and what belongs to them. Copies are asynchronous (cp.async), so bytes on their way cost no registers.

#include <cstdint>

#include "kernels/cuda/matvec_unit.cuh"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

/// Bytes of a stage: two units for every lane, first the codes of both, then what else there is of both. 80 KiB for the
/// rings of 16 warps leave room for activations, and for the block of the next kernel.
template <int kGroupsT, int kHighOfGroup, int kScaleOfGroup, int kSuperOfEight>
struct StageSizes {
  static constexpr int kParts = 2;
  static constexpr int kGroups = kParts * kGroupsT;
  static constexpr int kHighAt = kParts * 512, kHighBytes = kGroups * kHighOfGroup;
  static constexpr int kScalesAt = kHighAt + kHighBytes, kScaleBytes = kGroups * kScaleOfGroup;
  /// In words: those of two bytes come with that of the row before or behind.
  static constexpr int kSupersAt = kScalesAt + kScaleBytes, kSuperBytes = kSuperOfEight == 0 ? 0 : kGroups / 8 * 4;
  static constexpr int kBytes = (kSupersAt + kSuperBytes + 15) / 16 * 16;
  static constexpr int kCount = 5120 / kBytes;  ///< stages of a warp
};
template <class Form>
struct Stage : StageSizes<0, 0, 0, 0> {};  // plain: values only
template <class Codes, class Scales, int kZero, int kStep>
struct Stage<Coded<Codes, Scales, kZero, kStep>>
    : StageSizes<512 / Codes::kBytes, Codes::kHighBytes, Scales::kBytes, Scales::kSuperBytes> {};

/// Where the lanes of a warp read rows of a matrix. The last copies of a row may run past its end, into what follows:
/// it is not looked at.
template <class Form>
class RowStream {
 public:
  using S = Stage<Form>;

  __device__ __forceinline__ void open(const Planes& p, std::uint32_t lane) {
    stride_ = p.stride;
    codes_base_ = p.codes + lane * 16;
    if constexpr (S::kHighBytes > 0) high_base_ = p.high + lane * piece_of(S::kHighBytes);
    if constexpr (kHasPatches) {
      // Those of a row are a few bytes of each of its patches.
      using Patch = ScalePatch<typename Form::Scales>;
      patches_ = p.patches;
      if constexpr (!kAreLevels<typename Form::Codes>) patches_.pairs = 0;  // as it is: for the compiler
      const std::uint32_t at = lane * piece_of(S::kScaleBytes);
      if constexpr (S::kScaleBytes > 0) {
        scales_base_ = p.scales + (at / Patch::kRow << patches_.pairs) * Patch::kBytes + at % Patch::kRow;
      }
      if constexpr (S::kSuperBytes > 0) {
        supers_base_ = p.scales + (lane << patches_.pairs) * Patch::kBytes + Patch::kSupersAt;
      }
    }
  }
  __device__ __forceinline__ void start(std::uint32_t row) {
    const auto bytes = [&](std::uint32_t of_group) { return static_cast<std::size_t>(row) * (stride_ * of_group); };
    codes_ = codes_base_ + bytes(code_bytes<Form>());
    if constexpr (S::kHighBytes > 0) high_ = high_base_ + bytes(Form::Codes::kHighBytes);
    if constexpr (kHasPatches) {
      using Patch = ScalePatch<typename Form::Scales>;
      const PatchRow place(patches_, row);
      const std::size_t first = static_cast<std::size_t>(place.first) * Patch::kBytes;
      if constexpr (S::kScaleBytes > 0) scales_ = scales_base_ + first + place.row * Patch::kRow;
      if constexpr (S::kSuperBytes > 0) supers_ = supers_base_ + first + place.row * Form::Scales::kSuperBytes / 4 * 4;
    }
  }
  /// `left`: units of the row that were not copied yet.
  __device__ __forceinline__ void copy(std::uint32_t to, std::uint32_t lane, std::uint32_t left) {
    copy_async<16>(to + lane * 16, codes_);
    if (left > 32) copy_async<16>(to + 512 + lane * 16, codes_ + 512);
    codes_ += 1024;
    if constexpr (S::kHighBytes > 0) {
      copy_shared<S::kHighBytes>(to + S::kHighAt, lane, high_);
      high_ += S::kHighBytes;
    }
    if constexpr (kHasPatches) {
      const std::uint32_t step = S::kGroups / kPatchGroups * ScalePatch<typename Form::Scales>::kBytes
                                 << patches_.pairs;
      copy_shared<S::kScaleBytes>(to + S::kScalesAt, lane, scales_);
      copy_shared<S::kSuperBytes>(to + S::kSupersAt, lane, supers_);
      if constexpr (S::kScaleBytes > 0) scales_ += step;
      if constexpr (S::kSuperBytes > 0) supers_ += step;
    }
  }

 private:
  /// Bytes that a lane copies of what all lanes share: 4, 8 or 16, or 4 in some of the lanes.
  static constexpr int piece_of(int bytes) noexcept { return bytes < 128 ? 4 : bytes / 32; }
  static constexpr bool kHasPatches = S::kScaleBytes + S::kSuperBytes > 0;

  template <int kBytes>
  static __device__ __forceinline__ void copy_shared(std::uint32_t to, std::uint32_t lane, const std::byte* from) {
    if constexpr (kBytes > 0) {
      constexpr int kPiece = piece_of(kBytes);
      if (kBytes >= 128 || lane * 4 < kBytes) copy_async<kPiece>(to + lane * kPiece, from);
    }
  }

  std::uint32_t stride_;
  PatchGrid patches_;
  const std::byte* codes_base_;
  const std::byte* high_base_;
  const std::byte* scales_base_;
  const std::byte* supers_base_;
  const std::byte* codes_;
  const std::byte* high_;
  const std::byte* scales_;
  const std::byte* supers_;
};

/// A lane's unit in a stage, the first or the second; `row`: of the matrix.
template <class Form>
__device__ __forceinline__ Unit<Form> read_stage(const std::byte* stage, int part, std::uint32_t lane,
                                                 std::uint32_t row) {
  using S = Stage<Form>;
  using Load = Unit<Form>;
  Load unit;
  const uint4 v = *reinterpret_cast<const uint4*>(stage + part * 512 + lane * 16);
  if constexpr (!Form::kCoded) {
    unit.bytes = v;
  } else {
    unit.codes[0] = v.x;
    unit.codes[1] = v.y;
    unit.codes[2] = v.z;
    unit.codes[3] = v.w;
    const std::uint32_t number = part * 32 + lane;
    if constexpr (S::kHighBytes > 0) {
      constexpr int kOwn = S::kHighBytes / 64;
      const std::uint32_t* high = reinterpret_cast<const std::uint32_t*>(stage + S::kHighAt + number * kOwn);
#pragma unroll
      for (int i = 0; i < kOwn / 4; ++i) unit.high[i] = high[i];
    }
    if constexpr (S::kScaleBytes > 0) {
      constexpr int kOwn = Load::kGroups * Form::Scales::kBytes;
      const std::uint32_t own = Load::kHalf ? number / 2 : number;
      unit.scales = detail::load_small<kOwn>(stage + S::kScalesAt + own * kOwn);
    }
    using Scales = typename Form::Scales;
    const std::uint32_t eight = (Load::kHalf ? number / 2 : number * Load::kGroups) / kPatchGroups;
    if constexpr (Scales::kHidesSuper) {
      const std::byte* const own = stage + S::kScalesAt + eight * ScalePatch<Scales>::kRow;
      if constexpr (Scales::kSuperWords == 4) {
        const uint4 words = *reinterpret_cast<const uint4*>(own);
        unit.supers[0] = words.x, unit.supers[1] = words.y, unit.supers[2] = words.z, unit.supers[3] = words.w;
      } else {
        const uint2 words = *reinterpret_cast<const uint2*>(own);
        unit.supers[0] = words.x, unit.supers[1] = words.y;
      }
    } else if constexpr (S::kSuperBytes > 0) {
      const std::uint32_t odd = Scales::kSuperBytes == 2 ? row % 2 * 2 : 0;
      unit.supers[0] = detail::load_small<Scales::kSuperBytes>(stage + S::kSupersAt + eight * 4 + odd);
    }
  }
  return unit;
}

}  // namespace imago::kernels::cuda
