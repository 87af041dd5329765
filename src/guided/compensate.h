#pragma once

// Error-compensating rounding: columns in order, each from where the errors of those before have moved it (feedback.h).
// What scales a group of columns gets is decided when its turn comes, from the weights as they are then. Afterwards
// each code is looked at again with all others fixed, which can only lower the error.

#include <cstddef>
#include <span>

#include "guided/encode_matrix.h"
#include "guided/feedback.h"
#include "imago/weights.h"

namespace imago::guided {

/// Whether a type has codes that can be chosen one by one: all block formats but tq1_0, and dtypes with scales of at
/// most 8 bits.
bool can_compensate(Format format);

/// REQUIRES: a checked scheme that can be compensated; weights are [rows][feedback.columns()], and
/// the feedback is that of the inputs. Runs on the pool; the
/// bytes do not depend on the number of threads.
EncodedMatrix encode_compensated(std::span<const float> weights, std::size_t rows, const Scheme& scheme,
                                 const InputStatistics& inputs, const Feedback& feedback);

}  // namespace imago::guided
