#pragma once

#include "testing/one_thread.h"

namespace imago::testing {

/// The whole program of a test that includes this computes with one thread, unless a test asks for more.
inline const OneThread kOnOneThread;

}  // namespace imago::testing
