#pragma once

// The cost of each type for each matrix: measured for a few types, estimated for the others.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "imago/format.h"
#include "imago/lm.h"
#include "precision/allocation.h"
#include "precision/decoder_matrices.h"
#include "precision/matrix_trials.h"
#include "precision/output_probe.h"

namespace imago::precision {

/// Estimates what was not measured. Divergence is modelled as a power of the output error, fitted to the measured types
/// and near 1 for small errors; proportional below the measured range, with the fitted power above it. REQUIRES: at
/// least one cost is measured, and errors are not negative.
void estimate_unmeasured(std::span<TypeOption> options);

/// The types worth measuring: the one nearest to the requested bits and those about one bit above and below, since most
/// choices fall there. There may be fewer than three. REQUIRES: types are not empty.
std::vector<Format> types_to_measure(std::span<const Format> types, double bits);

/// The cost of each fitting type for each matrix. `progress` counts matrices. Restores the model.
std::vector<std::vector<TypeOption>> measure_costs(LanguageModel& model, const DecoderMatrices& matrices,
                                                   const MatrixTrials& trials, const OutputProbe& probe,
                                                   std::span<const Format> types, std::span<const Format> measured,
                                                   const std::function<void(std::size_t, std::size_t)>& progress);

}  // namespace imago::precision
