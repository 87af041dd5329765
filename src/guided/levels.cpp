#include "guided/levels.h"

#include <cmath>
#include <numeric>

#include "imago/codec.h"

namespace imago::guided {

namespace {

std::vector<float> integers(int low, int high) {
  std::vector<float> values;
  for (int value = low; value <= high; ++value) values.push_back(static_cast<float>(value));
  return values;
}

/// The value of each bit pattern of a narrow float.
std::vector<float> float_values(DType dtype) {
  std::vector<std::byte> packed;
  const int bits_of_code = bits(dtype);
  for (int pattern = 0; pattern < 1 << bits_of_code; ++pattern) {
    const int pair = pattern << 4 | pattern;  // two codes of 4 bits per byte
    packed.push_back(static_cast<std::byte>(bits_of_code == 4 ? pair : pattern));
  }
  std::vector<float> values(packed.size() * 8 / static_cast<std::size_t>(bits_of_code));
  const float one = 1;
  decode(dtype, packed, {{&one, 1}, values.size()}, values);
  std::erase_if(values, [](float value) { return !std::isfinite(value); });
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

}  // namespace

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

bool Levels::exist(DType dtype) noexcept { return is_scaled(dtype) && bits(dtype) <= 8; }

Levels Levels::of(DType dtype) {
  const int width = bits(dtype);
  switch (info(dtype).kind) {
    case NumberKind::signed_integer: return Levels(integers(-(1 << (width - 1)), (1 << (width - 1)) - 1));
    case NumberKind::unsigned_integer: return Levels(integers(0, (1 << width) - 1));
    case NumberKind::ternary: return Levels(integers(-1, 1));
    case NumberKind::binary: return Levels(std::vector<float>{-1, 1});
    case NumberKind::wide_float:
    case NumberKind::narrow_float: break;
  }
  return Levels(float_values(dtype));
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
