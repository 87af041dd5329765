#pragma once

// What the settings of a layer mean: effective sizes, and where its matrices are in its weight array, for the CPU and
// the GPU alike. A setting of 0 is not set and has a default. All throw UsageError, naming the field, for settings that
// make no valid layer, and ShapeError for sizes that overflow.

#include <cstddef>
#include <span>
#include <vector>

#include "layers/linear.h"
#include "math/products.h"

namespace imago::layers {

/// Dense.
Linear dense_matrix(const LayerConfig& config);

// ---- MultiHeadAttention

struct AttentionDims {
  std::size_t width, heads, kv_heads, head_values;
  std::size_t queries, keys;  ///< values of all heads of a token
  bool turns;                 ///< queries and keys by their positions
  bool biased;                ///< it adds the biases in its array
  double rope_base, eps;

  std::size_t projected() const noexcept { return queries + 2 * keys; }
  /// Weights of all matrices; the biases follow them.
  std::size_t matrix_values() const noexcept { return (projected() + queries) * width; }
  std::size_t group() const noexcept { return heads / kv_heads; }
};
AttentionDims attention_dims(const LayerConfig& config);

/// The arrays of q, k and v follow each other, matrices and biases alike: they are one projection to q, then k, then v.
Linear attention_projection(const AttentionDims& dims);
Linear attention_output(const AttentionDims& dims);

struct AttentionBatch {
  std::size_t sequences, steps;
  std::size_t tokens() const noexcept { return sequences * steps; }
};
/// How an input divides into sequences. Throws ShapeError, naming the layer, if it is not a whole number of them.
AttentionBatch attention_batch(const Layer& layer, const AttentionDims& dims, const Shape& x);

// ---- SwiGLU

struct SwiGluParts {
  std::size_t width, inner;
  Linear gate, up, down;
  kernels::Activation function;  ///< of the gate: silu or relu2
  bool normed;                   ///< an RMS norm before `down`

  /// Weights of all matrices; the biases follow them.
  std::size_t matrix_values() const noexcept { return 3 * width * inner; }
};
SwiGluParts swiglu_parts(const LayerConfig& config);

// ---- RMSNorm and LayerNorm

std::size_t norm_width(const LayerConfig& config);
/// The epsilon of the layer's own norm.
double norm_eps(const LayerConfig& config);
/// rms_norm_eps of norms inside other layers: 1e-6 unless positive.
double effective_eps(double rms_norm_eps) noexcept;

// ---- Convolutions

/// Axes that the type does not have come first and are 1.
struct ConvolutionSizes {
  std::size_t axes, channels, filters, kernel, stride, padding;
  std::size_t in[3], out[3];  ///< depth, height, width; the only axis is the width
  std::size_t in_values() const noexcept { return in[0] * in[1] * in[2]; }
  std::size_t out_values() const noexcept { return out[0] * out[1] * out[2]; }
};
ConvolutionSizes convolution_sizes(const LayerConfig& config);

/// What math::convolve takes.
math::ConvolutionExtents extents_of(const ConvolutionSizes& sizes, std::size_t batch);
/// The same for a transposed convolution: of the convolution from its result to its input.
math::ConvolutionExtents swapped_extents(ConvolutionSizes sizes, std::size_t batch);
/// The extents of the result, [batch][filters][out…], in the given memory. Throws UsageError if the machine has too
/// little memory for it.
std::span<const std::size_t> convolution_result(const Layer& layer, const ConvolutionSizes& sizes, std::size_t batch,
                                                std::size_t (&extents)[5]);

// ---- RNN and LSTM. Batches of sequences are [B][S][width]; one step, which the recurrent products take, is [B][H].

struct RecurrentSizes {
  std::size_t inputs, hidden, steps;
  std::size_t batch = 0;
  std::size_t rows() const noexcept { return batch * steps; }
  std::size_t step_values() const noexcept { return batch * hidden; }
};
RecurrentSizes recurrent_sizes(const LayerConfig& config);
/// With the batch that x holds. Throws ShapeError, naming the layer, if it is not a whole number of sequences.
RecurrentSizes recurrent_sizes(const Layer& layer, const Shape& x);

inline constexpr std::size_t kLstmGates = 4;  ///< i, f, g, o
/// The weights of one gate: Wih[H][I], Whh[H][H], b[H].
struct Gate {
  Linear input;      ///< with the bias
  Linear recurrent;  ///< without
};
std::size_t gate_weights(const RecurrentSizes& sizes);
Gate gate_at(const RecurrentSizes& sizes, std::size_t number);

// ---- KMeans

struct KMeansDims {
  std::size_t clusters, width;
  double inverse_variance;  ///< 1 / T²
  bool features;            ///< the result is the mixture of centers, not the assignment
  std::size_t outputs() const noexcept { return features ? width : clusters; }
};
KMeansDims kmeans_dims(const LayerConfig& config);

// ---- Softmax

struct SoftmaxSettings {
  double temperature;  ///< finite and not 0 in float32 too
  double alpha;        ///< of entmax: 1 is softmax, 2 sparsemax
  std::size_t rows;    ///< 0: rows are the last dimension
  std::size_t cols;
  bool noisy;                     ///< Gumbel noise is added
  const std::vector<bool>* mask;  ///< null: none; may be shorter than a row
};
SoftmaxSettings softmax_settings(const LayerConfig& config);
/// Values of a row. Throws ShapeError, naming the layer, if x is not a whole number of grids, or shorter than the mask.
std::size_t softmax_cols(const Layer& layer, const SoftmaxSettings& settings, const Shape& x);

// ---- Parallel

enum class CombineMode { concat, add, average, filter };
CombineMode combine_mode(const LayerConfig& config);

}  // namespace imago::layers
