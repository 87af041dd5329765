#pragma once

// A few weights that tell one model from another, in whatever form and type it comes.

#include <span>
#include <string>
#include <vector>

#include "files/tensor_file.h"
#include "guided/calibration.h"
#include "imago/network.h"

namespace imago::guided {

/// Weights from fixed places of a decoder: of matrices whose rows have the same order in every form. Empty for bags
/// of tensors. Throws as read_traits and DecoderTensors.
std::vector<float> sketch_model(const files::TensorFile& file);
/// Likewise of the layers of a network.
std::vector<float> sketch_network(const Network& network);

/// Throws UsageError, naming the calibration and `model`, if both sketches are known and have nothing in common.
void check_same_model(const Calibration& calibration, std::span<const float> sketch, const std::string& model);

}  // namespace imago::guided
