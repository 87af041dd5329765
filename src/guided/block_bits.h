#pragma once

// Which bits of a block hold the code of a weight, or the scale or offset of a group, so that one of them can be
// replaced. Found by asking the format's own decoder what each bit does: layouts are not written down a second time.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "imago/format.h"
#include "quant/rows.h"

namespace imago::guided {

/// The bits of codes.
class CodeBits {
 public:
  /// None for dtypes, and for formats whose bits belong to several weights at once (tq1_0).
  static std::optional<CodeBits> of(Format format);

  /// The value of each code before scale and offset.
  std::span<const float> levels() const noexcept { return levels_; }
  /// Replaces the code of weight `index` in a block.
  void set(std::byte* block, std::size_t index, std::size_t code) const noexcept;

 private:
  CodeBits() = default;

  std::size_t bits_ = 0;                  ///< per weight
  std::vector<std::uint16_t> positions_;  ///< [weights][bits_]: bit positions in the block
  std::vector<float> levels_;
};

/// The bits that affect one group only: its whole scale, or its factor on a scale shared by the groups of a block.
class ScaleBits {
 public:
  enum class Part : std::uint8_t { scale, offset };
  ScaleBits(BlockFormat format, Part part);

  /// False if groups have no bits of their own, or more than 16 (the float32 scales of entity_q4_0).
  bool exist() const noexcept { return !factors_.empty(); }
  /// The scale shared by the groups of this block; the scale of a group is this times a factor. 0: all are 0.
  float unit(const std::byte* block) const;
  /// The index of the factor nearest to `wanted`.
  std::size_t nearest(float wanted) const noexcept;
  float factor(std::size_t place) const noexcept { return factors_[place]; }
  /// Sets the factor of group `group` in a block.
  void set(std::byte* block, std::size_t group, std::size_t place) const noexcept;

 private:
  float value(const std::byte* block, std::size_t group) const;
  void find_bits();
  void find_factors();

  Part part_;
  quant::BlockParts parts_;
  std::size_t block_bytes_, groups_, bits_ = 0;
  std::vector<std::uint16_t> positions_;  ///< [groups][bits_]: bit positions in the block
  std::vector<float> factors_;            ///< ascending
  std::vector<std::uint16_t> patterns_;   ///< the bits of each factor
  std::size_t one_ = 0;                   ///< the index of the factor 1
};

}  // namespace imago::guided
