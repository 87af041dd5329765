// A report as one HTML page.

#include <fmt/format.h>

#include "base/atomic_file.h"
#include "imago/precision.h"
#include "imago/system.h"
#include "precision/report/charts.h"
#include "precision/report/html_writer.h"
#include "precision/report/sections.h"
#include "precision/report/words.h"

namespace imago {

namespace {

using precision::HtmlWriter;

/// Keeps the browser from loading anything, whatever the names in a report contain.
constexpr const char* kPolicy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

void write_head(HtmlWriter& html, const PrecisionReport& report) {
  html.raw("<!doctype html>\n").open("html", {{"lang", "en"}}).line_break().open("head").line_break();
  html.empty("meta", {{"charset", "utf-8"}}).line_break();
  html.empty("meta", {{"name", "viewport"}, {"content", "width=device-width, initial-scale=1"}}).line_break();
  html.empty("meta", {{"http-equiv", "Content-Security-Policy"}, {"content", kPolicy}}).line_break();
  html.empty("meta", {{"name", "color-scheme"}, {"content", "light dark"}}).line_break();
  html.leaf("title", report.title).line_break();
  html.open("style").raw(precision::page_style()).close("style").line_break().close("head").line_break();
}

void write_header(HtmlWriter& html, const PrecisionReport& report) {
  html.open("header").line_break().leaf("p", "imago · precision report", {{"class", "eyebrow"}}).line_break();
  html.leaf("h1", report.title).line_break();
  if (!report.subtitle.empty()) html.leaf("p", report.subtitle, {{"class", "subtitle"}}).line_break();
  if (!report.summary.empty()) html.leaf("p", report.summary, {{"class", "summary"}}).line_break();
  html.close("header").line_break();
  if (report.facts.empty()) return;
  // Full rows: most reports have three, four or six figures.
  html.open("dl", {{"class", report.facts.size() % 4 == 0 ? "facts four" : "facts"}}).line_break();
  for (const ReportFact& fact : report.facts) {
    html.open("div").leaf("dt", fact.label).leaf("dd", fact.value);
    if (!fact.note.empty()) html.leaf("dd", fact.note, {{"class", "note"}});
    html.close("div").line_break();
  }
  html.close("dl").line_break();
}

void write_curve_table(HtmlWriter& html, const QualityCurve& curve) {
  html.open("div", {{"class", "scroll"}}).open("table", {{"class", "sortable"}}).open("thead").open("tr");
  html.leaf("th", "type", {{"scope", "col"}, {"class", "word"}});
  const auto heading = [&](std::string_view text) { html.leaf("th", text, {{"scope", "col"}, {"class", "number"}}); };
  heading("bits per weight");
  heading(curve.cost_name);
  for (const std::string& column : curve.columns) heading(column);
  heading("bytes");
  html.close("tr").close("thead").line_break().open("tbody");
  for (const CurvePoint& point : curve.points) {
    const auto number = [&](const std::string& text) { html.leaf("td", text, {{"class", "number"}}); };
    html.open("tr", {{"class", point.on_front ? "best" : "other"}}).open("th", {{"scope", "row"}});
    html.text(point.name).close("th");
    number(fmt::format("{:.2f}", point.bits_per_weight));
    number(precision::figure_text(point.cost));
    for (const std::string& cell : point.cells) number(cell);
    number(precision::count_text(point.bytes));
    html.close("tr").line_break();
  }
  html.close("tbody").close("table").close("div").line_break();
}

void write_curve(HtmlWriter& html, const QualityCurve& curve) {
  html.open("section").leaf("h2", curve.heading).line_break();
  if (!curve.explanation.empty()) html.leaf("p", curve.explanation, {{"class", "explain"}}).line_break();
  html.open("figure");
  precision::draw_curve(html, curve);
  html.close("figure").line_break();
  write_curve_table(html, curve);
  html.close("section").line_break();
}

void write_spread_table(HtmlWriter& html, std::span<const DivergenceSpread> spreads) {
  html.open("div", {{"class", "scroll"}}).open("table").open("thead").open("tr");
  html.leaf("th", "model", {{"scope", "col"}});
  for (const char* text : {"mean", "median", "99 %", "largest", "same top token", "positions"}) {
    html.leaf("th", text, {{"scope", "col"}, {"class", "number"}});
  }
  html.close("tr").close("thead").line_break().open("tbody");
  for (const DivergenceSpread& spread : spreads) {
    const DivergenceReport& report = spread.report;
    const auto number = [&](const std::string& text) { html.leaf("td", text, {{"class", "number"}}); };
    html.open("tr").leaf("th", spread.name, {{"scope", "row"}});
    for (const double value : {report.mean, report.median, report.percentile_99, report.largest}) {
      number(precision::figure_text(value));
    }
    number(precision::share_text(report.same_top));
    number(precision::count_text(report.tokens_scored));
    html.close("tr").line_break();
  }
  html.close("tbody").close("table").close("div").line_break();
}

void write_spreads(HtmlWriter& html, std::span<const DivergenceSpread> spreads) {
  if (spreads.empty()) return;
  html.open("section").leaf("h2", "How far predictions move").line_break();
  html.leaf(
      "p",
      spreads.size() == 1
          ? "At each scored position of the text the KL divergence says how far the predicted probabilities are "
            "from those of the original: 0 is the same, and the right end is where the two disagree."
          : "The KL divergence of each prediction from that of the original: the dot is the mean, the bar reaches "
            "from the median to 99 of 100 positions, the line to the worst.",
      {{"class", "explain"}});
  html.line_break().open("figure");
  precision::draw_spreads(html, spreads);
  html.close("figure").line_break();
  write_spread_table(html, spreads);
  html.close("section").line_break();
}

}  // namespace

std::string report_html(const PrecisionReport& report) {
  HtmlWriter html;
  write_head(html, report);
  html.open("body").open("main").line_break();
  write_header(html, report);
  for (const QualityCurve& curve : report.curves) write_curve(html, curve);
  precision::write_layer_section(html, report.layers);
  write_spreads(html, report.spreads);
  precision::write_plan_section(html, report.plan, report.plan_heading);
  precision::write_layer_table(html, report.layers);
  if (!report.notes.empty()) {
    html.open("section").leaf("h2", "Notes").open("ul", {{"class", "notes"}});
    for (const std::string& note : report.notes) html.leaf("li", note);
    html.close("ul").close("section").line_break();
  }
  html.open("footer").leaf("p", fmt::format("Made by imago {}.", version())).close("footer").close("main").line_break();
  html.open("script").raw(precision::page_script()).close("script").close("body").line_break().close("html");
  return html.line_break().finish();
}

void write_report_html(const PrecisionReport& report, const std::string& path) {
  const std::string page = report_html(report);
  AtomicFile file(path);
  file.write(page);
  file.commit();
}

}  // namespace imago
