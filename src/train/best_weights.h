#pragma once

// The weights of the best epoch, for the end of a run that stops early.

#include <span>
#include <vector>

#include "imago/train.h"

namespace imago {

/// All weights of the network, inner layers included, and the scales that training moves.
std::vector<Optimizer::Moment> copy_weights(const Network& network);

/// Restores them. Returns false, and changes nothing, if a layer has changed since, which only rules of Metacognition
/// can cause.
bool restore_weights(Network& network, std::span<const Optimizer::Moment> weights);

/// True if every weight is a finite number.
bool has_finite_weights(const Network& network);

}  // namespace imago
