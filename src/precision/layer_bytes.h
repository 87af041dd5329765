#pragma once

#include <cstdint>

#include "imago/layer.h"

namespace imago::precision {

/// Bytes that files keep of the weights of this layer alone, in the type it has: codes and scales.
std::uint64_t layer_bytes(const Layer& layer);

}  // namespace imago::precision
