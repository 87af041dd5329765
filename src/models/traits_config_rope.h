#pragma once

// Rotary embeddings of config.json: `rope_theta` and `rope_scaling` of older files, `rope_parameters` of newer ones.

#include "models/config_fields.h"
#include "models/traits.h"

namespace imago::models {

/// Fills rope_base, rotary and rope_scaling. REQUIRES: head_values and context are there.
void read_config_rope(const ConfigFields& config, Traits& traits);

}  // namespace imago::models
