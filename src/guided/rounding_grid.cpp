#include "guided/rounding_grid.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "guided/importance.h"
#include "imago/codec.h"
#include "quant/rows.h"

namespace imago::guided {

namespace {

class BlockGrid final : public RoundingGrid {
 public:
  BlockGrid(BlockFormat format, const CodeBits& bits, const ScaleBits& scale_bits, const ScaleBits& offset_bits,
            const Levels& levels, std::size_t rows, std::size_t columns, std::span<std::byte> codes)
      : format_(format),
        bits_(bits),
        scale_bits_(scale_bits),
        offset_bits_(offset_bits),
        levels_(levels),
        parts_(quant::block_parts(format)),
        rows_(rows),
        columns_(columns),
        codes_(codes),
        scale_units_(rows * columns / unit()),
        offset_units_(scale_units_.size()) {}

  std::size_t unit() const noexcept override { return static_cast<std::size_t>(info(format_).values); }
  bool adjusts_scales() const noexcept override { return scale_bits_.exist(); }
  bool adjusts_offsets() const noexcept override { return offset_bits_.exist(); }
  float nearest_scale(std::size_t row, std::size_t column, float wanted) const override {
    return nearest(scale_bits_, scale_units_[block_index(row, column)], wanted);
  }
  float nearest_offset(std::size_t row, std::size_t column, float wanted) const override {
    return nearest(offset_bits_, offset_units_[block_index(row, column)], wanted);
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
      if (adjusts_scales()) scale_units_[block_index(row, first)] = scale_bits_.unit(block);
      if (adjusts_offsets()) offset_units_[block_index(row, first)] = offset_bits_.unit(block);
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
  static float nearest(const ScaleBits& bits, float unit, float wanted) {
    return unit == 0 ? 0 : unit * bits.factor(bits.nearest(wanted / unit));
  }

  void store_scales(std::size_t row, std::size_t column, const StripScales& scales) {
    const std::size_t place = (row * columns_ + column) / scales.group, index = block_index(row, column);
    const std::size_t group = column % unit() / scales.group;
    if (adjusts_scales() && scale_units_[index] != 0) {
      scale_bits_.set(block_at(row, column), group, scale_bits_.nearest(scales.scales[place] / scale_units_[index]));
    }
    if (adjusts_offsets() && offset_units_[index] != 0) {
      offset_bits_.set(block_at(row, column), group,
                       offset_bits_.nearest(scales.offsets[place] / offset_units_[index]));
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
  const ScaleBits &scale_bits_, &offset_bits_;
  const Levels& levels_;
  quant::BlockParts parts_;
  std::size_t rows_, columns_;
  std::span<std::byte> codes_;
  std::vector<std::byte> blocks_;
  std::vector<float> scale_units_, offset_units_;  ///< one per block
};

class ScaledGrid final : public RoundingGrid {
 public:
  ScaledGrid(const Scheme& scheme, const Levels& levels, std::size_t rows, std::size_t columns,
             std::span<std::byte> codes, std::span<float> scales)
      : scheme_(scheme), levels_(levels), rows_(rows), columns_(columns), codes_(codes), scales_(scales) {}

  std::size_t unit() const noexcept override { return adjusts_scales() ? group() : columns_; }
  bool adjusts_scales() const noexcept override { return scheme_.granularity == Granularity::group; }
  bool adjusts_offsets() const noexcept override { return false; }
  /// Any positive number is possible.
  float nearest_scale(std::size_t, std::size_t, float wanted) const override {
    return std::max(wanted, std::numeric_limits<float>::min());
  }
  float nearest_offset(std::size_t, std::size_t, float) const override { return 0; }

  void choose(std::size_t first, std::span<const float> weights, std::span<const float> importance,
              StripScales& scales) override {
    scales.group = group();
    scales.scales.resize(rows_ * columns_ / group());
    scales.offsets.resize(scales.scales.size());
    for (std::size_t row = 0; row < rows_; ++row) {
      const std::size_t place = (row * columns_ + first) / group();
      if (adjusts_scales()) {
        const std::span<const float> own = weights.subspan(row * group(), group());
        scales.scales[place] = weighted_scale(scheme_.format.dtype(), own, importance);
      } else {
        const float scale = scales_[scheme_.granularity == Granularity::row ? row : 0];
        scales.scales[place] = scale == 0 ? 1 : scale;
      }
    }
  }

  /// The values are on the grid already, so the encoder returns the codes they came from.
  void store(std::span<const std::uint8_t> places, const StripScales& scales) override {
    if (adjusts_scales()) std::ranges::copy(scales.scales, scales_.begin());
    std::vector<float> values(places.size());
    for (std::size_t i = 0; i < places.size(); ++i) {
      values[i] = levels_.value(places[i]) * scales.scales[i / group()];
    }
    const std::size_t weights_per_scale = scheme_.granularity == Granularity::tensor ? values.size() : group();
    imago::encode(scheme_.format.dtype(), values, {scales_, weights_per_scale}, codes_);
  }

 private:
  /// Scales of rows and tensors are repeated for each row.
  std::size_t group() const noexcept {
    return scheme_.granularity == Granularity::group ? static_cast<std::size_t>(scheme_.group) : columns_;
  }

  const Scheme& scheme_;
  const Levels& levels_;
  std::size_t rows_, columns_;
  std::span<std::byte> codes_;
  std::span<float> scales_;
};

}  // namespace

bool GridFormat::exists(Format format) {
  return format.is_block() ? CodeBits::of(format.block()).has_value() : Levels::exist(format.dtype());
}

GridFormat::GridFormat(const Scheme& scheme, std::size_t columns)
    : scheme_(scheme),
      columns_(columns),
      bits_(scheme.format.is_block() ? CodeBits::of(scheme.format.block()) : std::nullopt),
      scale_bits_(bits_ ? std::optional<ScaleBits>(std::in_place, scheme.format.block(), ScaleBits::Part::scale)
                        : std::nullopt),
      offset_bits_(bits_ ? std::optional<ScaleBits>(std::in_place, scheme.format.block(), ScaleBits::Part::offset)
                         : std::nullopt),
      levels_(bits_ ? Levels(bits_->levels()) : Levels::of(scheme.format.dtype())) {}

std::unique_ptr<RoundingGrid> GridFormat::strip(std::size_t rows, std::span<std::byte> codes,
                                                std::span<float> scales) const {
  if (bits_) {
    return std::make_unique<BlockGrid>(scheme_.format.block(), *bits_, *scale_bits_, *offset_bits_, levels_, rows,
                                       columns_, codes);
  }
  return std::make_unique<ScaledGrid>(scheme_, levels_, rows, columns_, codes, scales);
}

}  // namespace imago::guided
