#pragma once

// What each type of each matrix would cost: measured for a few types, estimated for the others.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "imago/format.h"
#include "imago/lm.h"
#include "precision/decoder_matrices.h"
#include "precision/matrix_trials.h"
#include "precision/output_probe.h"

namespace imago::precision {

/// One matrix in one type, the others as they are.
struct TypeCost {
  Format type = DType::float32;
  std::uint64_t bytes = 0;
  double output_error = 0;  ///< as MatrixTrial has it
  double divergence = 0;    ///< mean KL it adds to the output
  bool measured = false;    ///< else estimated from those that are
};

/// Fills in what was not measured. The divergence follows the output error by a power that the measured types say, near
/// 1 where errors are small; outside of them it goes on in proportion below and with that power above. REQUIRES: one is
/// measured at least, and errors are not negative.
void estimate_unmeasured(std::span<TypeCost> costs);

/// The types whose costs are worth measuring: the one nearest to what is asked for, and about a bit above and below it,
/// where the choice will be made. There may be fewer than three. REQUIRES: types are not empty.
std::vector<Format> types_to_measure(std::span<const Format> types, double bits);

/// The cost of each fitting type for each matrix. `progress` counts matrices. The model is as before afterwards.
std::vector<std::vector<TypeCost>> measure_costs(LanguageModel& model, const DecoderMatrices& matrices,
                                                 const MatrixTrials& trials, const OutputProbe& probe,
                                                 std::span<const Format> types, std::span<const Format> measured,
                                                 const std::function<void(std::size_t, std::size_t)>& progress);

}  // namespace imago::precision
