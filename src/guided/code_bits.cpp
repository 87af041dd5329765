#include "guided/code_bits.h"

#include <algorithm>

#include "quant/rows.h"

namespace imago::guided {

std::optional<CodeBits> CodeBits::of(BlockFormat format) {
  const auto values = static_cast<std::size_t>(info(format).values);
  const quant::BlockParts parts = quant::block_parts(format);
  std::vector<std::byte> block(static_cast<std::size_t>(info(format).bytes));
  quant::Expanded before, after;
  std::vector<std::vector<std::uint16_t>> positions(values);
  for (std::size_t bit = 0; bit < 8 * block.size(); ++bit) {
    // Among zeros and among ones: a sign says nothing of a zero.
    std::optional<std::size_t> weight;
    for (const std::byte background : {std::byte{0}, std::byte{0xFF}}) {
      std::ranges::fill(block, background);
      parts.expand(block.data(), before);
      block[bit / 8] ^= std::byte{1} << bit % 8;
      parts.expand(block.data(), after);
      for (std::size_t i = 0; i < values; ++i) {
        if (after.codes[i] == before.codes[i]) continue;
        if (weight && *weight != i) return std::nullopt;
        weight = i;
      }
    }
    if (weight) positions[*weight].push_back(static_cast<std::uint16_t>(bit));
  }

  CodeBits found;
  found.bits_ = positions[0].size();
  for (const auto& of_weight : positions) {
    if (of_weight.size() != found.bits_) return std::nullopt;
    found.positions_.insert(found.positions_.end(), of_weight.begin(), of_weight.end());
  }
  for (std::size_t code = 0; code < std::size_t{1} << found.bits_; ++code) {
    found.set(block.data(), 0, code);
    parts.expand(block.data(), after);
    found.levels_.push_back(static_cast<float>(after.codes[0]));
  }
  return found;
}

void CodeBits::set(std::byte* block, std::size_t index, std::size_t code) const noexcept {
  const std::uint16_t* positions = positions_.data() + index * bits_;
  for (std::size_t bit = 0; bit < bits_; ++bit) {
    const std::byte mask = std::byte{1} << positions[bit] % 8;
    std::byte& place = block[positions[bit] / 8];
    place = (code >> bit & 1) != 0 ? place | mask : place & ~mask;
  }
}

}  // namespace imago::guided
