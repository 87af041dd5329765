#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "imago/format.h"

namespace imago {

/// Which weights share a scale of a dtype. Block formats have their own scales and are always `tensor`.
enum class Granularity : std::uint8_t {
  tensor,  ///< one scale for all; the only granularity in checkpoints of the original engine
  row,     ///< one per row
  group,   ///< one per 32, 64 or 128 weights of a row; the row must be a multiple of it
};

/// How a derived scale is found. Integers of 32 and 64 bits always use absmax: their codes stay within ±2^20, which
/// float32 arithmetic represents exactly, and other calibrators would gain nothing.
enum class Calibrator : std::uint8_t {
  absmax,      ///< the largest magnitude maps to the largest code
  percentile,  ///< a high percentile of the magnitudes does; the few above saturate
  mse,         ///< least squared error; matters most for int2, ternary and binary
  absmean,     ///< mean|w|, ternary only (BitNet b1.58)
};

/// How a weight matrix is packed: its format, which weights share a scale, and how scales are found.
struct Scheme {
  Format format = DType::float32;
  Granularity granularity = Granularity::tensor;
  int group = 0;  ///< 32, 64 or 128 with Granularity::group, else 0
  Calibrator calibrator = Calibrator::absmax;
  double percentile = 0.999;  ///< read by Calibrator::percentile only
  /// Unsigned integers: scales come with zero points where weights are negative. false: negative weights become 0, as
  /// in the original engine.
  bool zero_points = true;

  Scheme() = default;
  Scheme(Format f) : format(f) {}       // NOLINT: a bare format is a scheme with the defaults
  Scheme(DType d) : format(d) {}        // NOLINT: same
  Scheme(BlockFormat b) : format(b) {}  // NOLINT: same
  friend auto operator<=>(const Scheme&, const Scheme&) = default;
};

struct MatrixExtents {
  std::size_t rows = 0, cols = 0;
};

/// What a weight array consists of: one matrix of rows × cols; or, with a single row, the same parts `repeats` times,
/// each time some matrices and then `vectors` weights: norms, or biases, as many as the rows of each matrix in turn.
/// Dtypes do not tell them apart. Block formats pack the rows of the matrices; the vectors follow all blocks in
/// float32.
struct WeightShape {
  std::size_t rows = 0, cols = 0;
  std::array<MatrixExtents, 3> matrices = {};  ///< in each repeat; those that are not there have no rows
  std::size_t vectors = 0;                     ///< likewise
  std::size_t repeats = 1;
  bool decoded = false;  ///< its layer computes with float32 weights, whatever they are packed in

  std::size_t count() const noexcept { return rows * cols; }
  std::size_t vector_count() const noexcept { return vectors * repeats; }
  std::size_t matrix_count() const noexcept { return count() - vector_count(); }
  bool is_one_matrix() const noexcept { return matrices[0].rows == 0; }
  /// Rows of the matrices are multiples of it, and blocks must divide it.
  std::size_t row_length() const noexcept {
    std::size_t length = 0;
    for (const MatrixExtents& matrix : matrices) length = std::gcd(length, matrix.cols);
    return is_one_matrix() ? cols : length;
  }
};

/// How weights become codes where calibration says what they multiply.
enum class Rounding : std::uint8_t {
  nearest,      ///< each by itself; columns that matter weigh more when scales are chosen
  compensated,  ///< column by column, later columns make up for the error of earlier ones (GPTQ)
  scaled,       ///< columns that matter are made larger first, what feeds them smaller (AWQ), then `nearest`
};

// Bulk conversion between float32 and packed weights. Runs on the best kernels of the machine and on all threads of
// the pool; the bytes are the same on every machine and for every number of threads.

/// Scales of a packed dtype: weight i has `values[i / group]`. Formats without scales beside the weights ignore it.
struct Scales {
  std::span<const float> values;
  std::size_t group = 0;
  std::span<const float> zero_points = {};  ///< of unsigned integers: one beside each scale; empty: all 0
};

/// Packs `weights` in any format. Dtypes put the first weight in the highest bits of a byte; unused bits of the last
/// byte are 0. Block formats pack whole blocks; NaN weights are stored as 0 and values beyond the range of the format
/// saturate: no block ever holds a scale that is not finite. `importance`, when given, has one factor >= 0 per column
/// and makes the encoder of a block format minimise the weighted error; its length is the row length and must divide
/// the number of weights. Throws ShapeError if `packed` is not packed_bytes(format, weights.size()) long, there are too
/// few scales or zero points or the importance does not fit; UsageError for a scale or an importance that is negative,
/// infinite or NaN, and for a zero point that is not an integer from 0 to the largest code. A scale of 0 acts as 1.
void encode(Format format, std::span<const float> weights, Scales scales, std::span<std::byte> packed,
            std::span<const float> importance = {});

/// Unpacks into float32. Throws as `encode`.
void decode(Format format, std::span<const std::byte> packed, Scales scales, std::span<float> weights);

/// The same for block formats, which need no scales.
void encode(BlockFormat format, std::span<const float> weights, std::span<std::byte> packed,
            std::span<const float> importance = {});
void decode(BlockFormat format, std::span<const std::byte> packed, std::span<float> weights);

// Rows of block-quantized weights, in plain C++: the definition that the fast kernels are tested against. The functions
// above give the same bytes on all cores.

/// 32 activations quantized to int8: value[i] = scale · q[i]. `sum` is the sum of q, which pays for the offsets of
/// unsigned weight codes and for `min` terms.
struct Int8Block {
  static constexpr int kValues = 32;
  float scale;
  std::int32_t sum;
  std::int8_t q[kValues];
};

/// Quantizes activations: the scale of a block is the best of a few near max|x| / 127, halves are rounded away from
/// zero; a short last block is padded with zeros. Values that are not finite give a block of zeros.
std::vector<Int8Block> quantize_activations(std::span<const float> x);

/// Encodes one row. Sizes and importance as in `encode` above.
void quantize_row(BlockFormat format, std::span<const float> row, std::span<std::byte> blocks,
                  std::span<const float> importance = {});

/// Decodes one row. Throws ShapeError if sizes do not fit.
void dequantize_row(BlockFormat format, std::span<const std::byte> blocks, std::span<float> row);

/// Dot product of a packed row with float32 activations, products summed in double.
/// Throws ShapeError if `x` is shorter or longer than the row.
float dot_row(BlockFormat format, std::span<const std::byte> blocks, std::span<const float> x);

/// Dot product of a packed row with int8 activations: exact integer sums per group of equal scale, then float64.
float dot_row(BlockFormat format, std::span<const std::byte> blocks, std::span<const Int8Block> x);

}  // namespace imago
