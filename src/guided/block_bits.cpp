#include "guided/block_bits.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "quant/rows.h"

namespace imago::guided {

namespace {

void put_bits(std::byte* block, std::span<const std::uint16_t> positions, std::size_t pattern) noexcept {
  for (std::size_t bit = 0; bit < positions.size(); ++bit) {
    const std::byte mask = std::byte{1} << positions[bit] % 8;
    std::byte& place = block[positions[bit] / 8];
    place = (pattern >> bit & 1) != 0 ? place | mask : place & ~mask;
  }
}

}  // namespace

std::optional<CodeBits> CodeBits::of(Format type) {
  if (!type.is_block()) return std::nullopt;
  const BlockFormat format = type.block();
  const auto values = static_cast<std::size_t>(info(format).values);
  const quant::BlockParts parts = quant::block_parts(format);
  std::vector<std::byte> block(static_cast<std::size_t>(info(format).bytes));
  quant::Expanded before, after;
  std::vector<std::vector<std::uint16_t>> positions(values);
  for (std::size_t bit = 0; bit < 8 * block.size(); ++bit) {
    // Against a background of zeros and one of ones: the sign bit of a zero has no effect.
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
  put_bits(block, std::span(positions_).subspan(index * bits_, bits_), code);
}

namespace {

/// Bytes that make a plausible block: no scale is 0, infinite or NaN in any encoding.
constexpr std::byte kBackgrounds[] = {std::byte{0x2A}, std::byte{0x35}};

}  // namespace

ScaleBits::ScaleBits(BlockFormat format, Part part)
    : part_(part),
      parts_(quant::block_parts(format)),
      block_bytes_(static_cast<std::size_t>(info(format).bytes)),
      groups_(static_cast<std::size_t>(info(format).values / parts_.group)) {
  if (part == Part::offset && !parts_.has_offset) return;
  find_bits();
  if (bits_ != 0) find_factors();
}

float ScaleBits::value(const std::byte* block, std::size_t group) const {
  quant::Expanded expanded;
  parts_.expand(block, expanded);
  return part_ == Part::scale ? expanded.scales[group] : expanded.offsets[group];
}

/// A bit belongs to a group if it changes the value of that group and nothing else.
void ScaleBits::find_bits() {
  struct Bit {
    std::uint16_t position;
    float effect;
  };
  std::vector<std::vector<Bit>> bits(groups_);
  std::vector<std::byte> block(block_bytes_);
  quant::Expanded before{}, after{};
  for (std::size_t bit = 0; bit < 8 * block_bytes_; ++bit) {
    std::size_t owner = 0;
    float effect = 0;
    const auto moves_one = [&](std::byte background) {
      std::ranges::fill(block, background);
      parts_.expand(block.data(), before);
      block[bit / 8] ^= std::byte{1} << bit % 8;
      parts_.expand(block.data(), after);
      std::size_t moved = 0;
      for (std::size_t group = 0; group < groups_; ++group) {
        const float scale_moves = after.scales[group] - before.scales[group];
        const float offset_moves = parts_.has_offset ? after.offsets[group] - before.offsets[group] : 0;
        if ((part_ == Part::scale ? offset_moves : scale_moves) != 0) return false;
        const float moves = part_ == Part::scale ? scale_moves : offset_moves;
        if (moves == 0) continue;
        ++moved;
        owner = group;
        effect = std::abs(moves);
      }
      return moved == 1 && std::ranges::equal(before.codes, after.codes);
    };
    if (std::ranges::all_of(kBackgrounds, moves_one)) bits[owner].push_back({static_cast<std::uint16_t>(bit), effect});
  }
  const auto same = [&](const auto& of_group) { return of_group.size() == bits[0].size(); };
  if (bits[0].empty() || bits[0].size() > 16 || !std::ranges::all_of(bits, same)) return;
  bits_ = bits[0].size();
  // The bits of a group are scattered, in an order that differs between groups (q4_k): sort them by their effect.
  for (auto& of_group : bits) {
    std::ranges::stable_sort(of_group, {}, &Bit::effect);
    for (const Bit& bit : of_group) positions_.push_back(bit.position);
  }
}

/// The value of each pattern of a group's bits, in units of the least positive one.
void ScaleBits::find_factors() {
  std::vector<std::byte> block(block_bytes_, kBackgrounds[0]);
  std::vector<float> values(std::size_t{1} << bits_);
  patterns_.resize(values.size());
  std::iota(patterns_.begin(), patterns_.end(), std::uint16_t{0});
  for (std::size_t pattern = 0; pattern < values.size(); ++pattern) {
    put_bits(block.data(), std::span(positions_).first(bits_), pattern);
    values[pattern] = value(block.data(), 0);
  }
  std::erase_if(patterns_, [&](std::uint16_t pattern) { return !std::isfinite(values[pattern]); });
  std::ranges::stable_sort(patterns_, {}, [&](std::uint16_t pattern) { return values[pattern]; });
  const auto same = [&](std::uint16_t a, std::uint16_t b) { return values[a] == values[b]; };
  patterns_.erase(std::unique(patterns_.begin(), patterns_.end(), same), patterns_.end());
  const auto positive = std::ranges::find_if(patterns_, [&](std::uint16_t pattern) { return values[pattern] > 0; });
  if (positive == patterns_.end()) return;
  one_ = static_cast<std::size_t>(positive - patterns_.begin());
  for (const std::uint16_t pattern : patterns_) factors_.push_back(values[pattern] / values[*positive]);
}

float ScaleBits::unit(const std::byte* block) const {
  std::byte copy[256];  // the largest block has 210 bytes
  std::copy_n(block, block_bytes_, copy);
  set(copy, 0, one_);
  return value(copy, 0);
}

std::size_t ScaleBits::nearest(float wanted) const noexcept {
  const auto above = std::ranges::lower_bound(factors_, wanted);
  if (above == factors_.begin()) return 0;
  const auto below = above - 1;
  const bool take_below = above == factors_.end() || wanted - *below <= *above - wanted;
  return static_cast<std::size_t>((take_below ? below : above) - factors_.begin());
}

void ScaleBits::set(std::byte* block, std::size_t group, std::size_t place) const noexcept {
  put_bits(block, std::span(positions_).subspan(group * bits_, bits_), patterns_[place]);
}

}  // namespace imago::guided
