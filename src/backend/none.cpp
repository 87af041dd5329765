// Programs in builds without CUDA.

#include "backend/runner.h"
#include "imago/error.h"

namespace imago::backend {

std::unique_ptr<Runner> make_cuda_runner(std::shared_ptr<Device>, std::shared_ptr<const Program>,
                                         const RunnerOptions&) {
  throw UnsupportedError("this build has no CUDA backend; language models run on the host");
}

}  // namespace imago::backend
