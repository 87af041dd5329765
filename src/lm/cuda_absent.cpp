// Language models in builds without CUDA.

#include "imago/error.h"
#include "lm/accelerator.h"

namespace imago::lm {

std::unique_ptr<Accelerator> make_accelerator(std::shared_ptr<Device>, const models::Traits&,
                                              const AcceleratorOptions&) {
  throw UnsupportedError("this build has no CUDA backend; language models run on the host");
}

}  // namespace imago::lm
