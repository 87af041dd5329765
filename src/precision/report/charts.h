#pragma once

// The charts of a page. Each is drawn twice, for wide and for narrow screens; the style sheet shows the one that fits.

#include <span>

#include "imago/precision.h"
#include "precision/report/html_writer.h"

namespace imago::precision {

/// The size of a drawing in its own units, which are pixels where there is room.
struct ChartSize {
  double width = 720, height = 400;
  bool narrow = false;
};

/// Opens <svg> with a title and a description for those who do not see it. Close with close("svg").
void open_chart(HtmlWriter& html, const ChartSize& size, std::string_view title, std::string_view description);

/// Size against cost, the front as a line.
void draw_curve(HtmlWriter& html, const QualityCurve& curve);

/// One distribution as a histogram, several as ranges from the median to the largest.
void draw_spreads(HtmlWriter& html, std::span<const DivergenceSpread> spreads);

/// The share of each type in the bytes of a model.
void draw_type_shares(HtmlWriter& html, std::span<const TypedTensor> plan);

}  // namespace imago::precision
