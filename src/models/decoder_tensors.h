#pragma once

// Where a decoder's weights are: roles instead of names, so that Hugging Face and GGUF look the same.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/program.h"
#include "files/tensor_file.h"
#include "models/traits.h"

namespace imago::models {

using backend::Role;

/// A matrix or vector inside a stored tensor. Fused projections and stacked experts are rows of a larger one. A vector
/// of n values has n rows and one column, since biases of fused projections are parts of a vector too.
struct WeightSlice {
  const files::StoredTensor* tensor = nullptr;
  std::size_t first_row = 0, rows = 0, cols = 0;
  /// The tensor holds the transpose, [cols][…]: gpt2 in Hugging Face folders. Row r of the slice is its column
  /// first_row + r (see `group_rows`), from row first_col on.
  bool transposed = false;
  std::size_t first_col = 0;
  /// Where `group_rows` is not 0, the tensor holds groups of that many rows, each of which has `rows_per_group` rows of
  /// the slice from `first_row` on: q, k and v of gpt_neox, gate and up
  /// of gpt_oss. The slice then begins with its row number `skipped`.
  std::size_t group_rows = 0, rows_per_group = 0, skipped = 0;

  /// Whether its rows follow each other in the tensor.
  bool contiguous() const noexcept { return !transposed && group_rows == 0; }
  /// The row of the tensor, or where that is transposed its column, that one of its rows is.
  std::size_t stored_row(std::size_t row) const noexcept;
  /// Some of its rows.
  WeightSlice part(std::size_t first, std::size_t count) const noexcept;
};

/// All roles of a model, found and checked once: shapes against the traits, nothing missing (threats.md 54).
class DecoderTensors {
 public:
  /// Throws FormatError naming tensor and shapes. Tensors that no role asks for are listed in unused().
  DecoderTensors(const files::TensorFile& file, const Traits& traits);

  /// None where the architecture has no such weight or the file leaves an optional one out.
  std::optional<WeightSlice> find(Role role, std::size_t block = 0, std::size_t expert = 0) const;
  /// Throws FormatError if there is none.
  WeightSlice require(Role role, std::size_t block = 0, std::size_t expert = 0) const;
  /// Names of tensors without a role, in the order of the file. Buffers that old folders carry along (rotary
  /// frequencies, causal masks) are not weights and not among them.
  std::span<const std::string> unused() const noexcept { return unused_; }
  /// Tensors of encoders of images or sounds, which stand beside the language model in one folder. Not in unused().
  std::span<const files::StoredTensor* const> encoders() const noexcept { return encoders_; }

 private:
  struct Entry {
    backend::WeightKey key;
    WeightSlice slice;
  };
  std::vector<Entry> entries_;  // sorted by key
  std::vector<std::string> unused_;
  std::vector<const files::StoredTensor*> encoders_;
  std::string path_;
};

/// What a user should know about a model with encoders: that they are left out. Empty if there are none.
std::string encoder_note(const DecoderTensors& tensors);

/// A slice as float32, [rows][cols]. Throws as files::decode_tensor.
void decode_slice(const WeightSlice& slice, std::span<float> out);

}  // namespace imago::models
