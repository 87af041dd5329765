#pragma once

// A layer on a CUDA device: the state it keeps there, where its weights come from, one row of functions per type. The
// counterpart of layers/layer_functions.h.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "device/cuda/stream.h"
#include "kernels/cuda/matrix.h"
#include "layers/layer_functions.h"
#include "layers/linear.h"

namespace imago::layers::cuda {

using imago::cuda::Array;
using imago::cuda::Stream;

/// A float32 tensor in device memory. Its memory grows to the largest shape it had and is reused for smaller ones.
class DeviceTensor {
 public:
  const Shape& shape() const noexcept { return shape_; }
  std::size_t size() const noexcept { return shape_.elements(); }
  float* data() const noexcept { return values_.data(); }
  void resize(Device& device, const Shape& shape) {
    values_.reserve(device, shape.elements());
    if (!(shape_ == shape)) shape_ = shape;
  }

 private:
  Shape shape_ = Shape{0};
  Array<float> values_;
};

/// What a layer keeps on the device between calls; each type's file says what is where. As LayerState.
struct DeviceState {
  LayerType ran_as = {};
  DeviceTensor post;
  std::vector<DeviceTensor> saved, scratch;
  DeviceTensor grad_input;
  bool needs_grad_input = true;
  DeviceTensor grad_skip;  ///< of Residual
  std::vector<DeviceState> children;
  std::size_t rope_steps = 0, rope_values = 0;  ///< of MultiHeadAttention: what the table of angles is made for
  double rope_base = 0;
  Tensor<float> host_x, host_skip;  ///< of layers that run on the host
};

/// The weights of one layer while it is trained, float32 in device memory, flat as its master.
struct TrainedLayer {
  Layer* layer = nullptr;
  Array<float> master, gradient;
  Array<float> rounded;  ///< Wq; empty for float32, where it is the master
  const float* active() const noexcept { return rounded.size() == 0 ? master.data() : rounded.data(); }
};
using TrainedLayers = std::unordered_map<const Layer*, TrainedLayer>;

struct DeviceRun {
  std::shared_ptr<Device> device;
  Stream& stream;
  kernels::cuda::ProductScratch& products;
  TrainedLayers* trained = nullptr;                    ///< null: packed weights out of the stores
  Run host = {};                                       ///< grid and seed, for links and layers that run on the host
  DeviceTensor sums = {};                              ///< scratch of column sums
  std::vector<std::shared_ptr<const void>> held = {};  ///< weights in use until the stream was waited for

  bool for_backward() const noexcept { return trained != nullptr; }
};

using DeviceForward = void (*)(Layer& layer, const DeviceTensor& x, const DeviceTensor* skip, DeviceState& state,
                               LayerState& host, DeviceRun& run);
/// Writes state.grad_input (and grad_skip), adds to the gradients in run.trained.
using DeviceBackward = void (*)(Layer& layer, const DeviceTensor& x, const DeviceTensor* skip,
                                const DeviceTensor& grad_output, DeviceState& state, DeviceRun& run);

struct DeviceFunctions {
  DeviceForward forward;
  DeviceBackward backward;  ///< null: this type is not trained on a GPU
};

/// Runs one layer; a disabled one gives x. Types without kernels (Metacognition, and Softmax with noise, masks, or onto
/// sparse points) run on the host: their input is downloaded and their result uploaded. `host` is the state that they
/// keep.
void forward_layer(Layer& layer, const DeviceTensor& x, const DeviceTensor* skip, DeviceState& state, LayerState& host,
                   DeviceRun& run);
void backward_layer(Layer& layer, const DeviceTensor& x, const DeviceTensor* skip, const DeviceTensor& grad_output,
                    DeviceState& state, DeviceRun& run);

/// Throws UnsupportedError, naming the layer, if it or one inside it cannot be trained on a GPU.
void check_trainable(const Layer& layer);
/// The check for Softmax: throws for the variants that run on the host.
void check_softmax_trainable(const Layer& layer);

// ---- For the files of the types.

void host_forward(Layer& layer, const DeviceTensor& x, const DeviceTensor* skip, DeviceState& state, LayerState& host,
                  DeviceRun& run);

void copy_tensor(const DeviceTensor& from, DeviceTensor& to, DeviceRun& run);
/// The shape of x with rows of `new_width` instead of `width`, as resize_rows.
Shape rows_shape(const Shape& x, std::size_t width, std::size_t new_width);

/// The slice of the layer's weights as its scheme packs it; decoded to float32 where rows do not line up with blocks or
/// groups. It stays until the stream was waited for.
const kernels::cuda::GpuMatrix& matrix_of(const Layer& layer, const MatrixSlice& slice, DeviceRun& run);
/// Wq of a part of the layer's array, float32 in device memory. It stays as long.
const float* weights_of(const Layer& layer, std::size_t first, std::size_t count, DeviceRun& run);
/// Where the gradient of the layer's weights is summed, from `first` on.
float* gradient_of(const Layer& layer, std::size_t first, DeviceRun& run);

/// y[batch][rows] = f(x · Wᵀ + b): packed weights outside of training.
void linear_forward(const Layer& layer, const Linear& part, const float* x, std::size_t batch, float* y, DeviceRun& run,
                    kernels::Activation activation = kernels::Activation::linear);
/// As layers::linear_backward; grad_x null: left out.
void linear_backward(const Layer& layer, const Linear& part, const float* x, std::size_t batch, const float* grad_y,
                     float* grad_x, DeviceRun& run, bool add_input = false);
/// sums[c] += Σ x[row][c].
void add_rows(const float* x, std::size_t rows, std::size_t cols, float* sums, DeviceRun& run);

/// z of a layer with result = f(z), once state.post has its shape: saved[0] if backward will need z, else the result.
float* pre_activation(const Layer& layer, DeviceState& state, DeviceRun& run);
/// grad_output · f'(z) with z = saved[0], in scratch[index] unless f is linear.
const float* grad_pre_activation(const Layer& layer, const DeviceTensor& grad_output, DeviceState& state,
                                 std::size_t index, DeviceRun& run);

extern const DeviceFunctions kDense, kSwiGlu, kNorm, kEmbedding, kAttention, kConvolution, kTransposedConvolution, kRnn,
    kLstm, kKMeans, kSoftmax, kParallel, kSequential, kResidual;

}  // namespace imago::layers::cuda
