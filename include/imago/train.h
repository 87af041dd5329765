#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "imago/data.h"
#include "imago/network.h"
#include "imago/numeric.h"

namespace imago {

/// What training minimizes. With N outputs o and targets t: mse Σ(o - t)² / N; cross_entropy -Σ t · ln(o + 1e-10) / N;
/// the others -Σ t · ln softmax(o), averaged over the scored rows (multi_head_softmax_ce: over all rows, with 1e-7
/// added inside the logarithm).
enum class LossKind : std::uint8_t {
  mse,
  cross_entropy,          ///< outputs are probabilities, targets too
  cross_entropy_logits,   ///< outputs are logits; targets class numbers, one per row, or -1: not scored; or shares
  multi_head_softmax_ce,  ///< outputs are logits in slices, each with its own softmax
};
std::string_view name(LossKind kind) noexcept;
/// "mse", "crossentropy" or "cross_entropy", "cross_entropy_logits", "multi_head_softmax_ce". Throws UsageError.
LossKind parse_loss(std::string_view text);

struct Loss {
  LossKind kind = LossKind::mse;
  std::vector<int> heads = {};   ///< multi_head_softmax_ce: widths of the slices
  std::vector<float> mask = {};  ///< multi_head_softmax_ce: rows × heads, active if > 0.5; empty: all
};

/// The loss of `output` and, unless null, its gradient. Throws ShapeError if sizes do not fit, UsageError for a class
/// outside the logits.
double evaluate_loss(const Loss& loss, const Tensor<float>& output, const Tensor<float>& target,
                     Tensor<float>* gradient = nullptr);

enum class OptimizerKind : std::uint8_t { sgd, momentum, adam, adamw };
std::string_view name(OptimizerKind kind) noexcept;
/// "sgd", "momentum", "adam", "adamw". Throws UsageError.
OptimizerKind parse_optimizer(std::string_view text);

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::sgd;
  float momentum = 0.9f;
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
  float weight_decay = 0;  ///< decoupled; adamw only
  float clip_element = 0;  ///< each element of the gradient to ±this; 0: off
  float clip_norm = 0;     ///< the whole gradient, all layers together, to this length; 0: off. After clip_element
  /// Whether scales of integer dtypes up to 8 bits, one per tensor, are trained too (LSQ) instead of being derived at
  /// each step. They start at the least squared error, or where they were set, and stay explicit. None: those of types
  /// under 3 bits, which learn next to nothing with derived scales; on a GPU they only start there.
  std::optional<bool> learn_scales = std::nullopt;
};

/// Updates the masters of a network and keeps moments beside them. Formulas and defaults are PyTorch's. For unsigned
/// dtypes, masters below 0 become 0. Versions are dropped; the next forward makes them anew. Results do not depend on
/// the number of threads.
class Optimizer {
 public:
  /// The network must outlive the optimizer. Throws UsageError for settings without meaning.
  Optimizer(Network& network, const OptimizerOptions& options);
  Optimizer(Optimizer&&) noexcept;
  ~Optimizer();

  /// One step with network.gradients(). Returns false, and changes nothing, if a gradient is NaN or infinite. Layers
  /// that were added or resized since the last step start with moments of 0.
  bool step(float rate);
  std::uint64_t steps() const noexcept;

