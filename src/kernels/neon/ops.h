#pragma once

#include "kernels/ops_args.h"

namespace imago::kernels::neon {

#include "kernels/generic/ops_overloads.inl.h"

}  // namespace imago::kernels::neon
