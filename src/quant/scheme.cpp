#include "quant/scheme.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "base/parallel.h"
#include "imago/error.h"
#include "imago/numeric.h"

namespace imago {

namespace {

bool is_unsigned(Format format) noexcept {
  return format.has_scales() && info(format.dtype()).kind == NumberKind::unsigned_integer;
}

void check_granularity(const Scheme& scheme) {
  const bool grouped = scheme.granularity == Granularity::group;
  if (grouped && scheme.group != 32 && scheme.group != 64 && scheme.group != 128) {
    throw UsageError(fmt::format("scales can be shared by groups of 32, 64 or 128 weights, not {}", scheme.group));
  }
  if (!grouped && scheme.group != 0) {
    throw UsageError(fmt::format("a group of {} weights is given, but the scales are not one per group", scheme.group));
  }
  if (scheme.granularity != Granularity::tensor && !scheme.format.has_scales()) {
    throw UsageError(fmt::format("{} takes no scales per row or group: {}", scheme.format.name(),
                                 scheme.format.is_wide() ? "it has no scale" : "its blocks carry their own"));
  }
}

void check_calibrator(const Scheme& scheme) {
  if (scheme.calibrator != Calibrator::absmax && !scheme.format.has_scales()) {
    throw UsageError(fmt::format("{} has no scale that a calibrator could find", scheme.format.name()));
  }
  if (scheme.calibrator == Calibrator::absmean && scheme.format != Format(DType::ternary)) {
    throw UsageError(fmt::format("the calibrator absmean is for ternary weights, not for {}", scheme.format.name()));
  }
  if (scheme.calibrator == Calibrator::percentile && !(scheme.percentile > 0 && scheme.percentile <= 1)) {
    throw UsageError(fmt::format("the percentile must be above 0 and at most 1, not {}", scheme.percentile));
  }
}

void check_row_multiple(std::size_t cols, std::size_t unit, std::string_view what) {
  if (cols % unit != 0) {
    throw ShapeError(fmt::format("a row of {} weights is not a multiple of the {} of {}", cols, what, unit));
  }
}

/// The first weight whose two bits are 10, `count` if there is none. Padding bits are 0 and never match.
std::size_t find_ternary_hole(std::span<const std::byte> codes, std::size_t count) {
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const unsigned byte = std::to_integer<unsigned>(codes[i]);
    unsigned holes = byte & 0xAAu & ~(byte << 1);  // high bit of a pair set, low bit clear
    if (holes == 0) continue;
    std::size_t index = 4 * i;
    for (; (holes & 0x80u) == 0; holes <<= 2) ++index;
    return index;
  }
  return count;
}

// Weights worth a thread: absmax, the cheapest calibrator, takes some 10 µs for them.
constexpr std::size_t kGrainWeights = 16384;

AsymmetricScale derive_one(const Scheme& scheme, std::span<const float> weights) {
  const DType dtype = scheme.format.dtype();
  const bool zeros = has_zero_points(scheme);
  switch (scheme.calibrator) {
    case Calibrator::absmax:
      return zeros ? derive_asymmetric_scale(dtype, weights) : AsymmetricScale{derive_scale(dtype, weights)};
    case Calibrator::percentile:
      return zeros ? derive_asymmetric_percentile_scale(dtype, weights, scheme.percentile)
                   : AsymmetricScale{derive_percentile_scale(dtype, weights, scheme.percentile)};
    case Calibrator::mse:
      return zeros ? derive_asymmetric_mse_scale(dtype, weights) : AsymmetricScale{derive_mse_scale(dtype, weights)};
    case Calibrator::absmean: break;
  }
  return {derive_absmean_scale(weights)};
}

/// The lowest and the highest weight of each chunk, with 0 between them. The absmax scale of these few is that of all
/// weights: it looks at nothing but the largest and the least of them and of 0.
std::vector<float> extremes(std::span<const float> weights) {
  const std::size_t chunks = (weights.size() + kGrainWeights - 1) / kGrainWeights;
  std::vector<float> found(2 * chunks);
  parallel_rows(chunks, kGrainWeights, [&](std::size_t chunk) {
    const std::size_t first = chunk * kGrainWeights;
    float low = 0;
    float high = 0;
    for (const float w : weights.subspan(first, std::min(kGrainWeights, weights.size() - first))) {
      low = w < low ? w : low;  // false for NaN, which is passed over
      high = w > high ? w : high;
    }
    found[2 * chunk] = low;
    found[2 * chunk + 1] = high;
  });
  return found;
}

}  // namespace

Scheme checked_scheme(const Scheme& scheme) {
  check_granularity(scheme);
  check_calibrator(scheme);
  Scheme checked = scheme;
  if (scheme.calibrator != Calibrator::percentile) checked.percentile = Scheme().percentile;
  if (!is_unsigned(scheme.format)) checked.zero_points = Scheme().zero_points;
  return checked;
}

