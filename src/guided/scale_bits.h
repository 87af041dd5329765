#pragma once

// Where a block format keeps the scale of each of its groups, or their offsets, so that single ones can be replaced.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "imago/format.h"
#include "quant/rows.h"

namespace imago::guided {

/// What bits of a block decide for one group alone: all of its scale, or the factor on a scale that the groups of a
/// block share. Found by asking the format's own decoder, as in code_bits.h.
class ScaleBits {
 public:
  enum class Part : std::uint8_t { scale, offset };
  ScaleBits(BlockFormat format, Part part);

  /// False where groups have no bits of their own, or more than 16 (the float32 scales of entity_q4_0).
  bool exist() const noexcept { return !factors_.empty(); }
  /// What the groups of this block share: values are this times a factor. 0 if nothing but zeros can be had.
  float unit(const std::byte* block) const;
  /// The place of the factor nearest to `wanted`.
  std::size_t nearest(float wanted) const noexcept;
  float factor(std::size_t place) const noexcept { return factors_[place]; }
  /// Gives group `group` of a block that factor.
  void set(std::byte* block, std::size_t group, std::size_t place) const noexcept;

 private:
  float value(const std::byte* block, std::size_t group) const;
  void find_bits();
  void find_factors();

  Part part_;
  quant::BlockParts parts_;
  std::size_t block_bytes_, groups_, bits_ = 0;
  std::vector<std::uint16_t> positions_;  ///< [groups][bits_], of bits in the block
  std::vector<float> factors_;            ///< ascending
  std::vector<std::uint16_t> patterns_;   ///< of the factors
  std::size_t one_ = 0;                   ///< the place of the factor 1
};

}  // namespace imago::guided
