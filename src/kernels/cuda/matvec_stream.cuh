#pragma once

// Chooses the kernel that streams tiles: for one token with coded weights or plain ones, or for several tokens.

#include <cuda_runtime.h>

#include "device/cuda/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matvec_batch.cuh"
#include "kernels/cuda/matvec_few.cuh"
#include "kernels/cuda/matvec_rows.cuh"
#include "kernels/cuda/matvec_tiles.cuh"

namespace imago::kernels::cuda {

/// Returns false and launches nothing if there is no split, or not enough shared memory for it.
inline bool launch_stream(void (*kernel)(MatVecArgs, MatVecSplit), const MatVecArgs& args, const MatVecSplit& split,
                          const LaunchFacts& facts, CUstream_st* stream) {
  if (split.column_warps == 0 || split.bytes > facts.shared_bytes) return false;
  imago::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(facts.shared_bytes)),
      "shared memory");
  launch_overlapped("a product of few tokens", kernel, split.blocks, split.column_warps * split.block_rows * 32,
                    split.bytes, stream, args, split);
  return true;
}

template <class Form>
bool stream_matvec(const MatVecArgs& args, const LaunchFacts& facts, CUstream_st* stream) {
  if constexpr (Form::kCoded) {
    constexpr std::uint32_t kLeast = kLeastBatchTokens<Form>;
    const bool batch = kLeast != 0 && args.tokens >= kLeast && args.tokens <= kBatchTokens && args.q != nullptr;
    if (args.tokens != 1 && !batch) return false;
  } else if (args.tokens != 1) {
    return false;
  }
  const Planes& first = args.products[0].planes;
  SplitNeeds needs{.gated = args.products[0].gated,
                   .multiprocessors = static_cast<std::uint32_t>(facts.multiprocessors)};
  // One gated product, or several that are not gated.
  if (needs.gated && args.count > 1) return false;
  const auto is_like_first = [&](const Planes& p) {
    return p.row_scale_count == first.row_scale_count && p.scale_shift == first.scale_shift && p.zero == first.zero;
  };
  for (int p = 0; p < args.count; ++p) {
    const MatVecProduct& product = args.products[p];
    if (product.gated != needs.gated || !is_like_first(product.planes)) return false;
    if (product.gated && !is_like_first(product.up)) return false;
    needs.rows[p] = product.planes.rows;
  }
  const bool grouped = first.row_scale_count > 1;
  const auto launch = [&](auto kernel, const MatVecSplit& split) {
    return launch_stream(kernel, args, split, facts, stream);
  };
  if constexpr (!Form::kCoded) {
    using T = typename Form::Value;
    return !grouped && launch(matvec_rows<T>, split_rows<T>(args, needs));
  } else {
    const auto run = [&]<bool kGrouped>(std::bool_constant<kGrouped>) {
      if constexpr (kLeastBatchTokens<Form> != 0) {
        if (args.tokens != 1) return with_batch<Form, kGrouped>(args, needs, launch);
      }
      return with_tiles<Form, kGrouped>(args, needs, launch);
    };
    if constexpr (Form::Scales::kRow) {
      if (grouped) return run(std::true_type());
    }
    return run(std::false_type());
  }
}

/// Instantiates all kernels for a device layout, or only those of matvec_few.cuh.
#define IMAGO_MATVEC_INSTANCE(Form) \
  IMAGO_MATVEC_FEW_INSTANCE(Form)   \
  template bool stream_matvec<Form>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
#define IMAGO_MATVEC_FEW_INSTANCE(Form) \
  template void launch_matvec<Form>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);

}  // namespace imago::kernels::cuda
