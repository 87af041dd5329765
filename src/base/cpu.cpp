#include "base/cpu.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <utility>

#include "imago/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace imago {

namespace {

#if defined(__x86_64__)
/// Clang 14 does not know this name in __builtin_cpu_supports.
bool has_f16c() noexcept {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

/// Tiles are 8 KiB of registers that a process must ask for: the system saves them only for those that did. A system
/// without the call, or one that hides them, says no.
bool may_use_tiles() noexcept {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

/// Names that compilers of this age do not know in __builtin_cpu_supports.
bool has_tiles_of_bfloat16() noexcept {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;  // leaf 7.0, EDX
  constexpr unsigned kAvx512Bf16 = 1u << 5;                     // leaf 7.1, EAX
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kAmxBf16) == 0 || (edx & kAmxTile) == 0) {
    return false;
  }
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) == 0 || (eax & kAvx512Bf16) == 0) return false;
  return may_use_tiles();
}
#endif

CpuFeatures detect() noexcept {
  CpuFeatures found = kNoFeatures;
#if defined(__x86_64__)
  // The builtin checks CPUID and, through XGETBV, that the system saves the wide registers.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512cd");
  if (avx2) found |= kAvx2;
  if (avx512) found |= kAvx512;
  if (avx512 && __builtin_cpu_supports("avx512vnni")) found |= kVnni;
  if (avx512 && __builtin_cpu_supports("avx512vbmi")) found |= kVbmi;
  if ((found & kVnni) != 0 && has_tiles_of_bfloat16()) found |= kAmx;
#elif defined(__aarch64__)
  // NEON itself is part of every 64-bit Arm.
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) found |= kNeonDot;
#endif
  return found;
}

constexpr std::pair<std::string_view, CpuFeatures> kLimits[] = {
    {"ref", kNoFeatures},
    {"avx2", kAvx2},
    {"avx512", kAvx2 | kAvx512 | kVnni | kVbmi},
    {"amx", kAvx2 | kAvx512 | kVnni | kVbmi | kAmx},
    {"neon", kNeonDot},
};

bool is_intel() noexcept {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

}  // namespace

std::vector<CpuFeatureName> known_cpu_features() {
#if defined(__x86_64__)
  return {{kAvx2, "avx2"}, {kAvx512, "avx512"}, {kVnni, "avx512vnni"}, {kVbmi, "avx512vbmi"}, {kAmx, "amx"}};
#elif defined(__aarch64__)
  return {{kNeonDot, "neon-dotprod"}};
#else
  return {};
#endif
}

CpuFeatures host_cpu_features() noexcept {
  static const CpuFeatures found = detect();
  return found;
}

CpuFeatures allowed_cpu_features() {
  const char* limit = std::getenv("IMAGO_KERNELS");
  if (limit == nullptr || *limit == '\0') return host_cpu_features();
  for (const auto& [name, allowed] : kLimits) {
    if (name == limit) return host_cpu_features() & allowed;
  }
  throw UsageError(fmt::format("IMAGO_KERNELS is '{}'; it may be ref, avx2, avx512, amx or neon", limit));
}

std::size_t prefetch_distance() noexcept {
  // Two cores of a Xeon (Emerald Rapids) read 34 GB/s if they do nothing else, 22 when they compute on it, and 32 when
  // they ask that far ahead. An EPYC reads as fast without, and asking costs it a tenth.
  static const std::size_t distance = is_intel() ? 8192 : 0;
  return distance;
}

std::string cpu_model_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
#if defined(__x86_64__)
  return "x86-64";
#elif defined(__aarch64__)
  return "arm64";
#else
  return "unknown";
#endif
}

}  // namespace imago
