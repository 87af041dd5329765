#pragma once

// Products of packed weights with activations on a CUDA device. No CUDA types here: host code of any file may include
// it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "device/cuda/stream.h"
#include "kernels/cuda/layout.h"
#include "kernels/matrix.h"

namespace imago::kernels::cuda {

using imago::cuda::Stream;

/// A weight matrix in device memory, in the planes of kernels/cuda/layout.h: as many bits as the file has, give or take
/// rounding of sub-block scales to bytes. Immutable. Move-only.
class GpuMatrix {
 public:
  /// Lays out `source` on the host in pieces, in parallel, and uploads each piece through pinned memory while the next
  /// is laid out. Scales as RunMatrix takes them. Throws ShapeError, UsageError as RunMatrix, DeviceError if it does
  /// not fit.
  GpuMatrix(std::shared_ptr<Device> device, const PackedMatrix& source);

  std::size_t rows() const noexcept { return planes_.rows; }
  std::size_t cols() const noexcept { return planes_.cols; }
  Format format() const noexcept { return format_; }
  std::size_t bytes() const noexcept { return data_.size(); }
  const Planes& planes() const noexcept { return planes_; }

 private:
  Format format_;
  Buffer data_;
  Planes planes_;
};

/// y = x / rms(x) · weight, of a token.
struct RmsNorm {
  const float* weight = nullptr;  ///< null: y is x
  float eps = 0;
};

/// Activations in device memory, in the forms that products read. Each form may be null: `multiply` makes what it needs
/// and is not there in its scratch; kernels that produce activations (ops.h) write the int8 form along where they can.
struct Activations {
  const float* x = nullptr;            ///< [count][cols]
  RmsNorm norm = {};                   ///< that products read x through, where no int8 form is given
  const std::int8_t* q = nullptr;      ///< [count][padded_cols(cols)]: int8 in blocks of 32, zeros behind cols
  const float2_pod* scales = nullptr;  ///< [count][padded_cols / 32]: {scale, scale · sum of q}
  std::size_t count = 0, cols = 0;
};

/// What is done to a result before it is stored, in this order: + bias[row], activation, · factor[token][row] (gated
/// layers), · scale, + what y holds (residual).
struct GpuEpilogue {
  const float* bias = nullptr;
  Activation activation = Activation::linear;
  float scale = 1;
  bool accumulate = false;
};

/// One product among several that share their activations: y[token][row], rows of y `y_stride` apart (0: rows()).
struct GpuProduct {
  const GpuMatrix* matrix = nullptr;
  /// With `up`, y = activation(matrix x) · (up x): both are read in one pass. Same rows and cols.
  const GpuMatrix* up = nullptr;
  float* y = nullptr;
  std::size_t y_stride = 0;
  GpuEpilogue epilogue = {};
};

/// Memory that products need between their kernels; grows to the largest and is then used again. One per stream. Inside
/// a graph capture it must not grow: run the same work once before.
class ProductScratch {
 public:
  explicit ProductScratch(std::shared_ptr<Device> device);
  ~ProductScratch();
  ProductScratch(ProductScratch&&) noexcept;
  ProductScratch& operator=(ProductScratch&&) noexcept;
  struct State;
  State& state() noexcept { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

/// Queues all products. Few tokens (up to kMatVecTokens): one launch that streams the weights once, int8 activations
/// with Arithmetic::fast where the type allows, float32 with exact. More: tensor cores; `fast` decodes tiles to bf16
/// (wide float types by cuBLASLt as they are), `exact` computes in float32. Tolerances as on the host; bf16 counts as
/// fast. A norm before them costs next to nothing, but has limits: one token, `fast`, types with int8 activations
/// (UsageError).
void multiply(std::span<const GpuProduct> products, const Activations& tokens, Arithmetic arithmetic,
              ProductScratch& scratch, Stream& stream);

inline constexpr std::size_t kMatVecTokens = 8;

/// Wq in float32, row by row, contiguous: what layers without packed kernels compute with. `to` has rows · cols floats.
void dequantize(const GpuMatrix& matrix, float* to, Stream& stream);
/// Rows `ids[i]` of the matrix in float32: out is [count][cols], times `scale`. ids are int32 in device memory, in
/// range.
void dequantize_rows(const GpuMatrix& matrix, const std::int32_t* ids, std::size_t count, float scale, float* out,
                     Stream& stream);

}  // namespace imago::kernels::cuda
