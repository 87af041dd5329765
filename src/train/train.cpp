#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "imago/error.h"
#include "imago/train.h"
#include "train/batches.h"
#include "train/best_weights.h"
#include "train/stepper.h"

namespace imago {

namespace {

void check_options(const TrainOptions& options) {
  if (options.epochs < 0) throw UsageError(fmt::format("training for {} epochs", options.epochs));
  if (options.batch == 0) throw UsageError("training with batches of 0 examples");
  if (options.patience < 0) throw UsageError(fmt::format("a patience of {} epochs", options.patience));
  if (options.patience > 0 && options.validation_share == 0) {
    throw UsageError("stopping early needs examples for validation: set validation_share");
  }
}

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

std::unique_ptr<Stepper> make_stepper(Network& network, const Dataset& data, const TrainOptions& options) {
  if (options.device == nullptr || options.device->is_host()) {
    return std::make_unique<HostStepper>(network, data, options.optimizer);
  }
  return make_device_stepper(network, data, options.optimizer, options.device);
}

class Trainer {
 public:
  Trainer(Network& network, const Dataset& data, const TrainOptions& options, const TrainState* resume)
      : network_(network), data_(data), options_(options) {
    check_options(options);
    check_dataset(data);
    stepper_ = make_stepper(network, data, options);
    state_.seed = options.seed;
    if (resume != nullptr) {
      state_ = *resume;
      stepper_->restore(state_.optimizer_steps, std::move(state_.moments));
      state_.moments.clear();
      network_.restore_memory(state_.memory);
    }
    split_ = split_examples(data.size(), options.validation_share, state_.seed);
    steps_per_epoch_ = (split_.training.size() - 1) / options.batch + 1;
    total_steps_ = static_cast<std::uint64_t>(options.epochs) * steps_per_epoch_;
    batch_loss_ = options.loss;
    if (options.loss.mask.size() % data.size() != 0) {
      throw ShapeError(
          fmt::format("training: a mask of {} values for {} examples", options.loss.mask.size(), data.size()));
    }
  }

  TrainResult run() {
    const std::uint64_t first = state_.steps;
    bool stop = false;
    while (state_.steps < total_steps_ && !stop && !out_of_patience()) {
      const std::uint64_t before = state_.steps;
      if (order_.empty() || before % steps_per_epoch_ == 0) order_examples();
      if (before % steps_per_epoch_ == 0) skipped_before_epoch_ = state_.skipped_steps;
      train_batch();
      stop = options_.progress && !options_.progress(progress(first));
      if (state_.steps % steps_per_epoch_ == 0) finish_epoch();
      if (checkpoint_is_due(before)) checkpoint();
    }
    check_weights();  // the last ones, which it brings to the network
    if (options_.progress) options_.progress(progress(first));
    if (options_.checkpoint && checkpointed_ != state_.steps) checkpoint();
    // After the checkpoint: a run that resumes from it needs the last weights, not the best.
    const bool restored = options_.patience > 0 && !stop && restore_weights(network_, state_.best_weights);
    TrainResult done = result(stop || (out_of_patience() && state_.steps < total_steps_));
    done.has_best_weights = restored && done.best_epoch != 0;
    return done;
  }

 private:
  std::uint64_t epoch() const { return state_.steps / steps_per_epoch_; }
  bool out_of_patience() const { return options_.patience > 0 && state_.epochs_without_gain >= options_.patience; }
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

  void order_examples() {
    order_ = split_.training;
    if (options_.shuffle) shuffle(order_, epoch_seed(state_.seed, epoch()));
  }

  /// The loss of these examples: with their mask.
  const Loss& loss_of(std::span<const std::size_t> examples) {
    if (options_.loss.mask.empty()) return batch_loss_;
    const std::size_t width = options_.loss.mask.size() / data_.size();
    batch_loss_.mask.resize(examples.size() * width);
    for (std::size_t i = 0; i < examples.size(); ++i) {
      std::copy_n(&options_.loss.mask[examples[i] * width], width, &batch_loss_.mask[i * width]);
    }
    return batch_loss_;
  }

  void train_batch() {
    const std::size_t first = static_cast<std::size_t>(state_.steps % steps_per_epoch_) * options_.batch;
    const std::span<const std::size_t> examples =
        std::span(order_).subspan(first, std::min(options_.batch, order_.size() - first));
    examples_ += examples.size();
    rate_ = options_.schedule.at(state_.steps, total_steps_);
    // Random numbers of layers depend on the step alone, as the order of the examples does: see TrainState.
    const Stepper::Result done =
        stepper_->step(examples, loss_of(examples), rate_, step_seed(state_.seed, state_.steps));
    last_loss_ = done.loss;
    if (!std::isfinite(last_loss_)) {
      check_weights();
      const std::uint64_t left = steps_per_epoch_ - state_.steps % steps_per_epoch_;
      state_.skipped_steps += left;
      state_.steps += left;
      return;
    }
    state_.epoch_loss_sum += last_loss_;
    if (!done.updated) ++state_.skipped_steps;
    ++state_.steps;
  }

