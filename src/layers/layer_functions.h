#pragma once

// What a layer type is made of: one row of functions per type. Containers, the grid and training work through
// forward_layer and backward_layer.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "imago/layer.h"
#include "imago/numeric.h"

namespace imago::layers {

/// Statistics of a tensor that the rules of Metacognition look at.
struct TensorStats {
  double average = 0, deviation = 0, maximum = 0, minimum = 0;
  std::size_t active = 0, total = 0;
};

/// Entries in the history of Metacognition.
inline constexpr std::size_t kMetaHistory = 100;

template <class T>
struct AttentionTable;  // layers/attention.cpp

/// What forward computes, in float or double.
template <class T>
struct LayerValues {
  Tensor<T> post;                ///< the result
  std::vector<Tensor<T>> saved;  ///< for backward; the file of each type says what is where
  std::vector<Tensor<T>> scratch;
  std::shared_ptr<const AttentionTable<T>> attention_table;  ///< MultiHeadAttention: the angles of RoPE
};

/// What a layer keeps between calls: its result, what its backward needs, and the same for the layers inside it. Each
/// call reuses it, so that memory is allocated only when shapes change.
struct LayerState : LayerValues<float> {
  LayerType ran_as = {};             ///< the type of the layer at the last forward
  LayerValues<double> wide;          ///< what forwards over doubles keep
  Tensor<float> rounded;             ///< the input of a forward over doubles, where the layer computes in float32
  Tensor<float> grad_input;          ///< the result of backward
  bool needs_grad_input = true;      ///< false: nobody will read it, and backward may leave it as it is
  Tensor<float> grad_skip;           ///< Residual: the gradient of its skip
  std::vector<LayerState> children;  ///< in the order of LayerGradient::children
  std::vector<int> counters;         ///< Metacognition: forwards since each rule fired

  template <class T>
  LayerValues<T>& values() noexcept {
    if constexpr (std::is_same_v<T, float>) {
      return *this;
    } else {
      return wide;
    }
  }
};

/// The grid that a layer is part of, as containers see it.
class Grid {
 public:
  virtual ~Grid() = default;
  /// The layer at a place. Throws UsageError outside the grid.
  virtual Layer& layer(const Coordinates& at) = 0;
  /// Where its weight gradient is summed.
  virtual LayerGradient& gradient(const Coordinates& at) = 0;
  /// Input statistics of all Metacognition layers, the latest kMetaHistory, oldest first.
  virtual std::deque<TensorStats>& history() = 0;
  /// Runs the meta network of a Metacognition layer; layers know networks by name only. The result is the network's.
  virtual const Tensor<float>& run_meta_network(Network& network, const Tensor<float>& x) = 0;
  virtual const Tensor<double>& run_meta_network(Network& network, const Tensor<double>& x) = 0;
};

/// Is shown the inputs of layers whose weights are one matrix, while a network runs.
class MatrixObserver {
 public:
  virtual ~MatrixObserver() = default;
  /// `x`, [rows][columns], is about to be multiplied with the weights of `layer`. Called from one thread.
  virtual void see(const Layer& layer, std::span<const float> x, std::size_t rows) = 0;

