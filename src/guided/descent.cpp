#include "guided/descent.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "math/products.h"

namespace imago::guided {

void GroupSearch::begin(const ColumnGroup& group) {
  group_ = group;
  change_ = 0;
  values_.resize(group.count);
}

/// Columns depend on each other, trials do not: they run in lanes and share what they read.
template <std::size_t kTrials>
void GroupSearch::attempt(const Trial (&trials)[kTrials]) {
  Lanes scale[kTrials], offset[kTrials], inverse[kTrials], total[kTrials];
  for (std::size_t t = 0; t < kTrials; ++t) {
    scale[t] = LevelLanes::load(trials[t].scales);
    offset[t] = LevelLanes::load(trials[t].offsets);
    inverse[t] = 1 / scale[t];
    total[t] = Lanes{};
  }
  slopes_.resize(kTrials * group_.count);
  tried_.resize(kTrials * group_.count);
  Lanes* const slopes = slopes_.data();
  for (std::size_t i = 0; i < kTrials * group_.count; ++i) slopes[i] = group_.slopes[i / kTrials] + Lanes{};
  for (std::size_t i = 0; i < group_.count; ++i) {
    const float* const row = group_.products + i * group_.stride;
    const float curvature = row[i] + group_.damping, value = group_.weights[i] - group_.errors[i];
    const float damped = group_.damping * group_.errors[i], inverse_curvature = 1 / curvature;
    Lanes change[kTrials];
    for (std::size_t t = 0; t < kTrials; ++t) {
      const Lanes slope = slopes[i * kTrials + t] + damped;
      const Lanes wanted = value + slope * inverse_curvature;
      const Lanes tried = levels_.nearest_values((wanted + offset[t]) * inverse[t]);
      tried_[i * kTrials + t] = tried;
      change[t] = value - (scale[t] * tried - offset[t]);
      total[t] += change[t] * (2 * slope + change[t] * curvature);
    }
    for (std::size_t k = i + 1; k < group_.count; ++k) {
      for (std::size_t t = 0; t < kTrials; ++t) slopes[k * kTrials + t] += change[t] * row[k];
    }
  }
  for (std::size_t t = 0; t < kTrials; ++t) {
    for (std::size_t lane = 0; lane < Four().size(); ++lane) {
      if (!(total[t][lane] < change_)) continue;
      change_ = total[t][lane];
      scale_ = trials[t].scales[lane];
      offset_ = trials[t].offsets[lane];
      for (std::size_t i = 0; i < group_.count; ++i) values_[i] = tried_[i * kTrials + t][lane];
    }
  }
}

template void GroupSearch::attempt(const Trial (&)[1]);
template void GroupSearch::attempt(const Trial (&)[2]);
template void GroupSearch::attempt(const Trial (&)[3]);

namespace {

constexpr float kNever = std::numeric_limits<float>::max();
/// A step that costs more than this share of its square times the curvature never pays off in a pair.
constexpr float kWorthPairing = 0.5f;
/// Factors on the scale and offset of a group to try. Smaller changes are found with fixed codes.
constexpr Four kNearFactors = {0.9f, 0.95f, 1.05f, 1.1f}, kFarFactors = {0.8f, 0.85f, 1.15f, 1.2f};

using Lanes = LevelLanes::Lanes;

Lanes load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof lanes);
  return lanes;
}

/// The least costs[i] + factor · steps[i] · row[i]. Vectorized by hand: compilers must keep the order of comparisons.
float least_together(const float* costs, const float* steps, const float* row, float factor, std::size_t count) {
  constexpr std::size_t kLanes = sizeof(Lanes) / sizeof(float);
  Lanes least = kNever + Lanes{}, other = least;
  std::size_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    const Lanes cost = load(costs + i) + factor * load(steps + i) * load(row + i);
    const Lanes next = load(costs + i + kLanes) + factor * load(steps + i + kLanes) * load(row + i + kLanes);
    least = cost < least ? cost : least;
    other = next < other ? next : other;
  }
  float found = kNever;
  for (; i < count; ++i) found = std::min(found, costs[i] + factor * steps[i] * row[i]);
  for (std::size_t lane = 0; lane < kLanes; ++lane) found = std::min({found, least[lane], other[lane]});
  return found;
}

}  // namespace

void Descent::sweep() {
  for (std::size_t p = 0; p < strip_.panels(); ++p) {
    const std::size_t first = p * Feedback::kPanel, width = strip_.source.feedback.panel_width(p);
    slopes_.resize(strip_.rows * width);
    math::gemm({.m = strip_.rows, .n = width, .k = strip_.cols, .a = math::Transpose::yes, .b = math::Transpose::yes},
               strip_.errors,
               std::span<const float>(strip_.source.inputs.products).subspan(first * strip_.cols, width * strip_.cols),
               slopes_);
    for (std::size_t row = 0; row < strip_.rows; ++row) {
      sweep_row({row, first, width, slopes_.data() + row * width});
    }
  }
}

