// One row per operation and instruction set.

#include "kernels/ops_table.h"

#include <type_traits>
#include <vector>

#include "kernels/ref/ops.h"
#if defined(__x86_64__)
#include "kernels/avx2/ops.h"
#include "kernels/avx512/ops.h"
#elif defined(__aarch64__)
#include "kernels/neon/ops.h"
#endif

namespace imago::kernels {

namespace {

template <class Args>
std::vector<OpKernel<Args>> make_rows() {
  std::vector<OpKernel<Args>> rows;
  const auto add = [&](const std::string& folder, CpuFeatures needs, void (*run)(const Args&) noexcept) {
    rows.push_back({Args::kName + ("/" + folder), needs, run});
  };
#if defined(__x86_64__)
  if constexpr (std::is_same_v<Args, AttentionArgs>) {
    add("amx", kAmx | kVnni | kAvx512 | kAvx2, avx512::run_by_tiles);
  }
  add("avx512", kAvx512 | kAvx2, avx512::run);
  add("avx2", kAvx2, avx2::run);
#elif defined(__aarch64__)
  add("neon", kNeonDot, neon::run);
#endif
  add("ref", kNoFeatures, ref::run);
  return rows;
}

}  // namespace

template <class Args>
std::span<const OpKernel<Args>> all_ops() {
  static const std::vector<OpKernel<Args>> rows = make_rows<Args>();
  return rows;
}

template std::span<const OpKernel<RmsNormArgs>> all_ops();
template std::span<const OpKernel<LayerNormArgs>> all_ops();
template std::span<const OpKernel<SoftmaxArgs>> all_ops();
template std::span<const OpKernel<RopeArgs>> all_ops();
template std::span<const OpKernel<ActivateArgs>> all_ops();
template std::span<const OpKernel<AddScaledArgs>> all_ops();
template std::span<const OpKernel<ScaleArgs>> all_ops();
template std::span<const OpKernel<QuantizeArgs>> all_ops();
template std::span<const OpKernel<AttentionArgs>> all_ops();
template std::span<const OpKernel<UpdateArgs>> all_ops();
template std::span<const OpKernel<SquaresArgs>> all_ops();

}  // namespace imago::kernels