  void finish_epoch() {
    // The weights have not changed, so the next epoch would be the same.
    if (skipped_before_epoch_ && state_.skipped_steps - *skipped_before_epoch_ == steps_per_epoch_) {
      throw DivergedError("losses or gradients of a whole epoch are", state_.steps);
    }
    state_.epoch_loss.push_back(state_.epoch_loss_sum / static_cast<double>(steps_per_epoch_));
    state_.epoch_loss_sum = 0;
    if (split_.validation.empty()) return;
    const double loss = validate();
    const bool nothing_to_beat = state_.validation_loss.empty() || !std::isfinite(state_.best_validation);
    const bool better = std::isfinite(loss) && (nothing_to_beat || loss < state_.best_validation);
    if (better || nothing_to_beat) state_.best_validation = loss;
    if (better && options_.patience > 0) {
      stepper_->sync_to_host();
      state_.best_weights = copy_weights(network_);
    }
    state_.epochs_without_gain = better ? 0 : state_.epochs_without_gain + 1;
    state_.validation_loss.push_back(loss);
  }

  double validate() {
    double sum = 0;
    const std::span<const std::size_t> examples = split_.validation;
    for (std::size_t first = 0; first < examples.size(); first += options_.batch) {
      const auto part = examples.subspan(first, std::min(options_.batch, examples.size() - first));
      sum += stepper_->evaluate(part, loss_of(part)) * static_cast<double>(part.size());
    }
    return sum / static_cast<double>(examples.size());
  }

  bool checkpoint_is_due(std::uint64_t before) const {
    const std::uint64_t every = options_.checkpoint_steps;
    return every != 0 && options_.checkpoint && state_.steps / every != before / every;
  }

  void check_weights() {
    stepper_->sync_to_host();
    if (!has_finite_weights(network_)) throw DivergedError("the weights are", state_.steps);
  }

  void checkpoint() {
    check_weights();
    state_.optimizer_steps = stepper_->steps();
    state_.moments = stepper_->save();
    state_.memory = network_.memory();
    options_.checkpoint(state_);
    checkpointed_ = state_.steps;
    state_.moments.clear();
  }

  TrainProgress progress(std::uint64_t first) const {
    TrainProgress now;
    const std::uint64_t done = state_.steps - first;
    now.epochs = options_.epochs;
    now.epoch = static_cast<int>(state_.steps == 0 ? 0 : (state_.steps - 1) / steps_per_epoch_ + 1);
    now.step = state_.steps;
    now.steps = total_steps_;
    now.loss = last_loss_;
    now.rate = rate_;
    const double elapsed = seconds();
    if (elapsed > 0) now.examples_per_second = static_cast<double>(examples_) / elapsed;
    if (done > 0 && total_steps_ > state_.steps) {
      now.seconds_left = elapsed / static_cast<double>(done) * static_cast<double>(total_steps_ - state_.steps);
    }
    return now;
  }

  TrainResult result(bool stopped_early) const {
    TrainResult result;
    result.epoch_loss = state_.epoch_loss;
    result.validation_loss = state_.validation_loss;
    result.final_loss = state_.epoch_loss.empty() ? last_loss_ : state_.epoch_loss.back();
    result.steps = state_.steps;
    result.skipped_steps = state_.skipped_steps;
    result.seconds = seconds();
    result.stopped_early = stopped_early;
    if (!state_.validation_loss.empty() && std::isfinite(state_.best_validation)) {
      result.best_epoch = static_cast<int>(state_.epoch_loss.size()) - state_.epochs_without_gain;
    }
    return result;
  }

  Network& network_;
  const Dataset& data_;
  const TrainOptions& options_;
  std::unique_ptr<Stepper> stepper_;
  TrainState state_;
  Split split_;
  std::vector<std::size_t> order_;  // of this epoch
  std::uint64_t steps_per_epoch_ = 0, total_steps_ = 0;

  Loss batch_loss_;  // options_.loss with the mask of this batch
  double last_loss_ = 0;
  float rate_ = 0;
  std::optional<std::uint64_t> skipped_before_epoch_;  // if it began in this run
  std::size_t examples_ = 0;                           // seen in this run
  std::optional<std::uint64_t> checkpointed_;          // the last step that was
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

TrainResult train(Network& network, const Dataset& data, const TrainOptions& options, const TrainState* resume) {
  return Trainer(network, data, options, resume).run();
}

}  // namespace imago
