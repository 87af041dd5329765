#include "guided/group_search.h"

namespace imago::guided {

void GroupSearch::begin(const ColumnGroup& group) {
  group_ = group;
  change_ = 0;
  slopes_.resize(group.count);
  tried_.resize(group.count);
  values_.resize(group.count);
}

/// The value of Levels::nearest in each lane.
inline GroupSearch::Lanes GroupSearch::nearest_values(Lanes t) const noexcept {
  if (!levels_.consecutive()) return nearest_of_uneven(t);
  const Lanes above = t < low_ ? low_ : t, limited = above > high_ ? high_ : above;
  return (limited + Levels::kMagic) - Levels::kMagic;
}

GroupSearch::Lanes GroupSearch::nearest_of_uneven(Lanes t) const noexcept {
  constexpr std::size_t kFewLevels = 16;
  Lanes values = low_;
  if (levels_.size() > kFewLevels) {
    for (std::size_t lane = 0; lane < Four().size(); ++lane) values[lane] = levels_.value(levels_.nearest(t[lane]));
    return values;
  }
  for (std::size_t place = 1; place < levels_.size(); ++place) {
    values = t > levels_.midpoint(place - 1) + Lanes{} ? levels_.value(place) + Lanes{} : values;
  }
  return values;
}

void GroupSearch::attempt(const Four& scales, const Four& offsets) {
  Lanes scale{}, offset{}, total{};
  for (std::size_t lane = 0; lane < scales.size(); ++lane) {
    scale[lane] = scales[lane];
    offset[lane] = offsets[lane];
  }
  const Lanes inverse = 1 / scale;
  Lanes* const slopes = slopes_.data();
  for (std::size_t i = 0; i < group_.count; ++i) slopes[i] = group_.slopes[i] + Lanes{};
  for (std::size_t i = 0; i < group_.count; ++i) {
    const float* const row = group_.products + i * group_.stride;
    const float curvature = row[i] + group_.damping, value = group_.weights[i] - group_.errors[i];
    const Lanes slope = slopes[i] + group_.damping * group_.errors[i];
    const Lanes wanted = value + slope * (1 / curvature);
    tried_[i] = nearest_values((wanted + offset) * inverse);
    const Lanes change = value - (scale * tried_[i] - offset);
    total += change * (2 * slope + change * curvature);
    for (std::size_t k = i + 1; k < group_.count; ++k) slopes[k] += change * row[k];
  }
  for (std::size_t lane = 0; lane < scales.size(); ++lane) {
    if (!(total[lane] < change_)) continue;
    change_ = total[lane];
    scale_ = scales[lane];
    offset_ = offsets[lane];
    for (std::size_t i = 0; i < group_.count; ++i) values_[i] = tried_[i][lane];
  }
}

}  // namespace imago::guided
