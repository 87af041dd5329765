#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "math/backend.h"

namespace imago::math {

enum class ConvolutionKind : std::uint8_t { forward, backward_data, backward_weights };

/// What oneDNN is asked for: all that its code depends on, but the addresses.
struct ConvolutionRequest {
  ConvolutionKind kind;
  ConvolutionExtents extents;
  std::size_t x_sample, w_filter, y_sample;
};

/// x, w and y; which of them is written depends on the kind.
using ConvolutionOperands = std::array<float*, 3>;

/// Computes on the calling thread. False, and nothing done, where oneDNN has no code for the request that is worth
/// having. What it makes for one request is kept for the next of its kind.
bool onednn_convolve(const ConvolutionRequest& request, const ConvolutionOperands& operands);

}  // namespace imago::math
