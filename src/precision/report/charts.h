#pragma once

// The charts of a page. Each is drawn twice, for wide and for narrow screens; the style sheet shows the one that fits.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "imago/precision.h"
#include "precision/report/html_writer.h"

namespace imago::precision {

enum class AxisScale : std::uint8_t { linear, log2, log10 };

struct AxisTick {
  double place = 0;
  std::string label;
};

/// Maps values to positions on a chart, and places the ticks.
class Axis {
 public:
  /// Maps `low` to `from` and `high` to `to`, after widening the range a little; linear scales widen to round values.
  /// Logarithmic scales need low > 0. `ticks`: about the most ticks.
  Axis(AxisScale scale, double low, double high, double from, double to, int ticks = 6);

  /// Values outside the range map to the nearer end.
  double place(double value) const noexcept;
  const std::vector<AxisTick>& ticks() const noexcept { return ticks_; }

 private:
  double position(double value) const noexcept;  // on the scale
  void tick_linear(int ticks);
  void tick_powers(int ticks);

  AxisScale scale_;
  double low_, high_;  // on the scale: logarithms if it is logarithmic
  double from_, to_;
  std::vector<AxisTick> ticks_;
};

/// The size of a drawing in its own units: pixels, if there is room.
struct ChartSize {
  double width = 720, height = 400;
  bool narrow = false;
};

/// Opens <svg> with a title and a description for screen readers. Close with close("svg").
void open_chart(HtmlWriter& html, const ChartSize& size, std::string_view title, std::string_view description);
/// A line of class `kind`.
void draw_line(HtmlWriter& html, double x1, double y1, double x2, double y2, std::string_view kind);
/// A text of class `kind`. `anchor`: which of its points is at x: "start", "middle" or "end".
void draw_text(HtmlWriter& html, double x, double y, std::string_view anchor, std::string_view kind,
               std::string_view text);

/// Size against cost, with the Pareto front as a line.
void draw_curve(HtmlWriter& html, const QualityCurve& curve);

/// One distribution as a histogram, several as ranges from the median to the largest.
void draw_spreads(HtmlWriter& html, std::span<const DivergenceSpread> spreads);

}  // namespace imago::precision
