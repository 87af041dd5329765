#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "imago/device.h"
#include "imago/layer.h"
#include "imago/numeric.h"

namespace imago {

/// A grid of depth × rows × cols cells with layers_per_cell layers each; layer (z, y, x, l) has the index
/// ((z·rows + y)·cols + x)·layers_per_cell + l, and data flows in the order of the indices.
///
/// Threads: a network may be run from one thread at a time (the work itself runs on all); use one Network per thread.
class Network {
 public:
  /// Every cell Dense, ReLU, float32, without weights. Throws UsageError for sizes below 1, ShapeError on overflow.
  Network(int depth, int rows, int cols, int layers_per_cell);
  /// 1 × 1 × 1 × n with fresh weights from `seed`. Throws UsageError for invalid settings.
  explicit Network(std::vector<Layer> layers, std::uint64_t seed = 0);
  Network(Network&&) noexcept;
  Network& operator=(Network&&) noexcept;
  ~Network();
  /// A network of its own: layers with masters, versions and settings, the seed, and what layers remember. It runs on
  /// the host and has no gradients.
  Network copy() const;

  std::string id = "network";
  /// Texts that are saved with it, by name, such as the "tokenizer.json" of a language model; nothing computes with
  /// them.
  std::vector<std::pair<std::string, std::string>> files;
  int depth() const noexcept;
  int rows() const noexcept;
  int cols() const noexcept;
  int layers_per_cell() const noexcept;
  std::span<Layer> layers() noexcept;
  std::span<const Layer> layers() const noexcept;
  /// Throw UsageError for a place outside the grid.
  std::size_t index(const Coordinates& at) const;
  Layer& at(const Coordinates& at);

  /// Fresh weights everywhere. Throws UsageError for invalid settings, and if the weights are more
  /// than this machine has memory for.
  void initialize(std::uint64_t seed);
  /// Checks settings, sizes of weights and remote links. Throws UsageError for a target outside the grid or a cycle
  /// of links. Called by forward after each change of the layers; callers need not.
  void check() const;
  /// Weights in all layers, inner ones included.
  std::size_t parameters() const;

  /// Runs the layers on `x`. The result belongs to the network and holds until the next call. Nothing is allocated when
  /// shapes are those of the call before. Throws ShapeError when `x` does not fit, UsageError for an enabled layer that
  /// needs weights and has none; both name the layer.
  const Tensor<float>& forward(const Tensor<float>& x);
  /// In float64, on the host and in plain C++. Layers whose weights are of type float64 use them as they are, those of
  /// a file to the last bit; any other layer with weights takes its input rounded to float32, and its result is
  /// widened. Layers without weights of their own do not round. Otherwise as above, with a result of its own.
  const Tensor<double>& forward(const Tensor<double>& x);
  /// Whether the first weights that it has, in the order of the layers, are of type float64.
  bool is_float64() const noexcept;
  /// From now on `forward` runs on this device, with the weights packed in its memory; null is the host. Weights are
  /// uploaded when they are first needed, and again after each change. Metacognition, and Softmax with noise, a mask or
  /// sparse results, still run on the host between the others. Throws UnsupportedError if this build has no kernels for
  /// it.
  void run_on(std::shared_ptr<Device> device);
  /// With `fast`, products of `forward` round activations to int8 or bfloat16 where the type of a matrix allows it (8
  /// bits and fewer, and block formats), as language models do. Otherwise, and until called, activations are float32.
  void set_fast(bool fast) noexcept;
  /// As forward, keeping what `backward` needs and computing with decoded weights.
  const Tensor<float>& forward_training(const Tensor<float>& x);
  /// Gradients for the last forward_training: of its input, returned, and of the weights, added to `gradients()`.
  /// Without `input_gradient` the former may be left out, where that saves a product; the returned tensor is then
  /// undefined. REQUIRES: grad_output has the shape of that result.
  const Tensor<float>& backward(const Tensor<float>& grad_output, bool input_gradient = true);
  /// One per grid layer, as summed by `backward` since `clear_gradients`.
  std::span<LayerGradient> gradients() noexcept;
  void clear_gradients();

  /// Seed of what layers draw while running (Gumbel noise, Metacognition noise).
  void set_run_seed(std::uint64_t seed);

  /// What layers remember from one forward to the next, for an exact resume: the history of Metacognition and the
  /// cooldown of its rules, meta networks included. Only `restore_memory` reads these numbers; empty without
  /// Metacognition.
  std::vector<std::uint64_t> memory() const;
  /// Throws UsageError, and changes nothing, if they belong to another network. An empty list changes nothing.
  void restore_memory(std::span<const std::uint64_t> memory);

 private:
  friend class StepMesh;
  friend struct NetworkAccess;
  struct State;
  struct Memory;
  std::unique_ptr<State> state_;
};

/// Advances the grid in ticks: in each tick every layer runs on the output that its source had one tick earlier. The
/// source of a layer is the one before it, of the first layer the external input, of a remote link its target. A layer
/// whose source has no output yet does not run.
class StepMesh {
 public:
  /// The network must outlive the mesh. With `keep_history`, step_backward can go back through all ticks.
  explicit StepMesh(Network& network, bool keep_history = false);
  StepMesh(StepMesh&&) noexcept;
  ~StepMesh();

  /// Held until replaced.
  void set_input(Tensor<float> x);
  void step_forward();
  /// What layer `index` gave at the last tick; empty if nothing reached it yet.
  const Tensor<float>* output(std::size_t index) const;
  std::uint64_t ticks() const noexcept;

  struct Gradients {
    Tensor<float> input;                 ///< of the external input, summed over ticks
    std::vector<LayerGradient> weights;  ///< one per grid layer
  };
  /// Gradient `grad_output` enters at the last layer's last output and runs back through the kept history. Throws
  /// UsageError without history.
  Gradients step_backward(const Tensor<float>& grad_output);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Sets the dtype of all layers with weights, inner ones included, and morphs them; masters stay.
void morph_network(Network& network, DType dtype);
/// The same with the scales where `scheme` has them and as its calibrator finds them; scales that are not absmax are
/// then fixed, as if they came from a file. A block format that does not fit the rows of a layer gives way to one with
/// smaller blocks and no fewer bits; where none fits, and in layers of vectors alone, the layer keeps its type. Returns
/// a sentence about each layer that did not take the type. Throws ShapeError for a group that does not divide the rows
/// of a layer; the network is unchanged then.
std::vector<std::string> morph_network(Network& network, const Scheme& scheme);

/// A layer of its own: settings, weights with masters and versions, the layers inside it.
Layer copy_layer(const Layer& layer);

/// One grid layer as compare_networks sees it: the direction of its weights as they are computed with.
struct LayerSignature {
  Coordinates at;
  LayerType type;
  Format dtype;
  std::vector<float> direction;  ///< unit length; zeros stay zeros; {1} without weights
};
std::vector<LayerSignature> extract_dna(const Network& network);

/// In [-1, 1]; 0 if types or lengths differ, or with `strict_dtype` the dtypes.
float similarity(const LayerSignature& a, const LayerSignature& b, bool strict_dtype = false);

struct LogicShift {
  Coordinates source, target;
  float overlap = 0;
};
struct NetworkComparison {
  float overall = 0;  ///< mean of the overlaps; 0 if none
  struct Overlap {
    Coordinates at;
    float similarity = 0;
  };
  std::vector<Overlap> overlaps;  ///< every place that both have, in the order of `a`
  std::vector<LogicShift> logic_shifts;
};
NetworkComparison compare_networks(const Network& a, const Network& b, bool strict_dtype = false);

}  // namespace imago
