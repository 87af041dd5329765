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

using precision::count_text, precision::figure_text, precision::HtmlWriter;

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

void write_curve(HtmlWriter& html, const QualityCurve& curve) {
  precision::open_section(html, curve.heading, curve.explanation);
  html.open("figure");
  precision::draw_curve(html, curve);
  html.close("figure").line_break();
  std::vector<std::string> columns = {"bits per weight", curve.cost_name};
  columns.insert(columns.end(), curve.columns.begin(), curve.columns.end());
  columns.emplace_back("bytes");
  precision::open_table(html, precision::TableKind::sortable, {"type"}, columns);
  for (const CurvePoint& point : curve.points) {
    html.open("tr", {{"class", point.on_front ? "best" : "other"}}).leaf("th", point.name, {{"scope", "row"}});
    precision::write_numbers(html, {fmt::format("{:.2f}", point.bits_per_weight), figure_text(point.cost)});
    precision::write_numbers(html, point.cells);
    precision::write_numbers(html, {count_text(point.bytes)});
    html.close("tr").line_break();
  }
  precision::close_table(html);
  html.line_break().close("section").line_break();
}

void write_spreads(HtmlWriter& html, std::span<const DivergenceSpread> spreads) {
  if (spreads.empty()) return;
  precision::open_section(
      html, "How far predictions move",
      spreads.size() == 1
          ? "At each scored position of the text the KL divergence says how far the predicted probabilities are "
            "from those of the original: 0 is the same, and the right end is where the two disagree."
          : "The KL divergence of each prediction from that of the original: the dot is the mean, the bar reaches "
            "from the median to 99 of 100 positions, the line to the worst.");
  html.open("figure");
  precision::draw_spreads(html, spreads);
  html.close("figure").line_break();
  precision::open_table(html, precision::TableKind::plain, {"model"},
                        {"mean", "median", "99 %", "largest", "same top token", "positions"});
  for (const auto& [name, report] : spreads) {
    html.open("tr").leaf("th", name, {{"scope", "row"}});
    precision::write_numbers(
        html, {figure_text(report.mean), figure_text(report.median), figure_text(report.percentile_99),
               figure_text(report.largest), precision::share_text(report.same_top), count_text(report.tokens_scored)});
    html.close("tr").line_break();
  }
  precision::close_table(html);
  html.line_break().close("section").line_break();
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
