#pragma once

// Scales that are trained like weights (LSQ: Esser et al., Learned Step Size Quantization, 2020), but by their
// logarithm: a step then changes a scale by a share of itself, which suits Adam's steps of fixed length, and a scale
// cannot become negative.

#include <span>

#include "imago/layer.h"
#include "imago/train.h"

namespace imago {

/// True for layers with one scale for codes that are integers of at most 8 bits; wider ones have nothing to gain.
bool has_learnable_scale(const LayerConfig& config) noexcept;

/// Whether the scale of a layer with this configuration is trained.
bool learns_scale(const OptimizerOptions& options, const LayerConfig& config) noexcept;

/// Makes the scale that `dtype` starts from explicit: the one with the least squared error, unless one was given.
/// Returns false if there was one.
bool start_scale(WeightStore& store, DType dtype);

/// d loss / d ln(scale), where gradient = d loss / d Wq: Wq = scale · code, and the code itself moves with the scale by
/// rounding only, which passes slopes straight through, except where it saturates. Times LSQ's 1 / sqrt(count · Q),
/// which balances the one scale against the many weights. The same for every number of threads.
float log_scale_slope(const WeightStore& store, DType dtype, std::span<const float> gradient);

/// The scale times e^step, with the same zero point; one that would be zero or infinite stays.
void move_scale(WeightStore& store, DType dtype, float step);

}  // namespace imago
