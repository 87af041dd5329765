#pragma once

// Where a block format keeps the codes of its weights, so that single codes can be replaced.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "imago/format.h"

namespace imago::guided {

/// Found by asking the format's own decoder what each bit of a block does, so that no layout is written down twice.
class CodeBits {
 public:
  /// None for formats whose bits belong to several weights at once (tq1_0).
  static std::optional<CodeBits> of(BlockFormat format);

  /// What codes can stand for, before scale and offset; a code is an index into it.
  std::span<const float> levels() const noexcept { return levels_; }
  /// Puts `code` in the place of weight `index` of a block.
  void set(std::byte* block, std::size_t index, std::size_t code) const noexcept;

 private:
  CodeBits() = default;

  std::size_t bits_ = 0;                  ///< per weight
  std::vector<std::uint16_t> positions_;  ///< [weights][bits_], of bits in the block
  std::vector<float> levels_;
};

}  // namespace imago::guided