  /// Moments and step count, for an exact resume: name and values, in a fixed order. `restore` throws ShapeError or
  /// UsageError if they belong to another network or kind.
  struct Moment {
    std::string name;
    std::vector<float> values;
  };
  std::vector<Moment> save() const;
  void restore(std::uint64_t steps, std::vector<Moment> moments);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

enum class ScheduleKind : std::uint8_t { constant, cosine };
std::string_view name(ScheduleKind kind) noexcept;
/// "constant", "cosine". Throws UsageError.
ScheduleKind parse_schedule(std::string_view text);

struct Schedule {
  ScheduleKind kind = ScheduleKind::constant;
  float rate = 0.01f;
  std::uint64_t warmup_steps = 0;  ///< rate · 1/n, 2/n, … n/n in the first n steps
  float final_fraction = 0;        ///< cosine falls after them, to rate · this at step `total`
  /// Rate of step `step` (from 0) of `total`.
  float at(std::uint64_t step, std::uint64_t total) const noexcept;
};

/// Synthetic handwritten digits of 8 × 8 pixels: rotated, stretched, moved, with noise. A row of `x` is 64 pixels from
/// 0 to 1 and a constant 1, since Dense has no bias; `y` is the digit. Each comes as often as the others. The same seed
/// gives the same digits.
Dataset drawn_digits(std::size_t examples, std::uint64_t seed);

/// How far training is.
struct TrainProgress {
  int epoch = 0, epochs = 0;          ///< the one at work, from 1
  std::uint64_t step = 0, steps = 0;  ///< done, in all
  double loss = 0;                    ///< of the last batch
  float rate = 0;
  double examples_per_second = 0;
  double seconds_left = 0;
};

struct TrainOptions {
  int epochs = 10;
  std::size_t batch = 32;
  Loss loss = {};
  OptimizerOptions optimizer = {};
  Schedule schedule = {};
  bool shuffle = true;
  std::uint64_t seed = 0;
  double validation_share = 0;  ///< of the examples, taken from the end of a shuffled order, at least one
  /// Epochs without a better validation loss before stopping; 0: never. With it, a run that ends by itself leaves the
  /// weights of the best epoch in the network; one that `progress` stops leaves the last, as `resume` needs them.
  int patience = 0;
  /// Called after every step, and once at the end; return false to stop early.
  std::function<bool(const TrainProgress&)> progress = {};
  /// Called with what `resume` takes: every `checkpoint_steps` steps, unless that is 0, and at the end.
  std::uint64_t checkpoint_steps = 0;
  std::function<void(const struct TrainState&)> checkpoint = {};
  /// Where steps are computed; null: the host. On a GPU weights, moments and, where it fits, the dataset stay in its
  /// memory from the first step to the last; the network has the weights of the last step whenever `checkpoint` is
  /// called and at the end. Results differ from the host's by rounding of float32 sums.
  std::shared_ptr<Device> device = {};
};

/// The state of training besides the weights: its progress, and the moments of its optimizer.
struct TrainState {
  std::uint64_t steps = 0;            ///< batches done or skipped: the place in the run
  std::uint64_t optimizer_steps = 0;  ///< of them, those that changed the weights
  std::uint64_t skipped_steps = 0;
  std::uint64_t seed = 0;     ///< that of the run; replaces TrainOptions::seed
  double epoch_loss_sum = 0;  ///< over the batches of the unfinished epoch
  double best_validation = 0;
  int epochs_without_gain = 0;
  std::vector<double> epoch_loss, validation_loss;  ///< of the epochs so far, as in TrainResult
  std::vector<Optimizer::Moment> moments;
  std::vector<std::uint64_t> memory;            ///< Network::memory
  std::vector<Optimizer::Moment> best_weights;  ///< of the best epoch, with patience; names and values
};

struct TrainResult {
  std::vector<double> epoch_loss;       ///< mean over the batches of an epoch; batches that were skipped count 0
  std::vector<double> validation_loss;  ///< per epoch, empty without validation
  double final_loss = 0;                ///< of the last whole epoch; of the last batch if there is none
  std::uint64_t steps = 0;
  std::uint64_t skipped_steps = 0;  ///< without an update: the loss (to the end of its epoch) or a gradient not finite
  double seconds = 0;
  bool stopped_early = false;
  int best_epoch = 0;             ///< that of the least validation loss, from 1; 0 without validation
  bool has_best_weights = false;  ///< the network has the weights of that epoch, not the last: see patience
};

/// Trains with mini-batches. The same seed and number of threads give the same bits; going on from a TrainState equals
/// never having stopped. Layers whose dtype is not float32 are trained through their rounding (straight-through). The
/// last batch of an epoch may be smaller. A mask of the loss is one for all examples, in their order. Throws UsageError
/// and ShapeError for options and data that do not fit each other or the network, DivergedError when weights are no
/// longer finite or a whole epoch passed without one update; no checkpoint is made of that. With a GPU also
/// UnsupportedError, naming the layer, for networks that are not trained there: RNN, LSTM, KMeans, Metacognition,
/// Softmax with noise, a mask or sparse results, scales that are learned.
TrainResult train(Network& network, const Dataset& data, const TrainOptions& options,
                  const TrainState* resume = nullptr);

/// Share of rows whose largest output is the target class: class numbers, -1 for rows that do not count, or one-hot
/// rows.
double accuracy(Network& network, const Dataset& data, std::size_t batch = 256);

}  // namespace imago