 protected:
  MatrixObserver() = default;
  MatrixObserver(const MatrixObserver&) = default;
  MatrixObserver& operator=(const MatrixObserver&) = default;
};

struct Run {
  Grid* grid = nullptr;                ///< null for a layer that stands alone
  bool for_backward = false;           ///< keep what backward needs, and multiply with decoded weights, not packed ones
  std::uint64_t seed = 0;              ///< of random numbers; layers that draw some advance it
  MatrixObserver* observer = nullptr;  ///< may be null
  bool fast = false;                   ///< packed products round activations where the type allows it
};

/// Writes state.values<T>().
template <class T>
using Forward = void (*)(Layer& layer, const Tensor<T>& x, const Tensor<T>* skip, LayerState& state, Run& run);
/// Writes state.grad_input (and grad_skip), adds to `gradient`, whose arrays have the right lengths already.
using Backward = void (*)(Layer& layer, const Tensor<float>& x, const Tensor<float>* skip,
                          const Tensor<float>& grad_output, LayerState& state, LayerGradient& gradient, Run& run);

struct LayerFunctions {
  LayerType type;
  WeightShape (*weight_shape)(const LayerConfig& config);                                   // throws UsageError
  void (*initialize)(const LayerConfig& config, WeightStore& weights, std::uint64_t seed);  // null: no weights
  Forward<float> forward;
  Forward<double> forward_wide;
  Backward backward;
};

extern const LayerFunctions kDense, kMultiHeadAttention, kSwiGlu, kRmsNorm, kCnn1, kCnn2, kCnn3, kRnn, kLstm,
    kLayerNorm, kConvTransposed1D, kConvTransposed2D, kConvTransposed3D, kEmbedding, kKMeans, kSoftmax, kParallel,
    kSequential, kResidual, kMetacognition;

const LayerFunctions& functions_of(LayerType type) noexcept;

/// Throws UsageError if an enabled layer that needs weights has none, ShapeError if they have another size than its
/// settings ask for. Both name the layer.
void check_weights(const Layer& layer);

/// A fresh gradient tree of zeros for a layer.
LayerGradient zero_gradient(const Layer& layer);

/// Runs one layer: checks that its weights are there and have the right size, then its own forward. A disabled layer
/// gives x. Errors name the layer. The result is state.values<T>().post.
void forward_layer(Layer& layer, const Tensor<float>& x, const Tensor<float>* skip, LayerState& state, Run& run);
/// In float64. A layer with weights of another type computes in float32: x is rounded, its result widened.
/// REQUIRES: !run.for_backward.
void forward_layer(Layer& layer, const Tensor<double>& x, const Tensor<double>* skip, LayerState& state, Run& run);
void backward_layer(Layer& layer, const Tensor<float>& x, const Tensor<float>* skip, const Tensor<float>& grad_output,
                    LayerState& state, LayerGradient& gradient, Run& run);

/// "layer (0,0,0,3), MultiHeadAttention", for messages.
std::string describe(const Layer& layer);

// ---- For the files of the types.

/// The setting as a size. Throws UsageError, naming the type and the field, if it is not positive.
std::size_t required(const LayerConfig& config, int value, std::string_view field);

/// weight_shape of layers without weights.
WeightShape no_weights(const LayerConfig& config);

/// `count` weights from `first` on become uniform in [-0.1, 0.1], the rule for matrices of fresh layers. Parts of one
/// array may use one seed: `first` is mixed into it.
void initialize_uniform(WeightStore& weights, std::uint64_t seed, std::size_t first, std::size_t count);
/// … become `value`. Fresh stores hold zeros already.
void initialize_constant(WeightStore& weights, std::size_t first, std::size_t count, float value);
/// LayerFunctions::initialize of layers whose weights are one matrix.
void initialize_matrix(const LayerConfig& config, WeightStore& weights, std::uint64_t seed);

/// Throws UsageError, naming `who` and `what`, if that many float32 values do not fit the memory of this machine:
/// settings come from files, and a small file must not take all memory there is.
void check_memory(std::size_t values, std::string_view who, std::string_view what);

/// Gives the tensor these extents; nothing is allocated if it has them already.
template <class T>
void resize_to(Tensor<T>& tensor, std::span<const std::size_t> extents) {
  if (std::ranges::equal(tensor.shape().extents(), extents)) return;
  tensor.resize(Shape(std::vector(extents.begin(), extents.end())));
}
template <class T>
void resize_to(Tensor<T>& tensor, std::initializer_list<std::size_t> extents) {
  resize_to(tensor, std::span(extents.begin(), extents.size()));
}

/// Gives the tensor the extents `outer` and then `last`; nothing is allocated if it has them already.
template <class T>
void resize_outer(Tensor<T>& tensor, std::span<const std::size_t> outer, std::size_t last) {
  thread_local std::vector<std::size_t> extents;
  extents.assign(outer.begin(), outer.end());
  extents.push_back(last);
  resize_to(tensor, std::span<const std::size_t>(extents));
}

/// Calls visit(child) for every layer directly inside `layer`, in the order of LayerGradient::children; meta networks
/// are networks of their own and left out.
template <class AnyLayer, class Visit>
void for_each_child(AnyLayer& layer, Visit&& visit) {
  for (auto& branch : layer.branches) visit(branch);
  if (layer.filter_gate != nullptr) visit(*layer.filter_gate);
  for (auto& sub_layer : layer.sub_layers) visit(sub_layer);
  if (layer.observed != nullptr) visit(*layer.observed);
}

/// Calls visit(inner) for `layer` and every layer inside it, outer ones first.
template <class AnyLayer, class Visit>
void for_each_layer(AnyLayer& layer, Visit&& visit) {
  visit(layer);
  for_each_child(layer, [&](auto& child) { for_each_layer(child, visit); });
}

/// Calls visit(inner, gradient of inner) in the same order. Layers that `gradient` does not know have one without
/// weights.
template <class AnyLayer, class Visit>
void for_each_gradient(AnyLayer& layer, const LayerGradient& gradient, Visit&& visit) {
  static const LayerGradient kNone;
  visit(layer, gradient);
  std::size_t child = 0;
  for_each_child(layer, [&](auto& inner) {
    for_each_gradient(inner, child < gradient.children.size() ? gradient.children[child] : kNone, visit);
    ++child;
  });
}

}  // namespace imago::layers
