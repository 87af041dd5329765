#pragma once

// The steps of training, on the host or on an accelerator: batches in, weights changed. The loop in train.cpp does not
// know which.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "imago/train.h"

namespace imago {

class Stepper {
 public:
  virtual ~Stepper() = default;

  struct Result {
    double loss = 0;       ///< of the batch, before the step
    bool updated = false;  ///< false: the loss or a gradient was not finite, and nothing changed
  };
  /// One step with these examples of the dataset. `loss` has the mask of this batch; `seed` is that of the random
  /// numbers of layers.
  virtual Result step(std::span<const std::size_t> examples, const Loss& loss, float rate, std::uint64_t seed) = 0;
  /// The loss of these examples with the weights as they are.
  virtual double evaluate(std::span<const std::size_t> examples, const Loss& loss) = 0;

  /// Gives the network the weights of the last step, if it does not have them yet.
  virtual void sync_to_host() = 0;

  /// As in Optimizer.
  virtual std::uint64_t steps() const = 0;
  virtual std::vector<Optimizer::Moment> save() = 0;
  virtual void restore(std::uint64_t steps, std::vector<Optimizer::Moment> moments) = 0;

 protected:
  Stepper() = default;
  Stepper(const Stepper&) = default;
  Stepper& operator=(const Stepper&) = default;
};

/// Keeps weights, moments and, where it fits, the dataset in the memory of `device` until `sync_to_host`. Network and
/// dataset must outlive the stepper. Throws UnsupportedError, naming the layer, for networks that are not trained
/// there, and for a device that trains none; UsageError for optimizer settings that make no sense.
std::unique_ptr<Stepper> make_device_stepper(Network& network, const Dataset& data, const OptimizerOptions& options,
                                             std::shared_ptr<Device> device);

}  // namespace imago
