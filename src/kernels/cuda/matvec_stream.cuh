#pragma once

// The matvecs of one token, for chips that overlap launches: tiles for coded weights, rows for plain ones.

#include "kernels/cuda/matvec_rows.cuh"
#include "kernels/cuda/matvec_stream_launch.cuh"
#include "kernels/cuda/matvec_tiles.cuh"

namespace imago::kernels::cuda {

template <class Form>
bool stream_matvec(const MatVecArgs& args, const LaunchFacts& facts, CUstream_st* stream) {
  if (args.tokens != 1) return false;
  const Planes& first = args.products[0].planes;
  StreamNeeds needs{.gated = args.products[0].gated,
                    .multiprocessors = static_cast<std::uint32_t>(facts.multiprocessors)};
  // One product that is gated, or some that are not.
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
  const auto launch = [&](auto kernel, const StreamPlan& plan) {
    return launch_stream(kernel, args, plan, facts, stream);
  };
  if constexpr (!Form::kCoded) {
    using T = typename Form::Value;
    return !grouped && launch(matvec_rows<T>, plan_rows<T>(args, needs));
  } else if constexpr (Form::Scales::kRow) {
    return grouped ? with_tiles<Form, true>(args, needs, launch) : with_tiles<Form, false>(args, needs, launch);
  } else {
    return with_tiles<Form, false>(args, needs, launch);
  }
}

}  // namespace imago::kernels::cuda
