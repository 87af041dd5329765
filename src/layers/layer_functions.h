#pragma once

// What a layer type is made of: one row of functions per type, one file per type. Everything above (containers, grid,
// training) works through forward_layer and backward_layer.

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "imago/layer.h"
#include "imago/numeric.h"

namespace imago::layers {

/// Figures of a tensor that Metacognition rules look at.
struct TensorStats {
  double average = 0, deviation = 0, maximum = 0, minimum = 0;
  std::size_t active = 0, total = 0;
};

/// Of Metacognition, so many are kept.
inline constexpr std::size_t kMetaHistory = 100;

struct AttentionTable;  // layers/attention.cpp

/// What a layer keeps between calls: its result, what its backward needs, and the same for the layers inside it. Reused
/// call after call, so that memory is allocated only when shapes change.
struct LayerState {
  LayerType ran_as = {};             ///< the type of the layer at the last forward
  Tensor<float> post;                ///< the result of forward
  std::vector<Tensor<float>> saved;  ///< of forward, for backward; each type's file says what is where
  Tensor<float> grad_input;          ///< the result of backward
  bool needs_grad_input = true;      ///< false: nobody will read it, and backward may leave it as it is
  Tensor<float> grad_skip;           ///< of Residual: what goes to its skip
  std::vector<Tensor<float>> scratch;
  std::vector<LayerState> children;                       ///< in the order of LayerGradient::children
  std::vector<int> counters;                              ///< of Metacognition: fire counts of its rules
  std::shared_ptr<const AttentionTable> attention_table;  ///< of MultiHeadAttention: the angles of RoPE
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
};

/// Told, while a network runs, of the inputs of layers whose weights are one matrix.
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
  bool for_backward = false;           ///< keep what backward needs; products of decoded weights instead of packed ones
  std::uint64_t seed = 0;              ///< of random numbers; advanced by what draws them
  MatrixObserver* observer = nullptr;  ///< null: nobody
};

using Forward = void (*)(Layer& layer, const Tensor<float>& x, const Tensor<float>* skip, LayerState& state, Run& run);
/// Writes state.grad_input (and grad_skip), adds to `gradient`, whose arrays have the right lengths already.
using Backward = void (*)(Layer& layer, const Tensor<float>& x, const Tensor<float>* skip,
                          const Tensor<float>& grad_output, LayerState& state, LayerGradient& gradient, Run& run);

struct LayerFunctions {
  LayerType type;
  WeightShape (*weight_shape)(const LayerConfig& config);                                   // throws UsageError
  void (*initialize)(const LayerConfig& config, WeightStore& weights, std::uint64_t seed);  // null: no weights
  Forward forward;
  Backward backward;
};

/// The row of a type.
const LayerFunctions& functions_of(LayerType type) noexcept;

/// Throws UsageError if an enabled layer that needs weights has none, ShapeError if they have another size than its
/// settings ask for. Both name the layer.
void check_weights(const Layer& layer);

/// A fresh gradient tree of zeros for a layer.
LayerGradient zero_gradient(const Layer& layer);

/// Runs one layer: checks that its weights are there and have the right size, then its own forward. A disabled layer
/// gives x. Errors name the layer. The result is state.post.
void forward_layer(Layer& layer, const Tensor<float>& x, const Tensor<float>* skip, LayerState& state, Run& run);
void backward_layer(Layer& layer, const Tensor<float>& x, const Tensor<float>* skip, const Tensor<float>& grad_output,
                    LayerState& state, LayerGradient& gradient, Run& run);

/// "layer (0,0,0,3), MultiHeadAttention", for messages.
std::string describe(const Layer& layer);

}  // namespace imago::layers
