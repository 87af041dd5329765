#pragma once

// How a model of one form is made from another: for each tensor of the target, which rows of which tensors it consists
// of and what is done to them; and the words beside the weights. Nothing is read or written here: src/convert does
// that, tensor by tensor.

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
#include "models/matrix_names.h"
#include "models/traits.h"
#include "models/vocabulary.h"

namespace imago::models {

/// What is done to the rows of a tensor on the way.
enum class Rework : std::uint8_t {
  none,
  to_adjacent,  ///< rows of each head from (j, j + half) order to (2j, 2j + 1): llama's q and k on the way to GGUF
  to_halves,    ///< and back
  transpose,    ///< gpt2's projections
  add_one,      ///< gemma's norms on the way to GGUF
  subtract_one,
};

/// What a tensor is for, as far as the choice of its type asks.
enum class TensorUse : std::uint8_t { embedding, output, attention_value, down, matrix, vector, router };

/// Rows of a source tensor, as StoredTensor counts them: a vector is one row.
struct SourceRows {
  const files::StoredTensor* tensor = nullptr;
  std::size_t first_row = 0, rows = 0;
};

/// One tensor of the target.
struct TensorRecipe {
  std::string name;
  Shape shape;
  std::vector<SourceRows> parts;  ///< one behind the other; all of one type
  Rework rework = Rework::none;   ///< of all parts together; `shape` is that of the outcome
  std::size_t heads = 0;          ///< of to_adjacent and to_halves: the rows are that many heads
  TensorUse use = TensorUse::matrix;
  std::size_t block = 0;   ///< of the decoder, for mixes that go by depth
  std::size_t blocks = 0;  ///< of the decoder in all; 0: no decoder
  /// Of a decoder's weights: what calibrations and plans know them as. The name is empty for everything else.
  NamedMatrices matrices;
  /// The type it takes where no other is asked for: float32 for what GGUF's runners want in float32 (vectors, routers,
  /// position embeddings). None: that of its parts.
  std::optional<Format> preferred;
  /// `preferred` only if it holds every value exactly, else that of the parts: on the way back such tensors take the
  /// type of the rest of the model again.
  bool preferred_if_exact = false;
};

/// The row that row `row` of the outcome was before, of `rows` rows in all: another one only where rows of heads are
/// put in another order.
std::size_t source_row(const TensorRecipe& recipe, std::size_t row, std::size_t rows) noexcept;

/// The whole outcome as float32. Throws as files::decode_tensor, and ShapeError for a span of another size.
void carry_out(const TensorRecipe& recipe, std::span<float> out);

/// A tensor that no file holds; parts of a recipe refer to it as to any other.
struct MadeTensor {
  std::vector<float> values;
  files::StoredTensor tensor;  ///< views `values`
};

/// A whole model for one target form.
struct ModelRecipe {
  FileForm target = FileForm::gguf;
  std::vector<TensorRecipe> tensors;
  std::vector<std::shared_ptr<const MadeTensor>> made;         ///< what parts refer to beside the source's own
  std::vector<GgufMetadata> gguf_metadata;                     ///< for GGUF, without general.file_type
  std::vector<files::HuggingFaceWriter::SideFile> side_files;  ///< for a folder
  std::vector<std::pair<std::string, std::string>> safetensors_metadata;
  std::vector<std::string> notes;  ///< what is lost or left out, a sentence each
};

/// The recipe that brings `file` into `target`: gguf, safetensors or huggingface. A decoder between Hugging Face and
/// GGUF gets names, shapes, order of rows, tokenizer and settings of the other side; the same form to itself keeps
/// everything; what is no known model is a bag of tensors and keeps names and shapes. Throws UnsupportedError for an
/// architecture that the target has no name for, and as read_traits does.
ModelRecipe make_recipe(const files::TensorFile& file, FileForm target);

}  // namespace imago::models
