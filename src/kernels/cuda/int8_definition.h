#pragma once

// For tests: the int8 form of activations as kernels of the GPU make it, in plain C++. On the host imago chooses among
// several scales (quant/int8_scale.h).

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "imago/codec.h"
#include "imago/numeric.h"

namespace imago::testing {

/// The largest magnitude of a block is 127 steps. A last block may be short.
inline std::vector<Int8Block> int8_of_gpu(std::span<const float> x) {
  std::vector<Int8Block> blocks((x.size() + 31) / 32);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const std::span<const float> part = x.subspan(b * 32, std::min<std::size_t>(32, x.size() - b * 32));
    float largest = 0;
    for (const float v : part) largest = std::isfinite(v) ? std::max(largest, std::fabs(v)) : INFINITY;
    const float scale = largest / 127.0f, inverse = 1.0f / scale;
    blocks[b] = {};
    if (!std::isfinite(largest) || !std::isfinite(inverse)) continue;
    blocks[b].scale = scale;
    for (std::size_t i = 0; i < part.size(); ++i) {
      blocks[b].q[i] = static_cast<std::int8_t>(round_half_away(part[i] * inverse));
      blocks[b].sum += blocks[b].q[i];
    }
  }
  return blocks;
}

}  // namespace imago::testing
