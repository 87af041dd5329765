#pragma once

#include "backend/program.h"
#include "models/traits.h"

namespace imago::models {

/// The steps of a decoder with these traits: the only place that says how a block is built.
backend::Program make_program(const Traits& traits);

}  // namespace imago::models
