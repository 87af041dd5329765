#pragma once

// Which tensors a decoder consists of, by name, in either format. Reading looks them up; conversion writes them.
// Tensors are listed block by block, so that a hostile number of blocks or experts never makes a long list.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "files/tensor_file.h"
#include "models/decoder_tensors.h"
#include "models/traits.h"

namespace imago::models {

/// One tensor: rows of `roles` one after the other, and that for each of `experts` experts from `first_expert`.
struct LayoutTensor {
  std::string name;
  Shape shape;
  std::vector<Role> roles;
  std::size_t first_expert = 0, experts = 1;
  bool transposed = false;  ///< it holds [columns][rows], that for each expert
  std::size_t groups = 1;  ///< groups of rows, each with rows of every role: one for each head of keys, or for each row
  bool key_values = false;  ///< for each head the transpose of key_up, then value_up
  bool optional = false;
};

/// How names are made. The flags are those of the usual file; others are read all the same.
struct Naming {
  bool gguf = false;
  bool fused_qkv = false;         ///< q, k and v are one tensor
  bool fused_gate_up = false;     ///< gate and up are one tensor
  bool fused_experts = false;     ///< gate and up of experts are one tensor: GGUF
  bool stacked_experts = false;   ///< all experts are one tensor: GGUF; with gate and up fused: some folders
  bool fused_key_values = false;  ///< key_up and value_up are one tensor
  bool mxfp4_experts = false;     ///< experts of gpt_oss as they are published; else their transposes
};

/// As transformers or llama.cpp write a model of these traits.
Naming usual_naming(const Traits& traits, bool gguf);
/// As the file at hand has it.
Naming naming_of(const files::TensorFile& file, const Traits& traits);

/// Tensors before and after the blocks.
std::vector<LayoutTensor> outer_layout(const Traits& traits, const Naming& naming);
std::vector<LayoutTensor> block_layout(const Traits& traits, const Naming& naming, std::size_t block);
/// Calls visit(tensor, block) for all of them; those outside the blocks have block 0.
template <class Visit>
void for_each_tensor(const Traits& traits, const Naming& naming, Visit&& visit) {
  for (const LayoutTensor& tensor : outer_layout(traits, naming)) visit(tensor, std::size_t{0});
  for (std::size_t block = 0; block < traits.blocks; ++block) {
    for (const LayoutTensor& tensor : block_layout(traits, naming, block)) visit(tensor, block);
  }
}

/// Rows and columns of a role; a vector has one column.
struct RoleExtent {
  std::size_t rows = 0, cols = 0;
  bool vector = false;
};
/// Whether it is the weight of a norm, to which some files do not add 1.
bool is_norm(Role role) noexcept;
RoleExtent extent_of(const Traits& traits, Role role, std::size_t block = 0) noexcept;

/// The tensor of that name, or of the name without "model." and the like: folders of a bare model lack it. Where the
/// language model is a part of the folder, its names have "language_model." before them or after "model.".
const files::StoredTensor* find_weight(const files::TensorFile& file, std::string_view name);

using MatrixKey = backend::WeightKey;

/// "blk.0.attn_q.weight"; of fused projections that of the fused tensor, of experts that of all of them together.
std::string matrix_name(const Traits& traits, Role role, std::size_t block);

/// What a tensor of a file is under these names.
struct NamedMatrices {
  std::string name;
  std::size_t first_expert = 0, experts = 1;
};
/// Where the weights of a role of a LayoutTensor are: weight (row, col) of the i-th role of the e-th expert is element
/// first + row · row_apart + col · col_apart, in tensors of one group, or of groups with one row of each role.
struct RolePlace {
  std::size_t first = 0, row_apart = 0, col_apart = 1;
  std::size_t group_rows = 0;
};
RolePlace place_of(const Traits& traits, const LayoutTensor& tensor, std::size_t block, std::size_t expert,
                   std::size_t role);

/// What one tensor of a layout holds; the name is empty if it is not a matrix.
NamedMatrices matrices_of(const Traits& traits, const LayoutTensor& tensor, std::size_t block);
}  // namespace imago::models
