#pragma once

// How the tensors of a target file are made from those of a source: which rows of which tensors each consists of, how
// the rows are transformed, and what accompanies the weights. `RecipeReader` is the one interpreter; src/convert
// streams through it, everyone else calls `apply_recipe`.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "files/hugging_face.h"
#include "files/tensor_file.h"
#include "imago/codec.h"
#include "models/tensor_layout.h"
#include "models/traits.h"
#include "models/vocabulary.h"

namespace imago::models {

/// What happens to the rows of a tensor on the way to the target.
enum class RowTransform : std::uint8_t {
  none,
  to_adjacent,  ///< rows of each head from (j, j + half) order to (2j, 2j + 1): llama's q and k in GGUF
  to_halves,    ///< the inverse
  to_sections,  ///< from the q, k and v of one head of keys after those of another to all q, all k, all v
  to_groups,    ///< the inverse
  transpose,    ///< gpt2's projections
  add_one,      ///< gemma's norms in GGUF
  subtract_one,
  weave,         ///< TensorRecipe::woven
  to_rates,      ///< -e^x: decay rates in GGUF
  to_log_rates,  ///< the inverse
  scale,         ///< TensorRecipe::factors
};

/// Some rows and what they are multiplied by.
struct RowFactor {
  std::size_t rows = 0;
  float factor = 1;
};

/// Heads that share keys stand together in folders; in GGUF files of qwen3_5 the first ones of all groups come first,
/// then the second ones.
struct HeadOrder {
  std::size_t first = 0;  ///< row or column where the heads begin
  std::size_t groups = 0, group_heads = 0, values = 0;
  bool columns = false;
  bool to_tiled = false;

  /// Where a row or column of the target comes from.
  std::size_t source(std::size_t at) const noexcept;
};

/// Whether the rows of the result are those of the source in another order.
bool permutes_rows(RowTransform transform) noexcept;

/// What a tensor is for, as far as the choice of its type depends on it.
enum class TensorUse : std::uint8_t { embedding, output, attention_value, down, matrix, vector, router };

/// Rows of a source tensor, as StoredTensor counts them: a vector is one row.
struct SourceRows {
  const files::StoredTensor* tensor = nullptr;
  std::size_t first_row = 0, rows = 0;
  /// All weights of `tensor` in float32, if the source has them: a network keeps a master besides the codes.
  std::span<const float> master = {};
};

/// A matrix of the source and its place in a target that has it in another order: transposed, or between others.
struct WovenSlice {
  WeightSlice slice;
  RolePlace place;
};

/// One tensor of the target.
struct TensorRecipe {
  std::string name;
  Shape shape;
  std::vector<SourceRows> parts;                ///< concatenated; all of one type
  RowTransform transform = RowTransform::none;  ///< applied to the concatenation; `shape` is the result's
  std::size_t heads = 0;                        ///< where rows are permuted: they are that many heads or groups
  std::vector<std::size_t> group_rows = {};     ///< to_sections and to_groups: of each section in a group
  std::vector<WovenSlice> woven = {};           ///< weave: all there is of the target; `parts` are their tensors
  std::optional<HeadOrder> order = {};
  std::vector<RowFactor> factors = {};  ///< scale: of all rows, in their order
  TensorUse use = TensorUse::matrix;
  std::size_t block = 0;   ///< of the decoder, for mixes that depend on depth
  std::size_t blocks = 0;  ///< in the whole decoder; 0: not a decoder
  /// The name of a weight matrix in calibrations and plans. Empty: they use `name`.
  NamedMatrices matrices = {};
  /// The type it takes unless another one is requested: float32 for what runners of GGUF expect in float32 (vectors,
  /// routers, position embeddings). None: the type of its parts.
  std::optional<Format> preferred;
  /// Use `preferred` only if it holds every value exactly: converting back restores the main type of the model.
  bool preferred_if_exact = false;
  /// The scheme of a network's layer, of which the parts may be the master. A request for this very scheme keeps its
  /// codes and scales.
  std::optional<Scheme> scheme;
  std::size_t layer_bytes = 0;       ///< that its weights take in that scheme, scales included
  std::optional<WeightShape> array;  ///< of a network's layer
  bool has_entity_blocks = false;    ///< the target has the layer in the original's q4_0, entity_q4_0
  /// The type of its bytes in the target, whatever type is requested: float32 for a norm in an .entity file. None: the
  /// requested type.
  std::optional<Format> stored_as;

