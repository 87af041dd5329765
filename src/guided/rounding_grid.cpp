#include "guided/rounding_grid.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "guided/importance.h"
#include "imago/codec.h"
#include "imago/numeric.h"
#include "quant/rows.h"

namespace imago::guided {

namespace {

constexpr ScaleBits::Part kParts[] = {ScaleBits::Part::scale, ScaleBits::Part::offset};

class BlockGrid final : public RoundingGrid {
 public:
  BlockGrid(BlockFormat format, const CodeBits& bits, std::span<const ScaleBits> part_bits, const Levels& levels,
            std::size_t rows, std::size_t columns, std::span<std::byte> codes)
      : format_(format),
        bits_(bits),
        part_bits_(part_bits),
        levels_(levels),
        parts_(quant::block_parts(format)),
        rows_(rows),
        columns_(columns),
        codes_(codes) {
    for (std::vector<float>& units : units_) units.resize(rows * columns / unit());
  }

  std::size_t unit() const noexcept override { return static_cast<std::size_t>(info(format_).values); }
  bool adjusts(Part part) const noexcept override { return bits_of(part).exist(); }
  float nearest(Part part, std::size_t row, std::size_t column, float wanted) const override {
    const float unit = units_[index(part)][block_index(row, column)];
    return unit == 0 ? 0 : unit * bits_of(part).factor(bits_of(part).nearest(wanted / unit));
  }

  void choose(std::size_t first, std::span<const float> weights, std::span<const float> importance,
              StripScales& scales) override {
    blocks_.resize(rows_ * block_bytes());
    imago::encode(format_, weights, blocks_, importance);
    scales.group = static_cast<std::size_t>(parts_.group);
    scales.scales.resize(rows_ * columns_ / scales.group);
    scales.offsets.resize(scales.scales.size());
    const std::size_t groups = unit() / scales.group;
    quant::Expanded expanded;
    for (std::size_t row = 0; row < rows_; ++row) {
      const std::byte* block = blocks_.data() + row * block_bytes();
      std::memcpy(block_at(row, first), block, block_bytes());
      for (const Part part : kParts) {
        if (adjusts(part)) units_[index(part)][block_index(row, first)] = bits_of(part).unit(block);
      }
      parts_.expand(block, expanded);
      const auto place = static_cast<std::ptrdiff_t>((row * columns_ + first) / scales.group);
      std::copy_n(expanded.scales, groups, scales.scales.begin() + place);
      if (parts_.has_offset) std::copy_n(expanded.offsets, groups, scales.offsets.begin() + place);
    }
  }

  void store(std::span<const std::uint8_t> places, const StripScales& scales) override {
    for (std::size_t row = 0; row < rows_; ++row) {
      for (std::size_t column = 0; column < columns_; column += scales.group) store_scales(row, column, scales);
      for (std::size_t column = 0; column < columns_; ++column) {
        bits_.set(block_at(row, column), column % unit(), levels_.code(places[row * columns_ + column]));
      }
    }
  }

 private:
  static std::size_t index(Part part) noexcept { return static_cast<std::size_t>(part); }
  const ScaleBits& bits_of(Part part) const noexcept { return part_bits_[index(part)]; }

  void store_scales(std::size_t row, std::size_t column, const StripScales& scales) {
    const std::size_t place = (row * columns_ + column) / scales.group, group = column % unit() / scales.group;
    for (const Part part : kParts) {
      const float unit_scale = units_[index(part)][block_index(row, column)];
      if (!adjusts(part) || unit_scale == 0) continue;
      bits_of(part).set(block_at(row, column), group, bits_of(part).nearest(scales.of(part)[place] / unit_scale));
    }
  }

  std::size_t block_bytes() const noexcept { return static_cast<std::size_t>(info(format_).bytes); }
  std::size_t block_index(std::size_t row, std::size_t column) const noexcept {
    return (row * columns_ + column) / unit();
  }
  std::byte* block_at(std::size_t row, std::size_t column) const noexcept {
    return codes_.data() + block_index(row, column) * block_bytes();
  }

