#pragma once

// Operations between products on a CUDA device. Pointers are device memory, and callers check sizes. Everything is
// queued on the stream, in float32 unless stated otherwise, with the tolerances of kernels/ops.h.

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/cuda/stream.h"
#include "kernels/cuda/matrix.h"
#include "kernels/ops_args.h"

namespace imago::kernels::cuda {

/// Where a kernel that computes activations also writes the quantized ones (see Activations); null: nowhere.
struct Int8Out {
  std::int8_t* q = nullptr;
  float2_pod* scales = nullptr;
};

/// x += branch · factor first, where branch is not null (residual); then y = norm(x) · weight. `y` may be `x`; y null:
/// only the quantized result is needed. rows × cols.
struct NormArgs {
  float* x;
  const float* branch = nullptr;
  float branch_factor = 1;
  const float* weight = nullptr;  ///< null: y is x (only the residual and the quantization)
  const float* bias = nullptr;    ///< layer norm only; may be null
  float* y = nullptr;
  Int8Out int8 = {};
  std::size_t rows = 0, cols = 0;
  float eps = 1e-5f;
  bool layer_norm = false;  ///< else RMS
};
void norm(const NormArgs& args, Stream& stream);

/// Quantizes activations: scale = max|x| / 127 per 32 columns, halves rounded away from zero.
void quantize(const float* x, std::size_t rows, std::size_t cols, Int8Out out, Stream& stream);

/// y = f(gate) · up; up null: y = f(gate). Also quantizes y [rows][cols] if `int8` is given; y null: only that.
void activate(Activation function, const float* gate, const float* up, float* y, std::size_t rows, std::size_t cols,
              Int8Out int8, Stream& stream);

void softmax(float* x, std::size_t rows, std::size_t cols, float scale, float cap, Stream& stream);
void add(const float* x, float factor, float* y, std::size_t count, Stream& stream);  ///< y += factor · x
void scale(float* y, float factor, std::size_t count, Stream& stream);
/// y = cap · tanh(y / cap).
void soft_cap(float* y, float cap, std::size_t count, Stream& stream);

/// out[i] = table[ids[i]] for float32 tables [rows][cols].
void gather_rows(const float* table, const std::int32_t* ids, std::size_t count, std::size_t cols, float* out,
                 Stream& stream);

/// x[i] += table[min(ids[i], rows - 1)] for float32 tables [rows][cols].
void add_rows(const float* table, std::size_t rows, const std::int32_t* ids, std::size_t count, std::size_t cols,
              float* x, Stream& stream);
/// ids below `rows`, and 0 in place of others.
void known_ids(const std::int32_t* ids, std::size_t rows, std::size_t count, std::int32_t* out, Stream& stream);
/// y = (y + branch_factor · branch) · *factor; a null branch adds nothing.
void scale_by(const float* factor, const float* branch, float branch_factor, float* y, std::size_t count,
              Stream& stream);
/// y = f(y) · by, where y is [rows][cols] and rows of `by` are `stride` apart.
void activate_by(Activation function, const float* by, std::size_t stride, float* y, std::size_t rows, std::size_t cols,
                 Stream& stream);

/// The index of the largest value of each row; ignores NaN, and takes the lower index of equal values.
void argmax(const float* x, std::size_t rows, std::size_t cols, std::int32_t* out, Stream& stream);

/// How a token is chosen from a row of logits. Temperature 0: the most likely one.
struct SampleChoice {
  float temperature, top_p, min_p;
  int top_k;
  double random = 0;  ///< uniform in [0, 1)
};
/// One token for each row of logits, [rows.size()][cols]: temperature, top-k (0: all), top-p and min-p as Sampler
/// applies them, in its order. The token that Sampler would choose, but where probabilities differ by less than 1e-6
/// from its. -1 if all logits of a row are NaN or -infinity.
void sample(const float* logits, std::span<const SampleChoice> rows, std::size_t cols, std::int32_t* out,
            Stream& stream);

}  // namespace imago::kernels::cuda
