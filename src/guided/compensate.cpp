#include "guided/compensate.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "base/parallel.h"
#include "guided/code_bits.h"
#include "guided/importance.h"
#include "guided/levels.h"
#include "guided/scale_search.h"
#include "imago/codec.h"
#include "math/products.h"
#include "quant/rows.h"
#include "weights/calibrate.h"
#include "weights/scheme.h"

namespace imago::guided {

namespace {

/// Rows that a thread rounds together: enough for the products of matrices, and few enough that a panel of them stays
/// near. A multiple of 8, so that strips begin at whole bytes.
constexpr std::size_t kStripRows = 32;

/// What a unit of columns is rounded to, for all rows of a strip: value = scale · level - offset.
struct UnitScales {
  std::size_t group = 0;               ///< columns per scale
  std::vector<float> scales, offsets;  ///< [rows][width / group]; no offsets: empty
};

/// A type as compensation sees it. One object per strip.
class Grid {
 public:
  virtual ~Grid() = default;
  virtual const Levels& levels() const noexcept = 0;
  /// Columns that get their scales together; divides Feedback::kPanel.
  virtual std::size_t width() const noexcept = 0;
  /// For columns `first` … of `rows` rows, [rows][width].
  virtual void choose(std::size_t first, std::span<const float> weights, std::size_t rows,
                      std::span<const float> importance, UnitScales& scales) = 0;
  /// The outcome for the same columns: places among the levels, [rows][width].
  virtual void store(std::size_t first, std::span<const std::uint8_t> places, std::size_t rows) = 0;
  virtual void finish() {}

 protected:
  Grid() = default;
  Grid(const Grid&) = default;
  Grid& operator=(const Grid&) = default;
};

// ---- block formats

class BlockGrid final : public Grid {
 public:
  BlockGrid(BlockFormat format, const CodeBits& bits, const Levels& levels, std::size_t cols, std::byte* strip)
      : format_(format), bits_(bits), levels_(levels), parts_(quant::block_parts(format)), cols_(cols), strip_(strip) {}

  const Levels& levels() const noexcept override { return levels_; }
  std::size_t width() const noexcept override { return static_cast<std::size_t>(info(format_).values); }

  void choose(std::size_t, std::span<const float> weights, std::size_t rows, std::span<const float> importance,
              UnitScales& scales) override {
    blocks_.resize(rows * block_bytes());
    imago::encode(format_, weights, blocks_, importance);
    scales.group = static_cast<std::size_t>(parts_.group);
    const std::size_t groups = width() / scales.group;
    scales.scales.resize(rows * groups);
    scales.offsets.resize(parts_.has_offset ? rows * groups : 0);
    quant::Expanded expanded;
    for (std::size_t row = 0; row < rows; ++row) {
      parts_.expand(blocks_.data() + row * block_bytes(), expanded);
      std::copy_n(expanded.scales, groups, scales.scales.begin() + static_cast<std::ptrdiff_t>(row * groups));
      if (!parts_.has_offset) continue;
      std::copy_n(expanded.offsets, groups, scales.offsets.begin() + static_cast<std::ptrdiff_t>(row * groups));
    }
  }

  void store(std::size_t first, std::span<const std::uint8_t> places, std::size_t rows) override {
    for (std::size_t row = 0; row < rows; ++row) {
      std::byte* block = blocks_.data() + row * block_bytes();
      for (std::size_t i = 0; i < width(); ++i) bits_.set(block, i, levels_.code(places[row * width() + i]));
      std::memcpy(strip_ + (row * cols_ + first) / width() * block_bytes(), block, block_bytes());
    }
  }

 private:
  std::size_t block_bytes() const noexcept { return static_cast<std::size_t>(info(format_).bytes); }

