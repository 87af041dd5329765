#include <fmt/format.h>

#include <utility>

#include "imago/codec.h"
#include "imago/error.h"
#include "imago/weights.h"

namespace imago {

Version::Version(Scheme scheme, std::size_t count, Buffer codes, std::vector<float> scales, std::size_t scale_group,
                 bool explicit_scale)
    : scheme_(scheme),
      count_(count),
      codes_(std::move(codes)),
      scales_(std::move(scales)),
      scale_group_(scale_group),
      explicit_scale_(explicit_scale) {}

void Version::decode_into(std::span<float> weights) const {
  if (weights.size() != count_) {
    throw ShapeError(fmt::format("a version of {} weights cannot be decoded into {}", count_, weights.size()));
  }
  if (scheme_.format.is_block()) {
    decode(scheme_.format.block(), codes(), weights);
  } else {
    decode(scheme_.format.dtype(), codes(), {.values = scales_, .group = scale_group_}, weights);
  }
}

}  // namespace imago
