#pragma once

// Masters as their dtype computes with them, for training through the rounding: Wq in float32, derived anew at each
// step on the device. The formulas are those of imago/numeric.h.

#include <cstddef>

#include "device/cuda/stream.h"
#include "imago/format.h"

namespace imago::cuda {

struct Rounding {
  const float* master;
  float* rounded;
  std::size_t count;
  DType dtype;
  std::size_t scale_group;  ///< weights that share a scale; not read for types without
  float explicit_scale;     ///< 0: derived (max|w| / Q; binary: mean|w|)
  double* partials;         ///< rounding_partials
};
/// Doubles of scratch.
std::size_t rounding_partials(std::size_t count, std::size_t scale_group);
void round_weights(const Rounding& args, Stream& stream);

}  // namespace imago::cuda
