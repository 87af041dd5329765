#pragma once

// Products of packed weights with activations on a CUDA device. Free of CUDA types, so that any host code may include
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

/// A weight matrix in device memory, in the planes of layout.h: about as many bits as in the file, since only the
/// scales of sub-blocks are rounded up to bytes. Immutable. Move-only.
class GpuMatrix {
 public:
  /// Lays out `source` on the host with all threads, and uploads some rows while the next are laid out. Takes scales
  /// like RunMatrix; with zero points that are not the same for all weights, the matrix becomes float32. Throws
  /// ShapeError and UsageError like RunMatrix, DeviceError if it does not fit.
  GpuMatrix(std::shared_ptr<Device> device, const PackedMatrix& source);

  std::size_t rows() const noexcept { return planes_.rows; }
  std::size_t cols() const noexcept { return planes_.cols; }
  Format format() const noexcept { return format_; }
  std::size_t bytes() const noexcept { return data_.size(); }
  const Planes& planes() const noexcept { return planes_; }

  /// Decodes all weights to float32, row by row, into `to` on the same device, and waits for it. REQUIRES: room for
  /// rows() · cols() floats.
  void decode_into(Buffer& to) const;
  /// The same into host memory, some rows at a time. REQUIRES: out.size() == rows() · cols().
  void download(std::span<float> out) const;

 private:
  Format format_;
  Buffer data_;
  Planes planes_;
};

/// y = x / rms(x) · weight, for one token.
struct RmsNorm {
  const float* weight = nullptr;  ///< null: y is x
  float eps = 0;
};

/// Activations in device memory, as float32 and quantized to int8. Either may be null: `multiply` then makes what it
/// needs in its scratch. Kernels that produce activations (ops.h) can write the quantized ones in the same pass.
struct Activations {
  const float* x = nullptr;            ///< [count][cols]
  RmsNorm norm = {};                   ///< applied to x before the products, if q is null
  const std::int8_t* q = nullptr;      ///< [count][padded_cols(cols)]: int8 in blocks of 32, zeros after cols
  const float2_pod* scales = nullptr;  ///< [count][padded_cols / 32]: {scale, scale · sum of q}
  std::size_t count = 0, cols = 0;
};

/// What happens to a sum before it is stored, in this order: + bias[row], activation, · the sum of `up` (gated
/// products), · scale, + the old y (residual).
struct GpuEpilogue {
  const float* bias = nullptr;
  Activation activation = Activation::linear;
  float scale = 1;
  bool accumulate = false;
};

/// One product among several that share their activations: y[token][row], rows of y `y_stride` apart (0: rows()).
struct GpuProduct {
  const GpuMatrix* matrix = nullptr;
  /// With `up`, y = activation(matrix x) · (up x) in one pass. Same rows and cols.
  const GpuMatrix* up = nullptr;
  float* y = nullptr;
  std::size_t y_stride = 0;
  GpuEpilogue epilogue = {};
};

/// Memory that products need between their kernels; grows to the largest product and is reused. One per stream. It must
/// not grow during a graph capture: run the same work once before.
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
/// fast. A norm of the activations is nearly free, but needs one token, `fast`, and types with int8 activations
/// (UsageError otherwise).
void multiply(std::span<const GpuProduct> products, const Activations& x, Arithmetic arithmetic,
              ProductScratch& scratch, Stream& stream);

inline constexpr std::size_t kMatVecTokens = 8;

/// The weights in float32, row by row, for layers without packed kernels. `to` has rows · cols floats.
void dequantize(const GpuMatrix& matrix, float* to, Stream& stream);
/// Rows `ids[i]` of the matrix in float32: out is [count][cols], times `scale`. ids are int32 in device memory, in
/// range.
void dequantize_rows(const GpuMatrix& matrix, const std::int32_t* ids, std::size_t count, float scale, float* out,
                     Stream& stream);

}  // namespace imago::kernels::cuda
