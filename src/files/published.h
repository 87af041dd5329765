#pragma once

// Quantized weights as their publishers lay them out in Hugging Face folders. A matrix NAME.weight of [rows, cols] is
// spread over several tensors, which these conventions name and shape:
//
// | made by | codes | scales | zero points |
// |---|---|---|---|
// | fp8 (DeepSeek, Qwen, FBGEMM, ModelOpt), compressed-tensors | `weight` F8_E4M3 [rows, cols] | `weight_scale_inv` or
// |   | | `weight_scale`: 1, [rows], [rows, 1], or [rows / 128, cols / 128], rounded up | |
// | compressed-tensors `int-quantized` | `weight` I8 [rows, cols] | `weight_scale` 1, [rows], [rows, 1] | |
// | compressed-tensors `pack-quantized`, 4 and 8 bits | `weight_packed` I32 [rows, cols / 8], low bits first |
// |   | `weight_scale` [rows, groups] | `weight_zero_point` I32 [rows / 8, groups] or I8 [rows, groups] |
// | compressed-tensors `mxfp4-pack-quantized` | `weight_packed` U8 [rows, cols / 2] | `weight_scale` U8 [rows, cols /
// 32] | | | compressed-tensors `nvfp4-pack-quantized` | `weight_packed` U8 [rows, cols / 2] | `weight_scale` F8_E4M3
// [rows, cols / 16], |   | | divided by `weight_global_scale` | | | ModelOpt NVFP4 | `weight` U8 [rows, cols / 2] |
// `weight_scale` likewise, times `weight_scale_2` | | | GPTQ, 4 and 8 bits | `qweight` I32 [cols / 8, rows] | `scales`
// [groups, rows] | `qzeros` I32 [groups, rows / 8], less one |   | | `g_idx` I32 [cols]: the group of each column | |
// | AWQ | `qweight` I32 [cols, rows / 8], in the order 0 2 4 6 1 3 5 7 | `scales` [groups, rows] | `qzeros`, likewise |

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/hugging_face.h"
#include "files/json.h"
#include "files/tensor_file.h"

namespace imago::files {

/// Rows of a published matrix in a type of ours that has the very same values.
struct OwnWeights {
  std::vector<float> scales;  ///< one per row or group; none of block formats
  std::size_t scale_group = 0;
  std::vector<float> zero_points;
};

/// A published matrix. Reading is safe from many threads.
class PublishedWeights {
 public:
  enum class Layout : std::uint8_t {
    bytes,         ///< a code per byte
    row_words,     ///< words of codes along rows
    column_words,  ///< words of codes along columns: GPTQ
    awq_words,     ///< words of codes of neighbouring rows, in AWQ's order
    pairs,         ///< two FP4 codes per byte, the first in the low half
  };
  enum class Codes : std::uint8_t { fp8, fp4, integer };

  /// What the constructor checks against each other.
  struct Parts {
    std::string name;  ///< name of the matrix
    Layout layout = Layout::bytes;
    Codes codes = Codes::integer;
    int bits = 8;            ///< bits of an integer code
    bool is_signed = false;  ///< integers in two's complement
    std::size_t rows = 0, cols = 0;
    StoredTensor weight, scale;
    std::optional<StoredTensor> zeros = {};          ///< zero points
    std::optional<StoredTensor> groups = {};         ///< the group of each column
    std::optional<StoredTensor> multiplier = {};     ///< one number for the whole matrix
    std::optional<StoredTensor> divisor = {};        ///< likewise
    std::size_t block_rows = 128, block_cols = 128;  ///< the block that shares a scale
    int zero_bias = 0;                               ///< added to zero points
  };
  /// Throws FormatError, naming the tensor, if a part has another type or shape than the others ask for.
  explicit PublishedWeights(Parts parts);

  std::size_t rows() const noexcept { return parts_.rows; }
  std::size_t cols() const noexcept { return parts_.cols; }
  /// Size of scales and all else beside the codes.
  std::uint64_t bytes_beside() const noexcept;

  /// The type of ours in which all weights have the same values. None: scales of groups that it does not have. Throws
  /// like check.
  std::optional<Format> own_type() const;
  /// Rows [first, first + count) in that type. REQUIRES: packed_bytes of them at `packed`, and that they begin at a
  /// whole byte.
  OwnWeights take(std::size_t first, std::size_t count, std::span<std::byte> packed) const;
  /// Elements from `first` on as float32, on the pool.
  void decode(std::size_t first, std::span<float> out) const;
  /// Throws FormatError if a scale or a code is not finite, or a group does not exist.
  void check() const;

 private:
  /// Values of all rows, decoded when they are first asked for.
  struct Scales {
    std::vector<float> scales;                   // [scale rows][groups]
    std::vector<std::int16_t> zeros;             // likewise; empty: all `zero`
    std::vector<std::uint32_t> group_of_column;  // empty: column / group
    int zero = 0;
    std::optional<Format> own;
  };
  const Scales& scales() const;
  Scales read_scales() const;
  std::vector<std::int16_t> read_zeros(std::size_t count) const;
  std::vector<std::uint32_t> read_groups() const;
  std::optional<Format> find_own(const Scales& all) const;
  void check_codes_shape() const;
  void place_scales();
  bool is_gptq_like() const noexcept {
    return parts_.layout == Layout::column_words || parts_.layout == Layout::awq_words;
  }
  /// Where the scale of a row and group is.
  std::size_t scale_at(std::size_t row, std::size_t group) const noexcept {
    return row / rows_per_scale_ * groups_ + group;
  }
  unsigned code(std::size_t row, std::size_t col) const noexcept;
  float value(const Scales& all, unsigned code, std::size_t at) const noexcept;
  [[noreturn]] void fail(const StoredTensor& part, const std::string& problem) const;

  Parts parts_;
  std::size_t row_units_ = 0;                                // bytes or words of a stored row
  std::size_t rows_per_scale_ = 1, group_ = 0, groups_ = 1;  // columns of a group, and groups of a row
  mutable std::once_flag once_;
  mutable Scales scales_;
};

/// The problem with what a config has as `quantization_config`; empty if its weights can be read.
std::string quantization_problem(const JsonValue& quantization);

/// The text of a config without that field, for weights that are no longer published ones.
std::string without_quantization(const JsonFile& config);

/// `tensors` of a folder as they are meant: published matrices under their names, what belongs to them hidden. Throws
/// FormatError.
std::vector<StoredTensor> find_published(std::vector<StoredTensor> tensors, const JsonValue& config);

}  // namespace imago::files
