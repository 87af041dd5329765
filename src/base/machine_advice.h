#pragma once

// Why a machine computes more slowly than it could.

#include <string>
#include <vector>

#include "base/system.h"

namespace imago {

/// One sentence for each thing that holds this process back, with what can be done about it. `allowed_cores`: those
/// that its affinity leaves it.
std::vector<std::string> machine_advice(const Machine& machine, int allowed_cores, int threads);

}  // namespace imago
