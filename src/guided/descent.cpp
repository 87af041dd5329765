#include "guided/descent.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "math/products.h"

namespace imago::guided {

namespace {

constexpr float kNever = std::numeric_limits<float>::max();
/// A step that alone costs more than this part of its square times the curvature finds no partner that pays for it.
constexpr float kWorthPairing = 0.5f;

}  // namespace

void Descent::sweep(bool pairs) {
  for (std::size_t p = 0; p < strip_.panels(); ++p) {
    const std::size_t first = p * Feedback::kPanel, width = strip_.source.feedback.panel_width(p);
    slopes_.resize(strip_.rows * width);
    math::gemm({.m = strip_.rows, .n = width, .k = strip_.cols, .a = math::Transpose::yes, .b = math::Transpose::yes},
               strip_.errors,
               std::span<const float>(strip_.source.inputs.products).subspan(first * strip_.cols, width * strip_.cols),
               slopes_);
    for (std::size_t row = 0; row < strip_.rows; ++row) {
      sweep_row({row, first, width, slopes_.data() + row * width}, pairs);
    }
  }
}

void Descent::sweep_row(const Row& at, bool pairs) {
  for (std::size_t i = 0; i < at.width; ++i) improve_code(at, i);
  if (pairs) improve_pairs(at);
  for (std::size_t i = 0; i < at.width; i += strip_.scales.group) {
    if (strip_.grid.adjusts_scales()) improve_scale(at, i);
    if (strip_.grid.adjusts_offsets()) improve_offset(at, i);
  }
}

void Descent::change_error(const Row& at, std::size_t i, float change) {
  error(at, i) += change;
  const float* row = products(at, i);
  for (std::size_t k = 0; k < at.width; ++k) at.slopes[k] += change * row[k];
}

// ---- codes

void Descent::improve_code(const Row& at, std::size_t i) {
  const std::size_t column = at.first + i;
  const float before = error(at, i);
  const float wanted = strip_.weights[at.row * strip_.cols + column] - before + slope(at, i) / curvature(at, i);
  const float change = strip_.round(at.row, column, wanted) - before;
  if (change != 0) change_error(at, i, change);
}

void Descent::find_steps(const Row& at) {
  const Levels& levels = strip_.source.levels;
  for (std::size_t i = 0; i < at.width; ++i) {
    const std::size_t place = strip_.places[at.row * strip_.cols + at.first + i];
    const float scale = strip_.scales.scales[strip_.group_of(at.row, at.first + i)];
    const auto set = [&](int side, bool possible, std::size_t next) {
      const float step = possible ? scale * (levels.value(next) - levels.value(place)) : 0;
      steps_[side][i] = step;
      costs_[side][i] = step == 0 ? kNever : step * (step * curvature(at, i) - 2 * slope(at, i));
    };
    set(0, place + 1 < levels.size(), place + 1);
    set(1, place > 0, place - 1);
  }
}

void Descent::take_step(const Row& at, std::size_t i, int side) {
  std::uint8_t& place = strip_.places[at.row * strip_.cols + at.first + i];
  place = static_cast<std::uint8_t>(side == 0 ? place + 1 : place - 1);
  change_error(at, i, -steps_[side][i]);
}

/// Two steps that each cost something may gain together where their columns go together.
void Descent::improve_pairs(const Row& at) {
  for (int side = 0; side < 2; ++side) {
    steps_[side].resize(at.width);
    costs_[side].resize(at.width);
  }
  together_.resize(at.width);
  find_steps(at);
  for (std::size_t i = 0; i < at.width; ++i) {
    float least = 0;
    std::size_t partner = 0;
    int side = 0, partner_side = 0;
    for (int a = 0; a < 2; ++a) {
      const float step = steps_[a][i], alone = costs_[a][i];
      if (step == 0 || alone > kWorthPairing * step * step * curvature(at, i)) continue;
      for (int b = 0; b < 2; ++b) {
        const float *row = products(at, i), *steps = steps_[b].data(), *costs = costs_[b].data();
        for (std::size_t j = 0; j < at.width; ++j) together_[j] = costs[j] + 2 * step * steps[j] * row[j];
        together_[i] = kNever;
        const auto best = std::ranges::min_element(together_);
        // What float32 may have rounded away is no gain.
        if (alone + *best >= least - 1e-5f * std::abs(alone)) continue;
        least = alone + *best;
        partner = static_cast<std::size_t>(best - together_.begin());
        side = a;
        partner_side = b;
      }
    }
    if (least == 0) continue;
    take_step(at, i, side);
    take_step(at, partner, partner_side);
    find_steps(at);
  }
}

// ---- scales

void Descent::improve_scale(const Row& at, std::size_t i) {
  const std::size_t begin = at.row * strip_.cols + at.first + i;
  direction_.resize(strip_.scales.group);
  for (std::size_t k = 0; k < direction_.size(); ++k) {
    direction_[k] = strip_.source.levels.value(strip_.places[begin + k]);
  }
  float& scale = strip_.scales.scales[begin / strip_.scales.group];
  const float wanted = scale + best_step(at, i);
  if (!std::isfinite(wanted)) return;
  const float better = strip_.grid.nearest_scale(at.row, at.first + i, wanted);
  move_group(at, i, better - scale);
  scale = better;
}

void Descent::improve_offset(const Row& at, std::size_t i) {
  direction_.assign(strip_.scales.group, -1.0f);
  float& offset = strip_.scales.offsets[strip_.group_of(at.row, at.first + i)];
  const float wanted = offset + best_step(at, i);
  if (!std::isfinite(wanted)) return;
  const float better = strip_.grid.nearest_offset(at.row, at.first + i, wanted);
  move_group(at, i, better - offset);
  offset = better;
}

/// How far the values of the group at `i` should move along direction_, codes fixed.
float Descent::best_step(const Row& at, std::size_t i) const {
  float along = 0, bend = 0;
  for (std::size_t k = 0; k < direction_.size(); ++k) {
    const float* row = products(at, i + k) + i;
    float sum = damping() * direction_[k];
    for (std::size_t l = 0; l < direction_.size(); ++l) sum += row[l] * direction_[l];
    bend += direction_[k] * sum;
    along += direction_[k] * slope(at, i + k);
  }
  return bend > 0 ? along / bend : 0;
}

void Descent::move_group(const Row& at, std::size_t i, float step) {
  if (step == 0) return;
  for (std::size_t k = 0; k < direction_.size(); ++k) change_error(at, i + k, -step * direction_[k]);
}

}  // namespace imago::guided
