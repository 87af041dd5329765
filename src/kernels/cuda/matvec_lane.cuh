#pragma once

// What a lane of the streaming matvec keeps and does: the activations of a few units of columns stay in its registers
// while the rows of the matrix pass by in shared memory. A unit is a group of 32 weights; half a group of 8-bit codes
// and 16 bytes of plain values, so that neighbouring lanes read neighbouring 16 bytes. A lane has
//   kUnits      units: two neighbouring groups, which share loads of scales; or else some that are 32 apart
//   kColumns    of all its units
//   kUnitBytes, kGroupBytes, kHighBytes, kScaleBytes, kSuperBytes
//               of a unit and of a group in the main codes; of a group, and of eight, in the other planes
//   unit_count  of a row
//   kInt8       whether activations are in int8 form
//   fetch       asks for the activations
//   product     of the lane's units of one row, but for the scale of the whole row if there is one

#include <cstdint>

#include "kernels/cuda/code_dot.cuh"
#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/matvec_dot.cuh"
#include "kernels/cuda/matvec_unit.cuh"

namespace imago::kernels::cuda {

/// Loads from shared memory by its own addresses: the compiler would work out ordinary pointers to it time and again.
template <int kWords>
__device__ __forceinline__ void load_shared(std::uint32_t address, std::uint32_t* to) {
  if constexpr (kWords == 1) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(to[0]) : "r"(address));
  } else if constexpr (kWords == 2) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(address));
  } else {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(to[i]), "=r"(to[i + 1]), "=r"(to[i + 2]), "=r"(to[i + 3])
                   : "r"(address + 4 * i));
    }
  }
}
/// 0, 1, 2 or 4 bytes.
template <int kBytes>
__device__ __forceinline__ std::uint32_t load_shared_small(std::uint32_t address) {
  std::uint32_t value = 0;
  if constexpr (kBytes == 1) asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(address));
  if constexpr (kBytes == 2) asm volatile("ld.shared.u16 %0, [%1];" : "=r"(value) : "r"(address));
  if constexpr (kBytes == 4) load_shared<1>(address, &value);
  return value;
}

/// Where a warp's part of one row lies in its ring: bytes from its codes to the other planes.
struct SlicePlanes {
  int high, scales, supers;
};

/// Coded forms with int8 activations.
template <class FormT>
class StreamLane {
 public:
  using Form = FormT;
  using Codes = typename Form::Codes;
  using Scales = typename Form::Scales;
  static constexpr bool kHalf = Codes::kBytes == 32;
  static constexpr int kUnits = kHalf ? 4 : 2, kUnitBytes = kHalf ? 16 : Codes::kBytes;
  static constexpr int kColumns = 64, kGroupBytes = Codes::kBytes;
  static constexpr int kHighBytes = Codes::kHighBytes, kScaleBytes = Scales::kBytes, kSuperBytes = Scales::kSuperBytes;
  static constexpr bool kRowScales = Scales::kRow, kInt8 = true;
  static constexpr int kNeighbours = kHalf ? 1 : 2 * kUnits;  ///< pieces of 16 activations side by side
  /// Whether a form in shared memory is for this lane: with q6_k registers would not do.
  static constexpr bool kTakesFormHere = Codes::kHighBytes <= 4;

  static constexpr std::uint32_t unit_count(std::uint32_t groups) noexcept { return kHalf ? 2 * groups : groups; }

  /// Asks for the int8 form (matvec_form.cuh); `first`: of the warp's units.
  template <class From>
  __device__ __forceinline__ void fetch(const MatVecArgs& args, const From& from, std::uint32_t first) {
    const std::uint32_t units = unit_count(args.products[0].planes.groups), lane = threadIdx.x % 32;
    // Behind the last unit: another one, with zeros for activations. Rows have an even number of groups in memory.
    last_ = units - 1 - first;
    codes_at_ = (kHalf ? lane : first + kUnits * lane < units ? kUnits * lane : 0) * kUnitBytes;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const std::uint32_t number = first + (kHalf ? 32 * u + lane : kUnits * lane + u);
      const bool exists = number < units;
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        uint4 v = {0, 0, 0, 0};
        if (exists) v = from.piece(number * (kWords / 4) + i);
        x_[u][4 * i] = v.x, x_[u][4 * i + 1] = v.y, x_[u][4 * i + 2] = v.z, x_[u][4 * i + 3] = v.w;
      }
      scale_[u] = exists ? from.scale(kHalf ? number / 2 : number) : 0.0f;
    }
  }

  /// When it is there; `factor`: what the scales lack.
  __device__ __forceinline__ void take(float factor) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const float scale = times(scale_[u], factor);
      scale_[u] = scale * (1.0f / kFactor);
