#include "base/cpu.h"
#include "math/backend.h"
#include "math/plain.h"

namespace imago::math {

const Backend& plain_backend() noexcept {
  static constexpr Backend kBackend{
      .name = "plain",
      .gemm = plain::gemm,
      .convolve = [](const ForwardArgs& args) { columns_convolve(args, plain::gemm); },
      .convolve_backward_data = [](const BackwardDataArgs& args) { columns_backward_data(args, plain::gemm); },
      .convolve_backward_weights = [](const BackwardWeightsArgs& args) { columns_backward_weights(args, plain::gemm); },
  };
  return kBackend;
}

const Backend& best_backend() {
  const Backend* onednn = onednn_backend();
  return onednn != nullptr && allowed_cpu_features() != kNoFeatures ? *onednn : plain_backend();
}

}  // namespace imago::math
