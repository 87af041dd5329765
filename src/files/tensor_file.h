#pragma once

// Files of named tensors in any format: safetensors, GGUF, Hugging Face folders. Conversion and language models read
// weights through this interface.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "imago/codec.h"
#include "imago/data.h"
#include "imago/format.h"
#include "imago/numeric.h"

namespace imago::files {

class HuggingFaceFolder;
class PublishedWeights;

/// One tensor of an open file, as stored. Valid as long as the TensorFile.
struct StoredTensor {
  std::string name;
  std::string type;  ///< as the form spells it: "BF16", "Q4_K"; of a packed type in safetensors: "int4"
  /// What the bytes are, in the canonical layout of imago (docs/formats/checkpoint.md, GGUF blocks). None: imago can
  /// name and copy them only. decode_tensor reads BOOL, F8_E8M0 and F4 of safetensors, which are none too (the nibbles
  /// of F4 are swapped), and published weights.
  std::optional<Format> format;
  std::optional<SafetensorsType> safetensors_type;  ///< of the bytes as stored, in safetensors
  std::optional<GgufTensorType> gguf_type;          ///< likewise in GGUF
  Shape shape;                                      ///< outermost first
  std::span<const std::byte> bytes;
  std::vector<float> scale_values;  ///< of a packed dtype: one, one per row, or one per group; else empty
  std::size_t scale_group = 0;      ///< weights per scale; 0 without scales
  std::vector<float> zero_points;   ///< of an unsigned packed dtype: one beside each scale; empty: all 0
  /// A quantized matrix of a Hugging Face folder in the layout of its publisher, of which `bytes` are the codes.
  std::shared_ptr<const PublishedWeights> published;
  std::uint64_t offset = 0;  ///< of the bytes in their file, for errors
  std::string_view file;     ///< the file they are in (a shard, a part of a split GGUF)

  Scales scales() const noexcept { return {scale_values, scale_group, zero_points}; }
  /// Bytes of the tensor and of what belongs to it.
  std::uint64_t stored_bytes() const noexcept;
  /// Rows as products see them: all extents but the last, and the last. A vector is one row.
  std::size_t rows() const noexcept {
    return shape.rank() < 2 ? 1 : shape.elements() / std::max<std::size_t>(shape.last(), 1);
  }
  std::size_t cols() const noexcept { return shape.last(); }
};

/// A tensor of either format as it stands in its file, which `path` names. The result views both.
StoredTensor stored_tensor(const SafetensorsTensor& tensor, std::string_view path);
StoredTensor stored_tensor(const GgufTensor& tensor);

/// Elements first … first + out.size() - 1 as float32, whatever their type. Runs on the pool. `first` and the count
/// must be whole blocks of a block format; of other types they are any. Throws FormatError for what is not an element
/// of the type, UnsupportedError, naming tensor and type, for types that cannot be decoded, ShapeError.
void decode_tensor(const StoredTensor& tensor, std::size_t first, std::span<float> out);

/// Whether decode_tensor can read it.
bool is_decodable(const StoredTensor& tensor) noexcept;

/// Throws FormatError, with tensor, count and the first place, if weights or scales are not finite, or codes
/// are invalid for their type. Reads every byte once, at the speed of memory.
void check_values(const StoredTensor& tensor);

/// An open file or folder. Reading is safe from many threads.
class TensorFile {
 public:
  /// By content. Throws IoError, FormatError; UnsupportedError for networks (checkpoint, architecture, entity).
  static TensorFile open(const std::string& path, bool eager = false);
  /// The tensors of `folder`, which is made. `owner` keeps alive what they view.
  static TensorFile make(HuggingFaceFolder folder, std::vector<StoredTensor> tensors,
                         std::shared_ptr<const void> owner);
  TensorFile(TensorFile&&) noexcept;
  TensorFile& operator=(TensorFile&&) noexcept;
  ~TensorFile();

  FileForm form() const noexcept;
  const std::string& path() const noexcept;
  /// In the order of the file; of a folder, shard after shard.
  std::span<const StoredTensor> tensors() const noexcept;
  const StoredTensor* find(std::string_view name) const noexcept;
  /// Throws FormatError if there is none of that name.
  const StoredTensor& require(std::string_view name) const;

  /// Null unless it is of that form.
  const GgufFile* gguf() const noexcept;
  const HuggingFaceFolder* folder() const noexcept;
  /// `__metadata__` of a safetensors file, without what states packed types; else empty.
  std::span<const std::pair<std::string, std::string>> metadata() const noexcept;

 private:
  struct State;
  explicit TensorFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Types that safetensors does not have (int4, q4_k) are kept there as U8 tensors of their packed bytes; GGUF files of
// networks keep dtypes with scales as I8 tensors. The entry `imago.packed` of the metadata states for each of them what
// it is, as a JSON object:
//   {"NAME": {"type": "int4", "shape": [64, 128], "granularity": "group", "group": 32}}
// Scales of dtypes are an F32 tensor `NAME.scales`. Where the entry says "zero_points": true, there is an F32 tensor
// `NAME.zeros` beside it. Readers that do not know this see bytes and scales by name.
inline constexpr std::string_view kPackedKey = "imago.packed";
inline constexpr std::string_view kScalesSuffix = ".scales";
inline constexpr std::string_view kZerosSuffix = ".zeros";

}  // namespace imago::files
