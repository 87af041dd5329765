// The table: one row per format, arithmetic and instruction set of this host. A row exists where its folder offers
// functions.

#include <fmt/format.h>

#include <vector>

#include "kernels/matrix.h"
#include "kernels/ref/matrix.h"
#if defined(__x86_64__)
#include "kernels/avx2/matrix.h"
#include "kernels/avx512/matrix.h"
#elif defined(__aarch64__)
#include "kernels/neon/matrix.h"
#endif

namespace imago::kernels {

namespace {

/// What one folder offers; best first.
struct Folder {
  const char* name;
  CpuFeatures needs;
  int panel_rows;
  MatrixFunctions (*block)(BlockFormat, bool fast) noexcept;
  MatrixFunctions (*dtype)(DType, bool fast) noexcept;
};

constexpr Folder kFolders[] = {
#if defined(__x86_64__)
    {"amx", kAmx | kVnni | kAvx512 | kAvx2, avx512::kPanelRows, avx512::amx_block_matrix, avx512::amx_dtype_matrix},
    {"avx512vnni", kVnni | kAvx512 | kAvx2, avx512::kPanelRows, avx512::vnni_block_matrix, avx512::vnni_dtype_matrix},
    {"avx512", kAvx512 | kAvx2, avx512::kPanelRows, avx512::block_matrix, avx512::dtype_matrix},
    {"avx2", kAvx2, avx2::kPanelRows, avx2::block_matrix, avx2::dtype_matrix},
#elif defined(__aarch64__)
    {"neon", kNeonDot, neon::kPanelRows, neon::block_matrix, neon::dtype_matrix},
#endif
    {"ref", kNoFeatures, ref::kPanelRows, ref::block_matrix, ref::dtype_matrix},
};

std::vector<MatrixKernel> make_table() {
  std::vector<MatrixKernel> table;
  const auto add = [&](Format format) {
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::fast}) {
      const bool fast = arithmetic == Arithmetic::fast;
      for (const Folder& f : kFolders) {
        // Asking a folder for its functions already runs code that is compiled for its instruction set.
        if ((f.needs & host_cpu_features()) != f.needs) continue;
        const MatrixFunctions functions =
            format.is_block() ? f.block(format.block(), fast) : f.dtype(format.dtype(), fast);
        if (functions.pack == nullptr) continue;
        table.push_back(
            {fmt::format("{}/{}", format.name(), f.name), format, arithmetic, f.needs, f.panel_rows, functions});
      }
    }
  };
  for (const DTypeInfo& type : kDTypes) add(type.id);
  for (const BlockFormatInfo& block : kBlockFormats) add(block.id);
  return table;
}

}  // namespace

std::span<const MatrixKernel> all_matrix_kernels() {
  static const std::vector<MatrixKernel> table = make_table();
  return table;
}

const MatrixKernel* choose_matrix_kernel(Format format, Arithmetic arithmetic, CpuFeatures features) {
  for (const MatrixKernel& row : all_matrix_kernels()) {
    if (row.format == format && row.arithmetic == arithmetic && (row.needs & features) == row.needs) return &row;
  }
  return nullptr;
}

}  // namespace imago::kernels
