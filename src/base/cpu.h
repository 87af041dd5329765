#pragma once

// Which instructions this processor has, and which of them the user allows.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace imago {

/// Bit mask of instruction-set groups. A kernel row states the groups it needs.
using CpuFeatures = std::uint32_t;

inline constexpr CpuFeatures kNoFeatures = 0;
inline constexpr CpuFeatures kAvx2 = 1u << 0;     ///< AVX2, FMA, F16C, BMI1/2: every x86 server since 2013
inline constexpr CpuFeatures kAvx512 = 1u << 1;   ///< AVX-512 F, BW, DQ, VL, CD: Skylake-SP, Zen 4
inline constexpr CpuFeatures kVnni = 1u << 2;     ///< AVX-512 VNNI
inline constexpr CpuFeatures kVbmi = 1u << 3;     ///< AVX-512 VBMI
inline constexpr CpuFeatures kNeonDot = 1u << 4;  ///< Arm NEON with dot product: Neoverse N1, Apple M1
inline constexpr CpuFeatures kAmx = 1u << 5;      ///< AMX tiles of bfloat16, and AVX-512 BF16: Sapphire Rapids

/// Whether all that is needed is among `features`.
constexpr bool within(CpuFeatures needs, CpuFeatures features) noexcept { return (needs & features) == needs; }

struct CpuFeatureName {
  CpuFeatures bit;
  std::string_view name;
};

/// All groups that kernels may ask for on this architecture.
std::vector<CpuFeatureName> known_cpu_features();

/// Groups that the processor and the operating system support. Asked once.
CpuFeatures host_cpu_features() noexcept;

/// Groups that kernels may use: those of the host, less what IMAGO_KERNELS=ref|avx2|avx512|amx|neon rules out (a name
/// allows itself and everything below it). Read at each call. Throws UsageError for any other value.
CpuFeatures allowed_cpu_features();

/// How many bytes ahead a loop over memory prefetches; 0 where the prefetcher of the processor is enough. Asked once.
std::size_t prefetch_distance() noexcept;

/// "AMD EPYC …", or the architecture when the system does not say.
std::string cpu_model_name();

}  // namespace imago
