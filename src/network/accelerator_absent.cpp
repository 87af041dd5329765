#include "imago/error.h"
#include "network/accelerator.h"

namespace imago::network {

std::unique_ptr<Accelerator> make_accelerator(std::shared_ptr<Device> device) {
  throw UnsupportedError("networks do not run on " + device->name() + ": this build has no CUDA backend");
}

}  // namespace imago::network
