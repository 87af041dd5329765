#pragma once

#include <span>

#include "imago/precision.h"

namespace imago::precision {

/// Sets on_front of all points.
void mark_front(std::span<SweepPoint> points);

}  // namespace imago::precision
