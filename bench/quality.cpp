// What each type costs: cosine and relative RMSE of a round trip of 1 Mi random weights, as the Markdown table of
// docs/format-errors.md. Pass --dtypes to leave out the block formats.

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "imago/error.h"
#include "imago/weights.h"

namespace {

using namespace imago;

constexpr std::size_t kRows = 1024;
constexpr std::size_t kCols = 1024;
constexpr std::uint64_t kSeed = 1;

/// One way of finding the scales.
struct Choice {
  Granularity granularity;
  Calibrator calibrator;
  std::string_view name;
};

constexpr Choice kChoices[] = {
    {Granularity::tensor, Calibrator::absmax, "absmax, tensor"},
    {Granularity::tensor, Calibrator::percentile, "percentile 99.9, tensor"},
    {Granularity::tensor, Calibrator::mse, "mse, tensor"},
    {Granularity::tensor, Calibrator::absmean, "absmean, tensor"},
    {Granularity::group, Calibrator::absmax, "absmax, groups of 32"},
    {Granularity::group, Calibrator::percentile, "percentile 99.9, groups of 32"},
    {Granularity::group, Calibrator::mse, "mse, groups of 32"},
    {Granularity::group, Calibrator::absmean, "absmean, groups of 32"},
};

/// False where a choice means nothing for the type, or the same as its neighbour in the table.
bool applies(DType dtype, const Choice& choice) {
  if (bits(dtype) >= 32 && choice.calibrator != Calibrator::absmax) return false;
  if (!is_scaled(dtype)) return choice.granularity == Granularity::tensor && choice.calibrator == Calibrator::absmax;
  switch (choice.calibrator) {
    case Calibrator::absmax:
    case Calibrator::mse: return true;
    // The 99.9th percentile of 32 magnitudes is the largest; binary scales are a mean and have no percentile.
    case Calibrator::percentile: return choice.granularity != Granularity::group && dtype != DType::binary;
    case Calibrator::absmean: return dtype == DType::ternary;
  }
  return false;
}

Scheme scheme_of(DType dtype, const Choice& choice) {
  Scheme scheme(dtype);
  scheme.granularity = choice.granularity;
  scheme.group = choice.granularity == Granularity::group ? 32 : 0;
  scheme.calibrator = choice.calibrator;
  return scheme;
}

/// No code of `bits` bits per weight brings independent Gaussian weights closer than this: the mean squared error of
/// rate R is at least 2^(-2R) of the variance, and the best reconstruction is orthogonal to its error.
double cosine_limit(double bits) { return std::sqrt(1 - std::exp2(-2 * bits)); }

std::string cosine_text(double cosine) {
  // Enough digits to tell good types apart: 0.99996 and 1 - 3e-9 must not both read 1.000.
  return 1 - cosine < 1e-6 ? (cosine >= 1 ? "1" : fmt::format("1 - {:.1e}", 1 - cosine))
                           : fmt::format("{:.6f}", cosine);
}

void print_row(const WeightStore& gaussian, const WeightStore& uniform, const Scheme& scheme, std::string_view scales) {
  const Distortion g = gaussian.distortion(scheme);
  const Distortion u = uniform.distortion(scheme);
  const std::shared_ptr<const Version> version = gaussian.morph(scheme);
  const double bits = version ? 8 * static_cast<double>(version->bytes()) / static_cast<double>(version->count())
                              : scheme.format.bits();
  fmt::print("| {} | {} | {:.2f} | {} | {:.2e} | {} | {} | {:.2e} |\n", scheme.format.name(), scales, bits,
             cosine_text(g.cosine), g.relative_rmse, cosine_text(cosine_limit(bits)), cosine_text(u.cosine),
             u.relative_rmse);
}

void print_table(bool with_blocks) {
  WeightStore gaussian(kRows, kCols);
  gaussian.he_randomize(kSeed, 2);  // standard deviation 1
  WeightStore uniform(kRows, kCols);
  uniform.randomize(kSeed, 1);

  fmt::print(
      "| type | scales | bits per weight | Gaussian: cosine | relative RMSE | cosine limit at these bits | "
      "uniform: cosine | relative RMSE |\n|---|---|---:|---:|---:|---:|---:|---:|\n");
  for (const DTypeInfo& type : kDTypes) {
    for (const Choice& choice : kChoices) {
      if (!applies(type.id, choice)) continue;
      print_row(gaussian, uniform, scheme_of(type.id, choice), is_scaled(type.id) ? choice.name : "none");
    }
  }
  if (!with_blocks) return;
  for (const BlockFormatInfo& block : kBlockFormats) print_row(gaussian, uniform, block.id, "in the block");
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() > 1 || (arguments.size() == 1 && arguments[0] != "--dtypes")) {
      throw UsageError("usage: imago_quality [--dtypes]");
    }
    print_table(arguments.empty());
  } catch (const std::exception& error) {
    fmt::print(stderr, "imago_quality: {}\n", error.what());
    return 1;
  }
  return 0;
}