void Descent::sweep_row(const Row& at) {
  for (std::size_t i = 0; i < at.width; ++i) improve_code(at, i);
  improve_pairs(at);
  for (std::size_t i = 0; i < at.width; i += strip_.scales.group) {
    if (!strip_.grid.adjusts(Part::scale)) break;
    improve(at, i, Part::scale);
    if (strip_.grid.adjusts(Part::offset)) improve(at, i, Part::offset);
    search_scales(at, i);
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

/// Two steps that each raise the error may lower it together if their columns correlate.
void Descent::improve_pairs(const Row& at) {
  for (int side = 0; side < 2; ++side) {
    steps_[side].resize(at.width);
    costs_[side].resize(at.width);
  }
  find_steps(at);
  for (std::size_t i = 0; i < at.width; ++i) {
    float least = 0;
    std::size_t partner = 0;
    int side = 0, partner_side = 0;
    const float up = std::exchange(costs_[0][i], kNever), down = std::exchange(costs_[1][i], kNever);
    for (int a = 0; a < 2; ++a) {
      const float step = steps_[a][i], alone = a == 0 ? up : down;
      if (step == 0 || alone > kWorthPairing * step * step * curvature(at, i)) continue;
      for (int b = 0; b < 2; ++b) {
        const float *row = products(at, i), *steps = steps_[b].data(), *costs = costs_[b].data();
        const float best = least_together(costs, steps, row, 2 * step, at.width);
        // A gain within the rounding error of float32 does not count.
        if (alone + best >= least - 1e-5f * std::abs(alone)) continue;
        least = alone + best;
        partner = 0;
        while (partner + 1 < at.width && costs[partner] + 2 * step * steps[partner] * row[partner] != best) ++partner;
        side = a;
        partner_side = b;
      }
    }
    costs_[0][i] = up;
    costs_[1][i] = down;
    if (least == 0) continue;
    take_step(at, i, side);
    take_step(at, partner, partner_side);
    find_steps(at);
  }
}

// ---- scales

void Descent::improve(const Row& at, std::size_t i, Part part) {
  const std::size_t begin = at.row * strip_.cols + at.first + i;
  direction_.assign(strip_.scales.group, -1.0f);
  for (std::size_t k = 0; part == Part::scale && k < direction_.size(); ++k) {
    direction_[k] = strip_.source.levels.value(strip_.places[begin + k]);
  }
  float& value = strip_.scales.of(part)[begin / strip_.scales.group];
  const float wanted = value + best_step(at, i);
  if (!std::isfinite(wanted)) return;
  const float better = strip_.grid.nearest(part, at.row, at.first + i, wanted);
  move_group(at, i, better - value);
  value = better;
}

/// Codes and scales fix each other: nearby scales are tried with new codes.
void Descent::search_scales(const Row& at, std::size_t i) {
  const RoundingGrid& grid = strip_.grid;
  const std::size_t column = at.first + i, group = strip_.group_of(at.row, column), count = strip_.scales.group;
  float &scale = strip_.scales.scales[group], &offset = strip_.scales.offsets[group];
  if (scale == 0) return;
  group_errors_.resize(count);
  for (std::size_t k = 0; k < count; ++k) group_errors_[k] = error(at, i + k);
  const float* weights = strip_.weights.data() + at.row * strip_.cols + column;
  search_.begin({count, weights, group_errors_, at.slopes + i, products(at, i) + i, strip_.cols, damping()});
  const auto scales = [&](const Four& factors) {
    Four near;
    for (std::size_t k = 0; k < near.size(); ++k) {
      const float nearest = grid.nearest(Part::scale, at.row, column, scale * factors[k]);
      near[k] = nearest == 0 ? scale : nearest;
    }
    return near;
  };
  const auto same = [](float value) { return Four{value, value, value, value}; };
  if (grid.adjusts(Part::offset)) {
    Four offsets;
    for (std::size_t k = 0; k < offsets.size(); ++k) {
      offsets[k] = grid.nearest(Part::offset, at.row, column, offset * kNearFactors[k]);
    }
    const Four near = scales(kNearFactors);
    const Trial trials[] = {{near, same(offset)}, {same(scale), offsets}, {near, offsets}};
    search_.attempt(trials);
  } else {
    const Trial trials[] = {{scales(kNearFactors), same(offset)}, {scales(kFarFactors), same(offset)}};
    search_.attempt(trials);
  }
  if (!search_.found()) return;
  scale = search_.scale();
  offset = search_.offset();
  for (std::size_t k = 0; k < count; ++k) {
    const float change = strip_.round(at.row, column + k, scale * search_.values()[k] - offset) - error(at, i + k);
    if (change != 0) change_error(at, i + k, change);
  }
}

/// How far the values of the group at `i` should move along direction_ with fixed codes.
float Descent::best_step(const Row& at, std::size_t i) {
  moved_.assign(direction_.size(), 0);
  float along = 0, bend = 0;
  for (std::size_t k = 0; k < direction_.size(); ++k) {
    const float* row = products(at, i + k) + i;
    for (std::size_t l = 0; l < direction_.size(); ++l) moved_[l] += direction_[k] * row[l];
    along += direction_[k] * slope(at, i + k);
  }
  for (std::size_t k = 0; k < direction_.size(); ++k) bend += direction_[k] * (moved_[k] + damping() * direction_[k]);
  return bend > 0 ? along / bend : 0;
}

void Descent::move_group(const Row& at, std::size_t i, float step) {
  if (step == 0) return;
  for (std::size_t k = 0; k < direction_.size(); ++k) change_error(at, i + k, -step * direction_[k]);
}

}  // namespace imago::guided
