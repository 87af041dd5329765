#include "imago/error.h"
#include "train/stepper.h"

namespace imago {

std::unique_ptr<Stepper> make_device_stepper(Network&, const Dataset&, const OptimizerOptions&,
                                             std::shared_ptr<Device> device) {
  throw UnsupportedError("networks are not trained on " + device->name() + ": this build has no CUDA backend");
}

}  // namespace imago
