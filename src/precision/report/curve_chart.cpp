// The chart of size against cost.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "precision/report/charts.h"
#include "precision/report/words.h"

namespace imago::precision {

namespace {

struct Box {
  double left, top, right, bottom;
  bool meets(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

constexpr double kDot = 5;
// Smaller costs relative to the largest count as zero: a scale that shows them shows nothing else.
constexpr double kNegligible = 1e-6;
constexpr double kLetter = 7, kLetterHeight = 12;  // approximate size of label letters: fonts differ

/// Places labels so that they do not overlap with anything.
class LabelPlacer {
 public:
  LabelPlacer(const Box& room, std::vector<Box> taken) : room_(room), taken_(std::move(taken)) {}

  struct Label {
    double x, y;
    std::string_view anchor;
  };
  /// None if there is no room: the point still has its tooltip and its row in the table.
  std::optional<Label> place(double x, double y, const std::string& text) {
    const double width = kLetter * static_cast<double>(text.size());
    const double gap = kDot + 3;
    const std::array<Label, 8> tries = {{{gap, 4, "start"},
                                         {-gap, 4, "end"},
                                         {0, -gap - 1, "middle"},
                                         {0, gap + 10, "middle"},
                                         {gap - 2, -gap + 2, "start"},
                                         {gap - 2, gap + 6, "start"},
                                         {-gap + 2, -gap + 2, "end"},
                                         {-gap + 2, gap + 6, "end"}}};
    for (const Label& at : tries) {
      const double left = x + at.x - (at.anchor == "start" ? 0 : at.anchor == "end" ? width : width / 2);
      const Box box{left - 3, y + at.y - kLetterHeight + 1, left + width + 3, y + at.y + 4};
      const bool inside =
          box.left >= room_.left && box.right <= room_.right && box.top >= room_.top && box.bottom <= room_.bottom;
      if (!inside || std::ranges::any_of(taken_, [&](const Box& other) { return box.meets(other); })) continue;
      taken_.push_back(box);
      return Label{x + at.x, y + at.y, at.anchor};
    }
    return std::nullopt;
  }

 private:
  Box room_;
  std::vector<Box> taken_;
};

struct Dot {
  const CurvePoint* point;
  double x = 0, y = 0;
  std::optional<LabelPlacer::Label> label = {};
};

class CurveChart {
 public:
  CurveChart(HtmlWriter& html, const QualityCurve& curve, const ChartSize& size)
      : html_(html), curve_(curve), size_(size), left_(size.narrow ? 46 : 60), bottom_(size.height - 44) {
    for (const CurvePoint& point : curve.points) {
      if (!std::isfinite(point.cost) || !(point.bits_per_weight > 0)) continue;
      dots_.push_back({&point});
      highest_ = std::max(highest_, point.cost);
      smallest_ = std::min(smallest_, point.bits_per_weight);
      largest_ = std::max(largest_, point.bits_per_weight);
    }
    for (const Dot& dot : dots_) {
      if (is_negligible(*dot.point)) {
        has_zero_ = true;
      } else {
        lowest_ = std::min(lowest_, dot.point->cost);
      }
    }
  }

  bool worth_drawing() const { return dots_.size() > 1; }

  void draw() {
    open_chart(html_, size_, curve_.heading,
               fmt::format("{} types by bits per weight and {}; the table below has the same figures", dots_.size(),
                           curve_.cost_name));
    const double zero_band = has_zero_ ? 30 : 0;
    const Axis x(largest_ / smallest_ > 5 ? AxisScale::log2 : AxisScale::linear, smallest_, largest_, left_ + 8,
                 size_.width - 14, size_.narrow ? 5 : 8);
    const std::optional<Axis> y = cost_axis(bottom_ - zero_band);
    draw_axes(x, y);
    for (Dot& dot : dots_) {
      dot.x = x.place(dot.point->bits_per_weight);
      dot.y = y && !is_negligible(*dot.point) ? y->place(dot.point->cost) : bottom_;
    }
    draw_front();
    draw_dots();
    html_.close("svg").line_break();
  }

 private:
  bool is_negligible(const CurvePoint& point) const { return point.cost <= kNegligible * highest_; }

  /// Logarithmic unless all costs are close together. None if no cost is positive.
  std::optional<Axis> cost_axis(double from) const {
    if (!(highest_ > 0)) return std::nullopt;
    const bool near = highest_ / lowest_ < 10;
    return Axis(near ? AxisScale::linear : AxisScale::log10, lowest_, highest_, from, 18);
  }

  void draw_axes(const Axis& x, const std::optional<Axis>& y) {
    if (y) {
      for (const AxisTick& tick : y->ticks()) {
        draw_line(html_, left_, tick.place, size_.width, tick.place, "grid");
        draw_text(html_, left_ - 6, tick.place + 4, "end", "tick", tick.label);
      }
    }
    if (has_zero_) {
      draw_line(html_, left_, bottom_, size_.width, bottom_, "grid");
      draw_text(html_, left_ - 6, bottom_ + 4, "end", "tick", "≈ 0");
    }
    for (const AxisTick& tick : x.ticks()) {
      draw_line(html_, tick.place, 14, tick.place, bottom_ + 6, "grid");
      draw_text(html_, tick.place, bottom_ + 20, "middle", "tick", tick.label);
    }
    draw_text(html_, (left_ + size_.width) / 2, size_.height - 6, "middle", "axis", "bits per weight");
    html_.leaf("text", curve_.cost_name, {{"x", "0"}, {"y", "10"}, {"class", "axis"}});
  }

  void draw_front() {
    std::vector<const Dot*> front;
    for (const Dot& dot : dots_) {
      if (dot.point->on_front) front.push_back(&dot);
    }
    std::ranges::sort(front, {}, &Dot::x);
    std::string points;
    for (const Dot* dot : front) points += fmt::format("{},{} ", number_text(dot->x), number_text(dot->y));
    if (front.size() > 1) html_.empty("polyline", {{"points", points}, {"class", "front"}});
  }

  /// Labels of the front are placed first, and its dots are drawn on top.
  void draw_dots() {
    std::vector<Dot*> order;
    std::vector<Box> taken;
    for (Dot& dot : dots_) {
      order.push_back(&dot);
      taken.push_back({dot.x - kDot, dot.y - kDot, dot.x + kDot, dot.y + kDot});
    }
    std::stable_partition(order.begin(), order.end(), [](const Dot* dot) { return dot->point->on_front; });
    LabelPlacer placer({left_, 12, size_.width, bottom_ + 12}, std::move(taken));
    for (Dot* dot : order) dot->label = placer.place(dot->x, dot->y, file_name(dot->point->name));
    std::ranges::reverse(order);
    for (const Dot* dot : order) draw_dot(*dot);
  }

  void draw_dot(const Dot& dot) {
    const CurvePoint& point = *dot.point;
    html_.open("g", {{"class", point.on_front ? "best" : "other"}});
    html_.leaf("title", fmt::format("{}: {:.2f} bits per weight, {}, {} {}", point.name, point.bits_per_weight,
                                    bytes_text(point.bytes), curve_.cost_name, figure_text(point.cost)));
    html_.empty("circle", {{"cx", dot.x}, {"cy", dot.y}, {"r", kDot}});
    if (dot.label) draw_text(html_, dot.label->x, dot.label->y, dot.label->anchor, "label", file_name(point.name));
    html_.close("g");
  }

  HtmlWriter& html_;
  const QualityCurve& curve_;
  ChartSize size_;
  double left_, bottom_;
  std::vector<Dot> dots_;
  bool has_zero_ = false;
  double lowest_ = std::numeric_limits<double>::infinity(), highest_ = 0;
  double smallest_ = std::numeric_limits<double>::infinity(), largest_ = 0;
};

}  // namespace

void draw_curve(HtmlWriter& html, const QualityCurve& curve) {
  for (const ChartSize& size : {ChartSize{.width = 760, .height = 420}, ChartSize{360, 400, true}}) {
    CurveChart chart(html, curve, size);
    if (chart.worth_drawing()) chart.draw();
  }
}

}  // namespace imago::precision
