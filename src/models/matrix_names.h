#pragma once

// One name for every weight matrix of a decoder, whatever form it came in: calibrations and plans go by it. It is the
// name of the tensor that holds the matrix in a GGUF file as llama.cpp writes it.

#include <cstddef>
#include <map>
#include <string>

#include "models/decoder_tensors.h"
#include "models/tensor_layout.h"
#include "models/traits.h"

namespace imago::models {

using MatrixKey = backend::WeightKey;

/// "blk.0.attn_q.weight"; of fused projections that of the fused tensor, of experts that of all of them together.
std::string matrix_name(const Traits& traits, Role role, std::size_t block);

/// What a tensor of a file is under these names.
struct NamedMatrices {
  std::string name;
  std::size_t first_expert = 0, experts = 1;
};
/// Of one tensor of a layout; the name is empty if it holds no matrix.
NamedMatrices matrices_of(const Traits& traits, const LayoutTensor& tensor, std::size_t block);
/// All tensors of a decoder that hold matrices, by their names in files of this naming. REQUIRES: the traits are those
/// of a file whose tensors were found (DecoderTensors), so that their numbers are real.
std::map<std::string, NamedMatrices> matrix_names(const Traits& traits, const Naming& naming);

}  // namespace imago::models
