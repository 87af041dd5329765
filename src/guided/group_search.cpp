#include "guided/group_search.h"

namespace imago::guided {

void GroupSearch::begin(const ColumnGroup& group) {
  group_ = group;
  change_ = 0;
  values_.resize(group.count);
}

/// Each column waits for the one before; trials do not wait for each other, and share what they read.
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

}  // namespace imago::guided
