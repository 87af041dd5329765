#include "quant/int8_scale.h"

#include <algorithm>
#include <cmath>

#include "imago/codec.h"
#include "imago/numeric.h"

namespace imago::quant {

namespace {

float nearest_64th(float residual) noexcept { return std::nearbyint(residual * 64) / 64; }

/// The best scale but for its refinement. Zeros if some value is not finite, or all are next to nothing.
Int8Scale int8_scale(std::span<const float> x) noexcept {
  float largest = 0;
  for (const float v : x) {
    if (!std::isfinite(v)) return {0, 0};
    largest = std::max(largest, std::fabs(v));
  }
  Int8Scale best = {0, 0};
  float least = 0;
  for (int i = 0; i < kInt8Scales; ++i) {
    const float scale = largest / kInt8Steps[i], inverse = 1.0f / scale;
    if (!std::isfinite(inverse)) return {0, 0};
    float squares = 0;
    for (const float v : x) {
      const float t = v * inverse, residual = nearest_64th(t - std::nearbyint(t));
      squares += residual * residual;
    }
    squares *= kInt8Squares[i];
    if (i > 0 && squares >= least) continue;
    best = {scale, inverse};
    least = squares;
  }
  return best;
}

}  // namespace

float quantize_to_int8(std::span<const float> x, std::int8_t* q) noexcept {
  const Int8Scale chosen = int8_scale(x);
  if (chosen.scale == 0) {
    std::fill_n(q, x.size(), std::int8_t{0});
    return 0;
  }
  float slope = 0, power = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float t = x[i] * chosen.inverse, code = round_half_away(t);
    q[i] = static_cast<std::int8_t>(code);
    slope += code * nearest_64th(t - code);
    power += code * code;
  }
  return chosen.scale * (1.0f + slope / power);
}

}  // namespace imago::quant

namespace imago {

std::vector<Int8Block> quantize_activations(std::span<const float> x) {
  std::vector<Int8Block> blocks((x.size() + Int8Block::kValues - 1) / Int8Block::kValues);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const std::span<const float> part =
        x.subspan(b * Int8Block::kValues)
            .first(std::min<std::size_t>(Int8Block::kValues, x.size() - b * Int8Block::kValues));
    Int8Block& block = blocks[b];
    block = {};
    block.scale = quant::quantize_to_int8(part, block.q);
    for (const std::int8_t code : block.q) block.sum += code;
  }
  return blocks;
}

}  // namespace imago
