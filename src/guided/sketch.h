#pragma once

// A few sampled weights that tell one model from another, whatever its file format and types.

#include <span>
#include <string>
#include <vector>

#include "files/tensor_file.h"
#include "guided/calibration.h"
#include "imago/network.h"

namespace imago::guided {

/// Weights from fixed places of a decoder, from matrices whose row order is the same in every file format. Empty for
/// bags of tensors. Throws like read_traits and DecoderTensors.
std::vector<float> sketch_model(const files::TensorFile& file);
/// The same for the layers of a network.
std::vector<float> sketch_network(const Network& network);

/// Throws UsageError, naming the calibration and `model`, if both sketches exist and do not match.
void check_same_model(const Calibration& calibration, std::span<const float> sketch, const std::string& model);

}  // namespace imago::guided
