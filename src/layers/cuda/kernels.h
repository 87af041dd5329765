#pragma once

// The CUDA kernels of layers: what is not a product of packed weights or an operation of kernels/cuda/ops.h. Pointers
// are device memory, float32; everything is queued on the stream. Sums run in a fixed order: the same bits at every
// call.

#include <cstddef>

#include "device/cuda/stream.h"
#include "kernels/ops_args.h"
#include "math/products.h"

namespace imago::layers::cuda {

using imago::cuda::Stream;

// ---- gemm.cu: float32 products of training and of layers without packed kernels, row-major

/// C[m][n] = op(A) · op(B), or += with `add`, for `batch` products whose operands are the given steps apart (0: the
/// same one for all). op(A) is m × k, op(B) is k × n. Rows of the operands are contiguous.
struct GemmArgs {
  const float* a;
  const float* b;
  float* c;
  std::size_t m, n, k;
  bool a_transposed = false, b_transposed = false;
  bool add = false;
  std::size_t batch = 1;
  std::size_t a_step = 0, b_step = 0, c_step = 0;
};

/// Uses cuBLAS in float32 if it is installed, else plain_gemm.
void gemm(const GemmArgs& args, Stream& stream);

/// Our own kernel.
void plain_gemm(const GemmArgs& args, Stream& stream);

// ---- elementwise.cu: derivatives of activations, biases, rows copied and summed

/// grad_z = grad_y · f'(z); grad_z may be grad_y.
void activation_backward(kernels::Activation function, const float* z, const float* grad_y, float* grad_z,
                         std::size_t count, Stream& stream);

/// y[row] += bias.
void add_bias(const float* bias, float* y, std::size_t rows, std::size_t cols, Stream& stream);

/// sums[c] += Σ_row x[row][c]; with `scaled`, x is multiplied by (y - figures[2 row]) · figures[2 row + 1]: the
/// gradient of a norm's weight. `scratch` has column_sum_scratch values.
struct ColumnSums {
  const float* x;
  const float* y = nullptr;
  const float* figures = nullptr;
  float* sums;
  std::size_t rows, cols;
  float* scratch;
};
std::size_t column_sum_scratch(std::size_t rows, std::size_t cols);
void add_column_sums(const ColumnSums& args, Stream& stream);

/// Gradients through gate and up of a gated layer: grad_gate = grad · up · f'(gate), grad_up = grad · f(gate). f is
/// silu or relu2.
struct GateBackward {
  const float* gate;
  const float* up;
  const float* grad;
  float* grad_gate;
  float* grad_up;
  std::size_t count;
  bool relu2;
};
void gate_backward(const GateBackward& args, Stream& stream);

/// to[row][i] = factor · from[row][i], rows of `width` values `from_stride` and `to_stride` apart. With `row_factors`,
/// a further factor row_factors[row · factor_stride]; with `add`, added to `to`.
struct RowCopy {
  const float* from;
  std::size_t from_stride;
  float* to;
  std::size_t to_stride;
  std::size_t rows, width;
  float factor = 1;
  const float* row_factors = nullptr;
  std::size_t factor_stride = 0;
  bool add = false;
};
void copy_rows(const RowCopy& args, Stream& stream);

/// out[row · stride] = a[row] · b[row], rows of `width`.
void row_dots(const float* a, const float* b, std::size_t rows, std::size_t width, float* out, std::size_t stride,
              Stream& stream);

/// Softmax backward, row by row: grad_x = p · (g - Σ p · g) · factor; grad_x may be g.
struct SoftmaxBackward {
  const float* p;
  const float* g;
  float* grad_x;
  std::size_t rows, cols;
  std::size_t g_stride, grad_stride;  ///< of rows of g and grad_x
  float factor;
};
void softmax_backward(const SoftmaxBackward& args, Stream& stream);

// ---- rows.cu: norms, embeddings, steps of recurrent layers, KMeans

/// The gradient of kernels::cuda::norm: grad_x from grad_y, row by row, and the figures of each row, {mean,
/// 1 / deviation}, for the gradient of the weights. grad_x may be grad_y. The mean of an RMS norm is 0.
struct NormBackward {
  const float* x;
  const float* weight;
  const float* grad_y;
  float* grad_x;
  float* figures = nullptr;  ///< [rows][2]; may be null
  std::size_t rows, cols;
  double eps;
  bool layer_norm;
};
void norm_backward(const NormBackward& args, Stream& stream);

/// Rows of a table by ids that are float32 numbers, truncated toward zero; ids outside the table, and NaN, name no row.
struct EmbeddingArgs {
  const float* ids;
  std::size_t count;
  std::size_t rows, cols;  ///< of the table
};

/// out[i] = table[ids[i]], or zeros.
void look_up(const EmbeddingArgs& args, const float* table, float* out, Stream& stream);

/// grad_table[ids[i]] += grad[i], in the order of i for each row.
void look_up_backward(const EmbeddingArgs& args, const float* grad, float* grad_table, Stream& stream);

/// The ids as rows for kernels that need them in range: row 0 for ids that name none.
void rows_of_ids(const EmbeddingArgs& args, int* rows, Stream& stream);
/// Zeros where an id names no row.
void clear_unnamed(const EmbeddingArgs& args, float* out, Stream& stream);

/// Step t of sequences [batch][steps][hidden].
struct StepShape {
  std::size_t batch, steps, hidden, t;
};

/// h = tanh(sums[b][t] + product[b]), into `h` [batch][hidden] and post[b][t]; `product` null: none.
void rnn_step(const StepShape& shape, const float* sums, const float* product, float* h, float* post, Stream& stream);

/// Gates i, f, g, o: sums [4][batch][steps][hidden] + products [4][batch][hidden] (null: none). c and h are
/// [batch][hidden], c goes in as that of the step before (not read at t 0).
void lstm_step(const StepShape& shape, const float* sums, const float* products, float* c, float* h, float* post,
               Stream& stream);

/// a[row][j] = softmax_j(-|x[row] - center[j]|² · half_inverse_variance). `distances` has rows · clusters doubles.
struct AssignArgs {
  const float* x;
  const float* centers;
  float* a;
  double* distances;
  std::size_t rows, clusters, width;
  double half_inverse_variance;
};
void assign_clusters(const AssignArgs& args, Stream& stream);

// ---- attention.cu: heads of MultiHeadAttention between the rows of a projection and dense tiles
// [sequence][head][step][value], and the causal softmax between the products of those tiles

struct HeadTiles {
  std::size_t sequences, steps, heads, head_values;
  std::size_t row_stride;       ///< from a token's row to the next
  const float* norm = nullptr;  ///< weights of an RMS norm; null: none
  std::size_t norm_stride = 0;  ///< from a head's weights to the next's: 0 if all share them
  double eps = 0;
  const float* rope = nullptr;  ///< [positions][rotary]: cosines, then sines; null: none
  std::size_t rotary = 0;
};

/// tiles[sequence][head][step] = turned(normed(rows[sequence · steps + step][head])); `rows` points to the first head.
void gather_heads(const HeadTiles& shape, const float* rows, float* tiles, Stream& stream);
/// Tiles back into rows, without norm and turning.
void scatter_heads(const HeadTiles& shape, const float* tiles, float* rows, Stream& stream);
/// From the gradient of tiles to that of the `rows` that gather_heads took.
void scatter_gradients(const HeadTiles& shape, const float* grad_tiles, const float* rows, float* grad_rows,
                       Stream& stream);

/// scores[row][u] = softmax over u ≤ row % steps of factor · scores, and 0 for later u.
void causal_softmax(float* scores, std::size_t rows, std::size_t steps, float factor, Stream& stream);

// ---- convolution.cu: the inputs that an output position multiplies with its weights become a row, and back

/// Values of a row: channels · kernel.
std::size_t taps_of(const math::ConvolutionExtents& e);
/// Positions of a sample's result.
std::size_t outputs_of(const math::ConvolutionExtents& e);
std::size_t inputs_of(const math::ConvolutionExtents& e);

/// rows[b · outputs + o][c · kernel + k] = x[b][c][o · stride + k - padding]; 0 outside. e.batch samples.
void gather_taps(const math::ConvolutionExtents& e, const float* x, float* rows, Stream& stream);
/// x[b][c][i] = the sum of all entries of `rows` that gather_taps would fill from it.
void sum_taps(const math::ConvolutionExtents& e, const float* rows, float* x, Stream& stream);

/// to[b][j][i] = from[b][i][j] for `batch` matrices of rows × cols.
void transpose(const float* from, float* to, std::size_t batch, std::size_t rows, std::size_t cols, Stream& stream);

/// [F][C][kernel] becomes [C][F][kernel], or is added to it.
void swap_filters(const float* from, float* to, std::size_t filters, std::size_t channels, std::size_t kernel, bool add,
                  Stream& stream);

}  // namespace imago::layers::cuda
