#pragma once

// Products of packed weights with activations: the table of kernels, and matrices laid out for one of them.

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "imago/codec.h"
#include "imago/device.h"
#include "imago/format.h"
#include "kernels/matrix_args.h"
#include "kernels/ops_args.h"

namespace imago::kernels {

/// How activations meet the weights.
enum class Arithmetic : std::uint8_t {
  /// Float32 activations; weights decoded in registers. Many tokens meet floats of 16 and 32 bits in tiles of bfloat16
  /// where the processor has them, both as sums of such numbers that leave nothing out.
  exact,
  /// Activations quantized to int8 in blocks of 32; for types of 8 bits and fewer and all block formats. Many tokens
  /// are rounded to bfloat16 instead, as are the weights, where the processor multiplies tiles of that: it loses less.
  fast,
};

/// A row of the table.
struct MatrixKernel {
  std::string name;  ///< "q4_0/avx512vnni"
  Format format;
  Arithmetic arithmetic;
  CpuFeatures needs;
  std::size_t panel_rows;  ///< rows laid out and computed together
  MatrixFunctions functions;

  /// Whether products of `batch` tokens use tiles of bfloat16.
  bool takes_tiles(std::size_t batch) const noexcept { return functions.tile_matmul != nullptr && batch >= kTileBatch; }
};

/// All rows that this host can run, best rows of a format first, `ref` last.
std::span<const MatrixKernel> all_matrix_kernels();

/// The first row for this format and arithmetic whose needs are within `features`; null if the format has no such form
/// (fast products of types wider than 8 bits).
const MatrixKernel* choose_matrix_kernel(Format format, Arithmetic arithmetic, CpuFeatures features);

/// A weight matrix as files have it: canonical layout, row by row, perhaps inside a larger array.
struct PackedMatrix {
  Format format = DType::float32;
  std::size_t rows = 0, cols = 0;
  std::span<const std::byte> packed;  ///< begins with weight 0 and holds first + rows · cols of them, or more
  Scales scales = {};                 ///< of a dtype, counted from weight 0; not read for types without a scale
  std::size_t first = 0;              ///< weights in front of the matrix; a multiple of the block
};

/// Throws ShapeError if sizes do not fit, UsageError for a scale that is negative or not finite, and for a zero point
/// that the format does not have.
void check_matrix(const PackedMatrix& m);

/// Columns that share a scale in the panels or planes of a dtype: 0 when whole rows do. Throws ShapeError for scales
/// that neither has a place for.
std::size_t columns_per_scale(const PackedMatrix& m);

/// What is done to a product while it is still in the cache.
struct Epilogue {
  std::span<const float> bias;  ///< one per row, or empty
  Activation activation = Activation::linear;
};

/// A weight matrix in the panels of one kernel. Immutable; products may run from many threads at once.
class RunMatrix {
 public:
  /// Lays out `source` in parallel. Each row must lie within one scale, or be cut by them into groups of 32, 64 or 128.
  /// Throws UnsupportedError if the format has no kernel for this arithmetic, ShapeError if sizes do not fit,
  /// UsageError for a scale that is negative or not finite.
  RunMatrix(const PackedMatrix& source, Arithmetic arithmetic);
  /// As above with a given kernel: for tests and benchmarks. Its format must be that of the source.
  RunMatrix(const MatrixKernel& kernel, const PackedMatrix& source);

  std::size_t rows() const noexcept { return rows_; }
  std::size_t cols() const noexcept { return cols_; }
  const MatrixKernel& kernel() const noexcept { return *kernel_; }
  /// Bytes that a product reads: the panels.
  std::size_t bytes() const noexcept { return data_.size(); }
  /// The panels themselves, for measuring how fast memory delivers it.
  std::span<const std::byte> data() const { return data_.host(); }

  /// y[t][row] = activation(W x[t] + bias) for `batch` tokens, rows of x `cols` and rows of y `rows` long, both
  /// contiguous. Throws ShapeError if the spans do not fit. The result does not depend on the number of threads.
  void multiply(std::span<const float> x, std::size_t batch, std::span<float> y, const Epilogue& epilogue = {}) const;

 private:
  friend struct ProductRegion;
  std::size_t panels() const noexcept;
  /// The rows of the panels [begin, end), on the calling thread. `up`: results to multiply with, laid out as y, or
  /// null.
  /// `many`: the tokens get what they would get among many.
  void run_panels(const Activations& in, std::size_t begin, std::size_t end, float* y, const Epilogue& epilogue,
                  const float* up, bool many) const;

  const MatrixKernel* kernel_;
  std::size_t rows_, cols_, scale_group_;
  Buffer data_;
  std::vector<float> row_offsets_;  // of kernels with a `centre`, where rows have one scale; else empty
};

/// One of several products that share their activations.
struct Product {
  const RunMatrix* matrix = nullptr;
  std::span<float> y;  ///< [tokens][rows]
  std::size_t first_token = 0, tokens = 0;
  Epilogue epilogue = {};
  const RunMatrix* up = nullptr;  ///< given: y = activation(matrix x + bias) · (up x + up_bias)
  std::span<float> up_y = {};     ///< room for up x, as large as y
  std::span<const float> up_bias = {};
  /// So many tokens at the start get, bit for bit, what each gets alone, and the others what they get among many: no
  /// result depends on how many there are. None: what is fastest for all of them.
  std::optional<std::size_t> singles = std::nullopt;
};

/// Several products with tokens of one batch, x of `batch` rows: activations are prepared once, and the work of all is
/// one parallel region, split by its cost. For the projections of an attention, and for experts that see some tokens
/// each. Throws ShapeError if matrices differ in columns, a gate and its `up` in shape, or spans do not fit.
void multiply_all(std::span<const Product> products, std::span<const float> x, std::size_t batch);

}  // namespace imago::kernels
