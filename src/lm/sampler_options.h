#pragma once

#include "imago/lm.h"

namespace imago::lm {

/// Throws UsageError that names the option, the value found and those allowed.
void check_sampler_options(const SamplerOptions& options);

}  // namespace imago::lm
