#pragma once

// A network's forward on an accelerator, as network_run.cpp sees it.

#include <memory>
#include <span>

#include "imago/device.h"
#include "imago/numeric.h"
#include "layers/layer_functions.h"

namespace imago::network {

class Accelerator {
 public:
  virtual ~Accelerator() = default;

  virtual const std::shared_ptr<Device>& device() const = 0;
  /// Runs the enabled layers of the grid on `x`. `states`: of layers that run on the host. `result` may be `x`.
  virtual void forward(std::span<Layer> grid, std::span<layers::LayerState> states, layers::Run& run,
                       const Tensor<float>& x, Tensor<float>& result) = 0;

 protected:
  Accelerator() = default;
  Accelerator(const Accelerator&) = default;
  Accelerator& operator=(const Accelerator&) = default;
};

/// Throws UnsupportedError for a device that no layers run on.
std::unique_ptr<Accelerator> make_accelerator(std::shared_ptr<Device> device);

}  // namespace imago::network
