#include <cmath>

#include "train/batches.h"
#include "train/stepper.h"

namespace imago {

namespace {

class HostStepper final : public Stepper {
 public:
  HostStepper(Network& network, const Dataset& data, const OptimizerOptions& options)
      : network_(network), data_(data), optimizer_(network, options) {}

  Result step(std::span<const std::size_t> examples, const Loss& loss, float rate, std::uint64_t seed) override {
    load(examples);
    network_.set_run_seed(seed);
    network_.clear_gradients();
    Result result;
    result.loss = evaluate_loss(loss, network_.forward_training(x_), y_, &gradient_);
    if (!std::isfinite(result.loss)) return result;
    network_.backward(gradient_, false);
    result.updated = optimizer_.step(rate);
    return result;
  }

  double evaluate(std::span<const std::size_t> examples, const Loss& loss) override {
    load(examples);
    return evaluate_loss(loss, network_.forward(x_), y_);
  }

  void sync_to_host() override {}

  std::uint64_t steps() const override { return optimizer_.steps(); }
  std::vector<Optimizer::Moment> save() override { return optimizer_.save(); }
  void restore(std::uint64_t steps, std::vector<Optimizer::Moment> moments) override {
    optimizer_.restore(steps, std::move(moments));
  }

 private:
  void load(std::span<const std::size_t> examples) {
    gather_examples(data_.x, examples, x_);
    gather_examples(data_.y, examples, y_);
  }

  Network& network_;
  const Dataset& data_;
  Optimizer optimizer_;
  Tensor<float> x_, y_, gradient_;  // of this batch
};

}  // namespace

std::unique_ptr<Stepper> make_host_stepper(Network& network, const Dataset& data, const OptimizerOptions& options) {
  return std::make_unique<HostStepper>(network, data, options);
}

}  // namespace imago