  BlockFormat format_;
  const CodeBits& bits_;
  const Levels& levels_;
  quant::BlockParts parts_;
  std::size_t cols_;
  std::byte* strip_;
  std::vector<std::byte> blocks_;
};

// ---- dtypes with scales

class ScaledGrid final : public Grid {
 public:
  /// `scales` are those of the strip; the grid finds those of groups, and takes those of rows or tensors as they are.
  ScaledGrid(const Scheme& scheme, const Levels& levels, std::size_t rows, std::size_t cols, std::span<float> scales,
             std::span<std::byte> strip)
      : scheme_(scheme),
        levels_(levels),
        rows_(rows),
        cols_(cols),
        scales_(scales),
        strip_(strip),
        values_(rows * cols) {}

  const Levels& levels() const noexcept override { return levels_; }
  std::size_t width() const noexcept override {
    return scheme_.granularity == Granularity::group ? static_cast<std::size_t>(scheme_.group)
                                                     : std::min(cols_, Feedback::kPanel);
  }

  void choose(std::size_t first, std::span<const float> weights, std::size_t rows, std::span<const float> importance,
              UnitScales& scales) override {
    const std::size_t columns = weights.size() / rows;
    scales.group = columns;
    scales.scales.resize(rows);
    for (std::size_t row = 0; row < rows; ++row) {
      float& scale = scales_[place(first, row)];
      if (scheme_.granularity == Granularity::group) {
        scale = weighted_scale(scheme_.format.dtype(), weights.subspan(row * columns, columns), importance);
      }
      scales.scales[row] = scale == 0 ? 1 : scale;
    }
  }

  void store(std::size_t first, std::span<const std::uint8_t> places, std::size_t rows) override {
    const std::size_t columns = places.size() / rows;
    for (std::size_t row = 0; row < rows; ++row) {
      const float scale = scales_[place(first, row)];
      for (std::size_t i = 0; i < columns; ++i) {
        values_[row * cols_ + first + i] = levels_.value(places[row * columns + i]) * (scale == 0 ? 1 : scale);
      }
    }
  }

  /// Values that are on the grid already: the encoder gives the codes they came from.
  void finish() override {
    const std::size_t group = scheme_.granularity == Granularity::group ? width()
                              : scheme_.granularity == Granularity::row ? cols_
                                                                        : rows_ * cols_;
    imago::encode(scheme_.format.dtype(), values_, {scales_, group}, strip_);
  }

 private:
  std::size_t place(std::size_t first, std::size_t row) const noexcept {
    switch (scheme_.granularity) {
      case Granularity::tensor: return 0;
      case Granularity::row: return row;
      case Granularity::group: break;
    }
    return (row * cols_ + first) / width();
  }

  const Scheme& scheme_;
  const Levels& levels_;
  std::size_t rows_, cols_;
  std::span<float> scales_;
  std::span<std::byte> strip_;
  std::vector<float> values_;
};

// ---- the columns of a strip, one after the other

class StripRounder {
 public:
  StripRounder(std::span<const float> weights, std::size_t rows, const Feedback& feedback,
               std::span<const float> importance, Grid& grid)
      : weights_(weights),
        rows_(rows),
        cols_(feedback.columns()),
        feedback_(feedback),
        importance_(importance),
        grid_(grid),
        errors_(rows * cols_) {}

  void run() {
    for (std::size_t p = 0; p * Feedback::kPanel < cols_; ++p) round_panel(p);
    grid_.finish();
  }

 private:
  void round_panel(std::size_t p) {
    const std::size_t first = p * Feedback::kPanel, width = feedback_.panel_width(p);
    const std::span<const float> panel = feedback_.panel(p);
    current_.resize(rows_ * width);
    for (std::size_t row = 0; row < rows_; ++row) {
      std::copy_n(weights_.data() + row * cols_ + first, width, current_.data() + row * width);
    }
    if (first != 0) {
      math::gemm({.m = rows_, .n = width, .k = first, .a = math::Transpose::yes},
                 std::span<const float>(errors_).first(first * rows_), panel.first(first * width), current_,
                 math::Write::add);
    }
    for (std::size_t at = 0; at < width; at += grid_.width()) {
      round_unit(p, at, std::min(grid_.width(), width - at));
    }
  }

