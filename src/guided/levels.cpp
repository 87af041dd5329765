#include "guided/levels.h"

#include <cmath>
#include <numeric>

#include "imago/codec.h"

namespace imago::guided {

Levels::Levels(std::span<const float> values) {
  codes_.resize(values.size());
  std::iota(codes_.begin(), codes_.end(), std::size_t{0});
  std::ranges::stable_sort(codes_, {}, [&](std::size_t code) { return values[code]; });
  const auto same = [&](std::size_t a, std::size_t b) { return values[a] == values[b]; };
  codes_.erase(std::unique(codes_.begin(), codes_.end(), same), codes_.end());
  for (const std::size_t code : codes_) sorted_.push_back(values[code]);
  consecutive_ = true;
  for (std::size_t i = 0; i < sorted_.size(); ++i) {
    consecutive_ =
        consecutive_ && sorted_[i] == sorted_[0] + static_cast<float>(i) && sorted_[i] == std::floor(sorted_[i]);
    if (i > 0) midpoints_.push_back((sorted_[i - 1] + sorted_[i]) / 2);
  }
}

Levels Levels::of(DType dtype) {
  std::vector<std::byte> packed;  // the 256 bytes have all codes in them
  for (int byte = 0; byte < 256; ++byte) packed.push_back(static_cast<std::byte>(byte));
  std::vector<float> values(packed.size() * 8 / static_cast<std::size_t>(bits(dtype)));
  const float one = 1;
  decode(dtype, packed, {{&one, 1}, values.size()}, values);
  // The ternary code 10, which would be -2, is never written.
  std::erase_if(values, [&](float value) { return !std::isfinite(value) || (dtype == DType::ternary && value == -2); });
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return Levels(values);
}

LevelLanes::Lanes LevelLanes::nearest_of_uneven(Lanes t) const noexcept {
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

}  // namespace imago::guided
