#pragma once

// Levels for four numbers at once: those of four scales that are tried side by side.

#include <array>
#include <cstddef>

#include "guided/levels.h"

namespace imago::guided {

using Four = std::array<float, 4>;

class LevelLanes {
 public:
  using Lanes = float __attribute__((vector_size(16)));

  explicit LevelLanes(const Levels& levels)
      : levels_(levels), low_(levels.low() + Lanes{}), high_(levels.high() + Lanes{}) {}

  static Lanes load(const Four& values) noexcept { return Lanes{values[0], values[1], values[2], values[3]}; }

  /// The value of Levels::nearest in each lane.
  Lanes nearest_values(Lanes t) const noexcept {
    if (!levels_.consecutive()) return nearest_of_uneven(t);
    const Lanes above = t < low_ ? low_ : t, limited = above > high_ ? high_ : above;
    return (limited + Levels::kMagic) - Levels::kMagic;
  }

 private:
  Lanes nearest_of_uneven(Lanes t) const noexcept;

  const Levels& levels_;
  Lanes low_, high_;
};

}  // namespace imago::guided