  /// Columns at … at + count - 1 of panel p.
  void round_unit(std::size_t p, std::size_t at, std::size_t count) {
    const std::size_t first = p * Feedback::kPanel, width = feedback_.panel_width(p);
    unit_.resize(rows_ * count);
    for (std::size_t row = 0; row < rows_; ++row) {
      std::copy_n(current_.data() + row * width + at, count, unit_.data() + row * count);
    }
    grid_.choose(first + at, unit_, rows_, importance_.subspan(first + at, count), scales_);
    places_.resize(rows_ * count);
    const Levels& levels = grid_.levels();
    const float* feedback = feedback_.panel(p).data() + (first + at) * width;
    const std::size_t groups = count / scales_.group;
    for (std::size_t row = 0; row < rows_; ++row) {
      float* current = current_.data() + row * width;
      const float* weights = weights_.data() + row * cols_ + first;
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t column = at + i, group = row * groups + i / scales_.group;
        const float scale = scales_.scales[group], offset = scales_.offsets.empty() ? 0 : scales_.offsets[group];
        const float inverse = scale == 0 ? 0 : 1 / scale;
        const std::size_t place = levels.nearest((current[column] + offset) * inverse);
        places_[row * count + i] = static_cast<std::uint8_t>(place);
        const float error = weights[column] - (scale * levels.value(place) - offset);
        errors_[(first + column) * rows_ + row] = error;
        const float* factors = feedback + i * width;
        for (std::size_t k = column + 1; k < width; ++k) current[k] += error * factors[k];
      }
    }
    grid_.store(first + at, places_, rows_);
  }

  std::span<const float> weights_;
  std::size_t rows_, cols_;
  const Feedback& feedback_;
  std::span<const float> importance_;
  Grid& grid_;
  std::vector<float> errors_;  ///< [cols][rows]
  std::vector<float> current_, unit_;
  std::vector<std::uint8_t> places_;
  UnitScales scales_;
};

}  // namespace

bool can_compensate(Format format) {
  return format.is_block() ? CodeBits::of(format.block()).has_value() : Levels::exist(format.dtype());
}

EncodedMatrix encode_compensated(std::span<const float> weights, std::size_t rows, const Scheme& scheme,
                                 const Feedback& feedback) {
  const std::size_t cols = feedback.columns();
  const Format format = scheme.format;
  const ScaleLayout layout = scale_layout(scheme, rows, cols);
  const std::vector<float> importance = relative_importance(feedback.pivots());
  const std::optional<CodeBits> bits = format.is_block() ? CodeBits::of(format.block()) : std::nullopt;
  const Levels levels = bits ? Levels(bits->levels()) : Levels::of(format.dtype());
  EncodedMatrix encoded;
  encoded.codes.resize(packed_bytes(format, weights.size()));
  encoded.scale_group = layout.group;
  encoded.scales = scheme.granularity == Granularity::group || layout.count == 0
                       ? std::vector<float>(layout.count)
                       : weighted_scales(weights, cols, scheme, layout, importance);
  parallel_for_dynamic(rows, kStripRows, [&](std::size_t begin, std::size_t end) {
    const std::size_t count = end - begin;
    const std::span<std::byte> strip =
        std::span(encoded.codes).subspan(packed_bytes(format, begin * cols), packed_bytes(format, count * cols));
    std::unique_ptr<Grid> grid;
    if (bits) {
      grid = std::make_unique<BlockGrid>(format.block(), *bits, levels, cols, strip.data());
    } else {
      const std::size_t per_row = scheme.granularity == Granularity::tensor ? 0 : layout.count / rows;
      const std::span<float> scales = per_row == 0
                                          ? std::span(encoded.scales)
                                          : std::span(encoded.scales).subspan(begin * per_row, count * per_row);
      grid = std::make_unique<ScaledGrid>(scheme, levels, count, cols, scales, strip);
    }
    StripRounder(weights.subspan(begin * cols, count * cols), count, feedback, importance, *grid).run();
  });
  return encoded;
}

}  // namespace imago::guided
