// Axes, the parts of charts, and the chart of divergence distributions.

#include "precision/report/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "precision/report/words.h"

namespace imago::precision {

namespace {

/// 1, 2 or 5 times a power of ten, at least `step`.
double round_step(double step) {
  const double power = std::pow(10.0, std::floor(std::log10(step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= step * 0.999) return factor * power;
  }
  return 10 * power;
}

std::string power_label(AxisScale scale, int exponent) {
  if (scale == AxisScale::log2) return fmt::format("{:g}", std::pow(2.0, exponent));
  return exponent >= -4 && exponent <= 4 ? fmt::format("{:g}", std::pow(10.0, exponent))
                                         : fmt::format("1e{}", exponent);
}

}  // namespace

Axis::Axis(AxisScale scale, double low, double high, double from, double to, int ticks)
    : scale_(scale), low_(position(low)), high_(position(high)), from_(from), to_(to) {
  if (scale_ == AxisScale::linear) {
    tick_linear(ticks);
  } else {
    tick_powers(ticks);
  }
}

double Axis::position(double value) const noexcept {
  if (scale_ == AxisScale::linear) return value;
  return scale_ == AxisScale::log2 ? std::log2(value) : std::log10(value);
}

double Axis::place(double value) const noexcept {
  const double share = std::clamp((position(value) - low_) / (high_ - low_), 0.0, 1.0);
  return from_ + share * (to_ - from_);
}

void Axis::tick_linear(int ticks) {
  if (!(high_ > low_)) high_ = low_ + std::max(1e-12, std::abs(low_));
  const double step = round_step((high_ - low_) / ticks);
  low_ = std::floor(low_ / step + 1e-9) * step;
  high_ = std::ceil(high_ / step - 1e-9) * step;
  const int count = static_cast<int>(std::round((high_ - low_) / step));
  for (int i = 0; i <= count; ++i) {
    const double value = low_ + i * step;
    ticks_.push_back({place(value), fmt::format("{:.4g}", std::abs(value) < step / 1000 ? 0.0 : value)});
  }
}

void Axis::tick_powers(int ticks) {
  const double margin = std::max(0.04 * (high_ - low_), 0.05);
  low_ -= margin;
  high_ += margin;
  const double base = scale_ == AxisScale::log2 ? 2.0 : 10.0;
  const int first = static_cast<int>(std::floor(low_)), last = static_cast<int>(std::floor(high_));
  const int powers = last - static_cast<int>(std::ceil(low_)) + 1;
  const int step = std::max(1, (powers + ticks - 1) / ticks);
  // With few powers there is room for steps between them.
  std::vector<double> factors = {1};
  if (scale_ == AxisScale::log2 && 2 * powers <= ticks) factors = {1, 1.5};
  if (scale_ == AxisScale::log10 && 3 * powers <= ticks) factors = {1, 2, 5};
  for (int exponent = first - (first % step + step) % step; exponent <= last; exponent += step) {
    for (const double factor : factors) {
      const double value = factor * std::pow(base, exponent), at = position(value);
      if (at < low_ || at > high_) continue;
      ticks_.push_back({place(value), factor == 1 ? power_label(scale_, exponent) : fmt::format("{:.4g}", value)});
    }
  }
}

void open_chart(HtmlWriter& html, const ChartSize& size, std::string_view title, std::string_view description) {
  html.open("svg", {{"viewBox", fmt::format("0 0 {} {}", number_text(size.width), number_text(size.height))},
                    {"class", size.narrow ? "chart narrow" : "chart wide"},
                    {"role", "img"},
                    {"aria-label", title}});
  html.leaf("desc", description);
}

void draw_line(HtmlWriter& html, double x1, double y1, double x2, double y2, std::string_view kind) {
  html.empty("line", {{"x1", x1}, {"y1", y1}, {"x2", x2}, {"y2", y2}, {"class", kind}});
}

void draw_text(HtmlWriter& html, double x, double y, std::string_view anchor, std::string_view kind,
               std::string_view text) {
  html.leaf("text", text, {{"x", x}, {"y", y}, {"text-anchor", anchor}, {"class", kind}});
}

namespace {

constexpr std::string_view kAxisTitle = "KL divergence of a prediction (nats)";
constexpr double kLeast = 1e-7, kMost = 100;  // the range of the bins of a DivergenceReport

double in_range(double value) { return std::isfinite(value) ? std::clamp(value, kLeast, kMost) : kMost; }

void tick_marks(HtmlWriter& html, const Axis& axis, double top, double bottom) {
  for (const AxisTick& tick : axis.ticks()) {
    draw_line(html, tick.place, top, tick.place, bottom, "grid");
    draw_text(html, tick.place, bottom + 16, "middle", "tick", tick.label);
  }
}

// ---- one

void draw_histogram(HtmlWriter& html, const DivergenceReport& report, const ChartSize& size) {
  const std::vector<std::uint64_t>& bins = report.histogram;
  const auto filled = [](std::uint64_t count) { return count != 0; };
  const auto first = static_cast<std::size_t>(std::ranges::find_if(bins, filled) - bins.begin());
  if (first == bins.size()) return;
  const auto last =
      bins.size() - 1 - static_cast<std::size_t>(std::find_if(bins.rbegin(), bins.rend(), filled) - bins.rbegin());
  const double top = 56, bottom = size.height - 42, left = 8;
  const double low = first == 0 ? kLeast / 10 : divergence_bin_start(first);
  const double high = last + 1 >= bins.size() ? kMost * 10 : divergence_bin_start(last + 1);
  const Axis axis(AxisScale::log10, low, high, left, size.width - 8, size.narrow ? 5 : 9);
  open_chart(
      html, size, "Distribution of the divergence",
      fmt::format("{} positions by their divergence: half are below {}, 99 of 100 below {}",
                  count_text(report.tokens_scored), figure_text(report.median), figure_text(report.percentile_99)));
  tick_marks(html, axis, top, bottom);
  const double most = static_cast<double>(*std::ranges::max_element(bins));
  for (std::size_t bin = first; bin <= last; ++bin) {
    if (bins[bin] == 0) continue;
    // Values outside the range of the bins are drawn as one more bin.
    const double begin = bin == 0 ? kLeast / std::pow(10.0, 0.25) : divergence_bin_start(bin);
    const double end = bin + 1 == bins.size() ? begin * std::pow(10.0, 0.25) : divergence_bin_start(bin + 1);
    const double height = std::max(1.0, static_cast<double>(bins[bin]) / most * (bottom - top));
    html.open("g", {{"class", "bar"}});
    const std::string range = bin == 0                 ? fmt::format("below {}", figure_text(kLeast))
                              : bin + 1 == bins.size() ? fmt::format("{} and more", figure_text(kMost))
                                                       : fmt::format("{} to {}", figure_text(begin), figure_text(end));
    html.leaf("title",
              fmt::format("{}: {} positions, {}", range, count_text(bins[bin]),
                          share_text(static_cast<double>(bins[bin]) / static_cast<double>(report.tokens_scored))));
    html.empty("rect", {{"x", axis.place(begin) + 0.5},
                        {"y", bottom - height},
                        {"width", std::max(1.0, axis.place(end) - axis.place(begin) - 1)},
                        {"height", height}});
    html.close("g");
  }
  const std::pair<const char*, double> markers[] = {
      {"median", report.median}, {"mean", report.mean}, {"99 %", report.percentile_99}};
  double row = 14;
  for (const auto& [name, value] : markers) {
    const double x = axis.place(in_range(value));
    draw_line(html, x, row + 3, x, bottom, "marker");
    const bool at_right = x > size.width - 120;
    draw_text(html, at_right ? x - 5 : x + 5, row, at_right ? "end" : "start", "label",
              fmt::format("{} {}", name, figure_text(value)));
    row += 15;
  }
  draw_text(html, size.width / 2, size.height - 6, "middle", "axis", kAxisTitle);
  html.close("svg").line_break();
}

// ---- several

void draw_ranges(HtmlWriter& html, std::span<const DivergenceSpread> spreads, ChartSize size) {
  constexpr double kRow = 24;
  size.height = kRow * static_cast<double>(spreads.size()) + 62;
  // Less than a millionth counts as nothing.
  constexpr double kShown = 1e-6;
  double low = kMost, high = kShown;
  for (const DivergenceSpread& spread : spreads) {
    low = std::min(low, std::max(in_range(spread.report.median), kShown));
    high = std::max(high, in_range(spread.report.largest));
  }
  const double left = size.narrow ? 84 : 130, top = 8, bottom = size.height - 42;
  const Axis axis(AxisScale::log10, low, high, left, size.width - 10, size.narrow ? 4 : 8);
  open_chart(html, size, "Divergence of each type",
             "For each type the median, the mean, the 99th percentile and the largest divergence");
  tick_marks(html, axis, top, bottom);
  double y = top + kRow / 2;
  for (const DivergenceSpread& spread : spreads) {
    const DivergenceReport& report = spread.report;
    const auto line = [&](double from, double to, const char* kind) {
      draw_line(html, axis.place(in_range(from)), y, axis.place(in_range(to)), y, kind);
    };
    html.open("g", {{"class", "range"}});
    html.leaf("title",
              fmt::format("{}: median {}, mean {}, 99 % {}, largest {}", spread.name, figure_text(report.median),
                          figure_text(report.mean), figure_text(report.percentile_99), figure_text(report.largest)));
    draw_text(html, left - 10, y + 4, "end", "label", file_name(spread.name));
    line(report.percentile_99, report.largest, "whisker");
    line(report.median, report.percentile_99, "body");
    html.empty("circle", {{"cx", axis.place(in_range(report.mean))}, {"cy", y}, {"r", 4.5}});
    html.close("g");
    y += kRow;
  }
  draw_text(html, (left + size.width) / 2, size.height - 6, "middle", "axis", kAxisTitle);
  html.close("svg").line_break();
}

}  // namespace

void draw_spreads(HtmlWriter& html, std::span<const DivergenceSpread> spreads) {
  for (const ChartSize& size : {ChartSize{.width = 760, .height = 300}, ChartSize{360, 280, true}}) {
    if (spreads.size() == 1) {
      draw_histogram(html, spreads.front().report, size);
    } else if (!spreads.empty()) {
      draw_ranges(html, spreads, size);
    }
  }
}

}  // namespace imago::precision