  BlockFormat format_;
  const CodeBits& bits_;
  std::span<const ScaleBits> part_bits_;
  const Levels& levels_;
  quant::BlockParts parts_;
  std::size_t rows_, columns_;
  std::span<std::byte> codes_;
  std::vector<std::byte> blocks_;
  std::vector<float> units_[2];  ///< of each part, one per block
};

class ScaledGrid final : public RoundingGrid {
 public:
  ScaledGrid(const Scheme& scheme, const Levels& levels, std::size_t rows, std::size_t columns,
             std::span<std::byte> codes, std::span<float> scales, std::span<float> zero_points)
      : scheme_(scheme),
        levels_(levels),
        rows_(rows),
        columns_(columns),
        codes_(codes),
        scales_(scales),
        zero_points_(zero_points) {}

  std::size_t unit() const noexcept override { return group(); }
  /// With zero points the offset is a multiple of the scale, so that neither can move alone.
  bool adjusts(Part part) const noexcept override { return part == Part::scale && chooses() && zero_points_.empty(); }
  /// Any positive number is possible.
  float nearest(Part, std::size_t, std::size_t, float wanted) const override {
    return std::max(wanted, std::numeric_limits<float>::min());
  }

  void choose(std::size_t first, std::span<const float> weights, std::span<const float> importance,
              StripScales& scales) override {
    scales.group = group();
    scales.scales.resize(rows_ * columns_ / group());
    scales.offsets.resize(scales.scales.size());
    for (std::size_t row = 0; row < rows_; ++row) {
      const std::size_t place = (row * columns_ + first) / group();
      if (chooses()) {
        const AsymmetricScale own = weighted_scale(scheme_, weights.subspan(row * group(), group()), importance);
        scales.scales[place] = own.scale;
        scales.offsets[place] = own.scale * own.zero_point;
        if (!zero_points_.empty()) zero_points_[place] = own.zero_point;
      } else {
        const std::size_t own = scheme_.granularity == Granularity::row ? row : 0;
        scales.scales[place] = imago::detail::effective_scale(scales_[own]);
        if (!zero_points_.empty()) scales.offsets[place] = scales.scales[place] * zero_points_[own];
      }
    }
  }

  /// The values are on the grid already, so the encoder returns the codes they came from.
  void store(std::span<const std::uint8_t> places, const StripScales& scales) override {
    if (chooses()) std::ranges::copy(scales.scales, scales_.begin());
    std::vector<float> values(places.size());
    for (std::size_t i = 0; i < places.size(); ++i) {
      values[i] = levels_.value(places[i]) * scales.scales[i / group()] - scales.offsets[i / group()];
    }
    const std::size_t weights_per_scale = scheme_.granularity == Granularity::tensor ? values.size() : group();
    imago::encode(scheme_.format.dtype(), values, {scales_, weights_per_scale, zero_points_}, codes_);
  }

 private:
  bool chooses() const noexcept { return scheme_.granularity == Granularity::group; }
  /// Scales of rows and tensors are repeated for each row.
  std::size_t group() const noexcept {
    return scheme_.granularity == Granularity::group ? static_cast<std::size_t>(scheme_.group) : columns_;
  }

  const Scheme& scheme_;
  const Levels& levels_;
  std::size_t rows_, columns_;
  std::span<std::byte> codes_;
  std::span<float> scales_, zero_points_;
};

}  // namespace

GridFormat::GridFormat(const Scheme& scheme, std::size_t columns)
    : scheme_(scheme),
      columns_(columns),
      bits_(CodeBits::of(scheme.format)),
      levels_(bits_ ? Levels(bits_->levels()) : Levels::of(scheme.format.dtype())) {
  if (!bits_) return;
  for (const ScaleBits::Part part : kParts) part_bits_.emplace_back(scheme.format.block(), part);
}

std::unique_ptr<RoundingGrid> GridFormat::strip(std::size_t rows, std::span<std::byte> codes, std::span<float> scales,
                                                std::span<float> zero_points) const {
  if (bits_) {
    return std::make_unique<BlockGrid>(scheme_.format.block(), *bits_, part_bits_, levels_, rows, columns_, codes);
  }
  return std::make_unique<ScaledGrid>(scheme_, levels_, rows, columns_, codes, scales, zero_points);
}

}  // namespace imago::guided