#pragma unroll
      for (int part = 0; part < (kShifts ? kParts : 0); ++part) {
        std::int32_t sum = 0;
#pragma unroll
        for (int i = part * kPartWords; i < (part + 1) * kPartWords; ++i) sum = dot4(0x01010101u, x_[u][i], sum);
        sum_[u][part] = times(scale, static_cast<float>(sum));
      }
    }
  }

  /// `slice`: address in shared memory.
  template <SlicePlanes kPlanes>
  __device__ __forceinline__ float product(std::uint32_t slice, float zero) const {
    std::uint32_t codes[kUnits][kUnitBytes / 4], high[kUnits][kHighBytes / 4 + 1], scales[kUnits], supers[kUnits];
    load_row<kPlanes>(slice, codes, high, scales, supers);
    float result = 0;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const GroupFactors<Form> factors(Scales::read(scales[u], supers[u], 1.0f), zero);
      add_part<0>(codes[u], high[u], factors, u, result);
      if constexpr (kParts == 2) add_part<1>(codes[u], high[u], factors, u, result);
    }
    return result;
  }

 private:
  static constexpr int kWords = kHalf ? 4 : 8, kParts = Scales::kParts, kPartWords = kWords / kParts;
  static constexpr bool kShifts = GroupFactors<Form>::kShifts;
  static constexpr int kFactor = kHalf ? 1 : CodeDot<Codes>::kFactor;
  static_assert(!kHalf || kParts == 1);

  template <int kPart>
  __device__ __forceinline__ void add_part(const std::uint32_t* codes, const std::uint32_t* high,
                                           const GroupFactors<Form>& factors, int u, float& result) const {
    std::int32_t dot = 0;
    if constexpr (kHalf) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) dot = dot4(codes[i], x_[u][i], dot);
    } else {
      dot = CodeDot<Codes>::template dot<kPart, kParts>(codes, high, x_[u]);
    }
    result += factors.scale[kPart] * scale_[u] * static_cast<float>(dot);
    if constexpr (kShifts) result -= factors.shift[kPart] * sum_[u][kPart];
  }

  /// All that is read of a row. Where a lane's groups are neighbours, so are their bytes.
  template <SlicePlanes kPlanes>
  __device__ __forceinline__ void load_row(std::uint32_t slice, std::uint32_t (&codes)[kUnits][kUnitBytes / 4],
                                           std::uint32_t (&high)[kUnits][kHighBytes / 4 + 1],
                                           std::uint32_t (&scales)[kUnits], std::uint32_t (&supers)[kUnits]) const {
    if constexpr (kHalf) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        load_shared<4>(slice + codes_at_ + 512 * u, codes[u]);
        // Codes behind the end are any integers, but scales might be infinite.
        const std::uint32_t number = min(32 * u + threadIdx.x % 32, last_);
        scales[u] = load_shared_small<kScaleBytes>(slice + kPlanes.scales + number / 2 * kScaleBytes);
        supers[u] = 0;
      }
    } else {
      load_shared<kUnits * kUnitBytes / 4>(slice + codes_at_, codes[0]);
      if constexpr (kHighBytes > 0) {
        std::uint32_t words[kUnits * kHighBytes / 4];
        load_shared<kUnits * kHighBytes / 4>(slice + kPlanes.high + scale_at(kHighBytes), words);
#pragma unroll
        for (int u = 0; u < kUnits; ++u) {
#pragma unroll
          for (int i = 0; i < kHighBytes / 4; ++i) high[u][i] = words[u * (kHighBytes / 4) + i];
        }
      }
      if constexpr (kScaleBytes == 4) {
        load_shared<2>(slice + kPlanes.scales + scale_at(4), scales);
      } else {
        const std::uint32_t both = load_shared_small<2 * kScaleBytes>(slice + kPlanes.scales + scale_at(kScaleBytes));
        scales[0] = both;
        scales[1] = both >> 8 * kScaleBytes;
      }
      supers[0] = supers[1] =
          load_shared_small<kSuperBytes>(slice + kPlanes.supers + codes_at_ / (8 * kUnitBytes) * kSuperBytes);
    }
  }
  /// Where the lane's groups begin in a plane with so many bytes for each.
  __device__ __forceinline__ std::uint32_t scale_at(int bytes) const {
    return bytes >= kUnitBytes ? codes_at_ * (bytes / kUnitBytes) : codes_at_ / (kUnitBytes / (bytes > 0 ? bytes : 1));
  }

  std::uint32_t codes_at_, last_;  // bytes into the slice; its last unit that exists
  std::uint32_t x_[kUnits][kWords];
  float scale_[kUnits], sum_[kUnits][kParts];
};

/// Plain forms with float32 activations.
template <class T>
class StreamLane<Plain<T>> {
 public:
  using Form = Plain<T>;
  static constexpr int kValues = Unit<Form>::kValues, kUnits = 32 / kValues, kUnitBytes = 16;
  static constexpr int kColumns = 32, kGroupBytes = Form::kBytes, kHighBytes = 0, kScaleBytes = 0, kSuperBytes = 0;
  static constexpr bool kRowScales = is_scaled(dtype_of<T>), kInt8 = false;

  static constexpr std::uint32_t unit_count(std::uint32_t groups) noexcept { return Unit<Form>::count(groups); }

  __device__ __forceinline__ void fetch(const MatVecArgs& args, std::uint32_t first) {
    const std::uint32_t units = unit_count(args.products[0].planes.groups);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const std::uint32_t number = first + 32 * u + threadIdx.x % 32;
      exists_[u] = number < units;
      const float4* const from = reinterpret_cast<const float4*>(args.x + (exists_[u] ? number : 0) * kValues);
#pragma unroll
      for (int i = 0; i < kValues / 4; ++i) {
        const float4 v = from[i];
        x_[u][4 * i] = v.x, x_[u][4 * i + 1] = v.y, x_[u][4 * i + 2] = v.z, x_[u][4 * i + 3] = v.w;
      }
    }
  }

  template <SlicePlanes>
  __device__ __forceinline__ float product(std::uint32_t slice, float) const {
    float result = 0;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (!exists_[u]) continue;  // weights may be infinite or NaN
      Unit<Form> unit;
      std::uint32_t words[4];
      load_shared<4>(slice + (32 * u + threadIdx.x % 32) * 16, words);
      unit.bytes = {words[0], words[1], words[2], words[3]};
      float w[kValues];
      unit.values(w);
#pragma unroll
      for (int i = 0; i < kValues; ++i) result += w[i] * x_[u][i];
    }
    return result;
  }

 private:
  bool exists_[kUnits];
  float x_[kUnits][kValues];
};

}  // namespace imago::kernels::cuda
