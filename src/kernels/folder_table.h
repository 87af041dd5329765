#pragma once

// The folders of kernels (folders.h) as rows of a table.

#include "base/cpu.h"
#include "kernels/folders.h"

namespace imago::kernels {

/// What one folder offers.
struct Folder {
  const char* name;
  CpuFeatures needs;
  std::size_t panel_rows;
  MatrixFunctions (*matrix)(Format, bool fast) noexcept;
  PeakLoops (*peak_loops)() noexcept;
  EncodeFunction (*encoder)(Format) noexcept = nullptr;  ///< null if the folder has no codec
  DecodeFunction (*decoder)(Format) noexcept = nullptr;
};

/// Best first; the last runs everywhere.
inline constexpr Folder kFolders[] = {
#if defined(__x86_64__)
    {"amx", kAmx | kVnni | kAvx512 | kAvx2, avx512::kPanelRows, avx512::amx_matrix, avx512::amx_peak_loops},
    {"avx512vnni", kVnni | kAvx512 | kAvx2, avx512::kPanelRows, avx512::vnni_matrix, avx512::vnni_peak_loops},
    {"avx512", kAvx512 | kAvx2, avx512::kPanelRows, avx512::matrix, avx512::peak_loops, avx512::encoder,
     avx512::decoder},
    {"avx2", kAvx2, avx2::kPanelRows, avx2::matrix, avx2::peak_loops, avx2::encoder, avx2::decoder},
#elif defined(__aarch64__)
    {"neon", kNeonDot, neon::kPanelRows, neon::matrix, neon::peak_loops, neon::encoder, neon::decoder},
#endif
    {"ref", kNoFeatures, ref::kPanelRows, ref::matrix, ref::peak_loops, ref::encoder, ref::decoder},
};

}  // namespace imago::kernels