  /// As calibrations and plans know it.
  NamedMatrices known_as() const { return matrices.name.empty() ? NamedMatrices{name, 0, 1} : matrices; }
};

/// Reads elements of a target tensor from the source. Positions are elements of the target. Ranges must start and end
/// at multiples of unit() or at the end of the tensor; many threads may read at a time.
class RecipeReader {
 public:
  /// `recipe` and its sources must outlive the reader. `whole_rows`: unit() is a multiple of a row. Throws FormatError
  /// if the parts do not have as many elements as the target.
  explicit RecipeReader(const TensorRecipe& recipe, bool whole_rows = false);

  std::size_t elements() const noexcept { return elements_; }
  std::size_t unit() const noexcept { return unit_; }
  /// A transposed tensor must be decoded as a whole before ranges are read.
  bool needs_whole() const noexcept {
    return recipe_.transform == RowTransform::transpose || recipe_.transform == RowTransform::weave;
  }
  /// Decodes all of it, on the pool. Memory: the tensor in float32, until release_whole.
  void load_whole();
  void release_whole() noexcept { whole_ = {}; }

  /// Transformed, as float32. Throws like files::decode_tensor.
  void read(std::size_t first, std::span<float> out) const;
  /// The packed bytes of a range, untransformed but for the order of rows, if they are contiguous; else empty.
  std::span<const std::byte> view(std::size_t first, std::size_t count) const;
  /// Copies the packed bytes of a range. REQUIRES: `out` has their size.
  void copy(std::size_t first, std::size_t count, std::span<std::byte> out) const;
  /// Integers of a range as `wider` ones. Throws FormatError for a number that does not fit.
  void widen(std::size_t first, std::size_t count, DType wider, std::span<std::byte> out) const;
  /// The bytes that a range is read from, for checks and for hints about pages.
  std::vector<std::span<const std::byte>> sources(std::size_t first, std::size_t count) const;

  /// Check the sources of a range, or all of them. Throw FormatError like files::check_values.
  void check(std::size_t first, std::size_t count) const;
  void check_all() const;

 private:
  template <class Visit>
  void for_each_range(std::size_t first, std::size_t count, Visit&& visit) const;
  void decode(std::size_t first, std::span<float> out) const;
  bool permutes() const noexcept;
  std::size_t source_row(std::size_t row) const noexcept;

  const TensorRecipe& recipe_;
  std::size_t elements_ = 0, rows_ = 0, cols_ = 0, unit_ = 1;
  std::vector<float> whole_;
};

/// The whole result as float32. Throws like RecipeReader, and ShapeError if `out` has another size.
void apply_recipe(const TensorRecipe& recipe, std::span<float> out);

/// Bytes of the source that a tensor is made from, scales included.
std::uint64_t source_bytes(const TensorRecipe& recipe);

/// A tensor that is not in any file; parts of a recipe refer to it like to any other.
struct MadeTensor {
  std::vector<float> values;
  files::StoredTensor tensor;  ///< views `values`
};

/// A whole model for one target format.
struct ModelRecipe {
  FileForm target = FileForm::gguf;
  bool is_network = false;  ///< the tensors are the weights of layers, by path
  std::vector<TensorRecipe> tensors;
  std::vector<std::shared_ptr<const MadeTensor>> made;  ///< sources of parts besides the tensors of the file
  std::vector<GgufMetadata> gguf_metadata;              ///< for GGUF, without general.file_type
  std::vector<files::SideFile> side_files;              ///< for a folder
  std::vector<std::pair<std::string, std::string>> safetensors_metadata;
  std::vector<std::string> notes;  ///< what is lost or left out, one sentence each
};

/// The recipe that converts `file` to `target`: gguf, safetensors or huggingface. A decoder converted between Hugging
/// Face and GGUF takes the names, shapes, row order, tokenizer and settings of the target; the same format keeps
/// everything; anything else is a bag of tensors that keeps names and shapes. Throws UnsupportedError for an
/// architecture that the target cannot name, and like read_traits.
ModelRecipe make_recipe(const files::TensorFile& file, FileForm target);

}  // namespace imago::models
