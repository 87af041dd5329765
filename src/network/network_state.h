#pragma once

// What a Network holds, and how it reaches an accelerator.

#include <deque>
#include <vector>

#include "imago/network.h"
#include "layers/layer_functions.h"

namespace imago {

namespace network {

/// Runs the layers of a grid on an accelerator.
class DeviceRunner {
 public:
  virtual ~DeviceRunner() = default;

  virtual const std::shared_ptr<Device>& device() const = 0;
  /// Runs the enabled layers of the grid on `x` and waits for the result. `states`: of layers that run on the host.
  /// `result` may be `x`.
  virtual void forward(std::span<Layer> grid, std::span<layers::LayerState> states, layers::Run& run,
                       const Tensor<float>& x, Tensor<float>& result) = 0;

 protected:
  DeviceRunner() = default;
  DeviceRunner(const DeviceRunner&) = default;
  DeviceRunner& operator=(const DeviceRunner&) = default;
};

/// Throws UnsupportedError for a device that layers do not run on.
std::unique_ptr<DeviceRunner> make_device_runner(std::shared_ptr<Device> device);

}  // namespace network

struct Network::State final : layers::Grid {
  int depth = 0, rows = 0, cols = 0, layers_per_cell = 0;
  std::vector<Layer> grid;
  std::vector<layers::LayerState> states;  // one per grid layer
  std::vector<LayerGradient> gradients;    // likewise
  std::deque<layers::TensorStats> stats;
  std::uint64_t run_seed = 0;
  bool is_checked = false;                // no caller could have changed the layers since the last check
  Tensor<float> input;                    // a copy of that of the last forward_training
  const Tensor<float>* result = nullptr;  // of the last forward
  Tensor<double> wide_input;              // likewise, of forwards over doubles
  const Tensor<double>* wide_result = nullptr;
  bool can_go_back = false;                              // the last forward was forward_training
  layers::MatrixObserver* observer = nullptr;            // of forward; may be null
  std::unique_ptr<network::DeviceRunner> device_runner;  // of forward; null: the host
  Tensor<float> device_result;
  bool fast = false;  // arithmetic of forward

  std::size_t index(const Coordinates& at) const;
  template <class T>
  const Tensor<T>& run(const Tensor<T>& x, Tensor<T>& copy, const Tensor<T>*& last, bool for_backward);

  Layer& layer(const Coordinates& at) override { return grid[index(at)]; }
  LayerGradient& gradient(const Coordinates& at) override { return gradients[index(at)]; }
  std::deque<layers::TensorStats>& history() override { return stats; }
  const Tensor<float>& run_meta_network(Network& network, const Tensor<float>& x) override {
    return network.forward(x);
  }
  const Tensor<double>& run_meta_network(Network& network, const Tensor<double>& x) override {
    return network.forward(x);
  }
};

/// For modules that look into a running network.
struct NetworkAccess {
  /// The grid as its layers see it, and what they keep on the host.
  static layers::Grid& grid(Network& network) noexcept { return *network.state_; }
  static std::span<layers::LayerState> states(Network& network) noexcept { return network.state_->states; }

  /// Sets what is shown the inputs of matrices from now on; may be null. It must outlive the calls of forward, which
  /// then run on the host.
  static void observe(Network& network, layers::MatrixObserver* observer) noexcept {
    network.state_->observer = observer;
  }
};

namespace network {

/// True if the gradient has one array per weight array of the layer and those inside it, each as long.
bool fits(const LayerGradient& gradient, const Layer& layer);

/// A cell that was never set up: as in a new grid, but disabled. It is skipped and not checked.
bool is_vacant(const Layer& layer) noexcept;

}  // namespace network

}  // namespace imago