ScaleLayout scale_layout(const Scheme& scheme, std::size_t rows, std::size_t cols) {
  check_row_multiple(cols, static_cast<std::size_t>(scheme.format.block_values()), "block");
  if (!scheme.format.has_scales()) return {};
  const std::size_t count = rows * cols;
  std::size_t group = 0;
  switch (scheme.granularity) {
    case Granularity::tensor: return {1, count};
    case Granularity::row: group = cols; break;
    case Granularity::group:
      group = static_cast<std::size_t>(scheme.group);
      check_row_multiple(cols, group, "group");
      break;
  }
  return {count == 0 ? 0 : count / group, group};
}

void ScaleValues::normalize() noexcept {
  if (std::ranges::all_of(zero_points, [](float zero) { return zero == 0; })) zero_points.clear();
}

bool has_zero_points(const Scheme& scheme) noexcept { return scheme.zero_points && is_unsigned(scheme.format); }

ScaleValues derive_scales(const Scheme& scheme, const ScaleLayout& layout, std::span<const float> weights) {
  if (layout.count == 0) return {};
  assert(layout.count * layout.group == weights.size());
  const bool averages = info(scheme.format.dtype()).kind == NumberKind::binary;
  ScaleValues values;
  values.scales.resize(layout.count);
  if (has_zero_points(scheme)) values.zero_points.resize(layout.count);
  const auto set = [&](std::size_t i, const AsymmetricScale& derived) {
    values.scales[i] = derived.scale;
    if (!values.zero_points.empty()) values.zero_points[i] = derived.zero_point;
  };
  if (layout.count == 1 && scheme.calibrator == Calibrator::absmax && !averages) {
    set(0, derive_one(scheme, extremes(weights)));
  } else {
    parallel_rows(
        layout.count, layout.group,
        [&](std::size_t i) { set(i, derive_one(scheme, weights.subspan(i * layout.group, layout.group))); },
        kGrainWeights);
  }
  values.normalize();
  return values;
}

std::optional<Format> fitting_type(Format format, std::size_t cols) noexcept {
  using enum BlockFormat;
  constexpr std::pair<BlockFormat, BlockFormat> kSmaller[] = {
      {q2_k, q4_0},     {q3_k, q4_0},    {q4_k, q5_0},      {q5_k, q5_1},    {q6_k, q8_0},    {tq1_0, q4_0},
      {tq2_0, q4_0},    {nvfp4, mxfp4},  {iq4_xs, iq4_nl},  {iq1_s, iq4_nl}, {iq1_m, iq4_nl}, {iq2_xxs, iq4_nl},
      {iq2_xs, iq4_nl}, {iq2_s, iq4_nl}, {iq3_xxs, iq4_nl}, {iq3_s, iq4_nl}, {q1_0, q4_0},    {q2_0, q4_0},
  };
  const auto fits = [&](Format type) { return cols % static_cast<std::size_t>(type.block_values()) == 0; };
  if (fits(format)) return format;
  for (const auto& [type, smaller] : kSmaller) {
    if (format == Format(type) && fits(smaller)) return smaller;
  }
  return std::nullopt;
}

bool is_master(const Scheme& scheme) noexcept { return scheme.format == Format(DType::float32); }

void check_scale(float scale) {
  if (!(scale >= 0) || !std::isfinite(scale)) {
    throw UsageError(fmt::format("a scale of {} is not possible: scales are finite and not negative", scale));
  }
}

void check_zero_point(Format format, float zero_point) {
  if (zero_point == 0) return;
  if (!is_unsigned(format)) throw UsageError(fmt::format("{} has no zero point", format.name()));
  const float most = info(format.dtype()).scale_divisor;
  if (!(zero_point > 0 && zero_point <= most) || zero_point != std::trunc(zero_point)) {
    throw UsageError(fmt::format("a zero point of {} is not possible: those of {} are integers from 0 to {}",
                                 zero_point, format.name(), most));
  }
}

void check_packed_size(Format format, std::size_t count, std::size_t bytes) {
  const std::size_t wanted = packed_bytes(format, count);
  if (bytes != wanted) {
    throw ShapeError(fmt::format("{} weights in {} take {} bytes, not {}", count, format.name(), wanted, bytes));
  }
}

void check_codes(Format format, std::size_t count, std::span<const std::byte> codes) {
  check_packed_size(format, count, codes.size());
  if (count == 0) return;
  // Weights fill a byte from the top, so padding is at the bottom of the last one. Blocks have none.
  const auto values = static_cast<std::size_t>(format.unit_values());
  const unsigned used = static_cast<unsigned>(count % values * static_cast<std::size_t>(format.unit_bytes()) % 8);
  const unsigned unused = (8 - used) % 8;
  if ((std::to_integer<unsigned>(codes.back()) & ((1u << unused) - 1)) != 0) {
    throw UsageError(
        fmt::format("the {} bits after the last of {} weights in {} must be 0", unused, count, format.name()));
  }
  if (format == Format(DType::ternary)) {
    const std::size_t hole = find_ternary_hole(codes, count);
    if (hole != count) throw UsageError(fmt::format("ternary weight {} has the code 10, which has no value", hole));
  }
}

}  // namespace imago
