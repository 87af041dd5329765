// The page: whole, well-formed, closed to the outside, and the same for the same report.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include "imago/error.h"
#include "imago/precision.h"
#include "precision/report/charts.h"
#include "precision/report/html_writer.h"
#include "precision/report/sections.h"
#include "precision/report/words.h"
#include "testing/html.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr const char* kHostile = "</title><script>alert(1)</script> \"quoted\" 'it' & \x1b[31m \xff\xfe <img src=x>";

DivergenceReport spread_report(double mean) {
  DivergenceReport report{.reference_perplexity = 9.3, .perplexity = 9.5, .mean = mean, .median = mean / 3};
  report.percentile_99 = mean * 8;
  report.largest = mean * 30;
  report.same_top = 0.907;
  report.tokens_scored = 1000;
  report.histogram.assign(kDivergenceBins, 0);
  report.histogram[0] = 100;
  report.histogram[20] = 800;
  report.histogram[kDivergenceBins - 1] = 100;
  return report;
}

ComparedTensor layer_row(const std::string& name, double error) {
  return {.name = name,
          .type_a = "bfloat16",
          .type_b = "q4_k",
          .weights = 1024,
          .bytes_a = 2048,
          .bytes_b = 576,
          .cosine = 1 - error,
          .rmse = error / 10,
          .relative_rmse = error};
}

PrecisionReport full_report() {
  PrecisionReport report;
  report.title = "small beside large";
  report.subtitle = "a subtitle";
  report.summary = "B is smaller.";
  report.facts = {{"Size", "3.5× smaller", "40 → 11"}, {"Mean KL", "0.0366", ""}};
  QualityCurve curve{
      .heading = "Size and quality", .explanation = "", .cost_name = "mean KL", .columns = {"99 %"}, .points = {}};
  curve.points = {{"q4_k", 100, 4.5, 0.03, true, {"0.2"}},
                  {"q8_0", 200, 8.5, 0.0004, true, {"0.002"}},
                  {"float32", 900, 32, 0, true, {"0"}},
                  {"broken", 90, 4, kInfinity, false, {"∞"}}};
  report.curves = {curve};
  for (int block = 0; block < 3; ++block) {
    for (const char* role : {"attn_q", "attn_k", "ffn_down"}) {
      report.layers.push_back(layer_row("blk." + std::to_string(block) + "." + role + ".weight", 0.01 * (block + 1)));
      report.plan.push_back({report.layers.back().name, block == 1 ? "q6_k" : "q4_k", 1024, block == 1 ? 840u : 576u});
    }
  }
  report.layers.push_back(layer_row("token_embd.weight", 0.002));
  report.spreads = {{"q4_k", spread_report(0.03)}};
  report.notes = {"Only in A: x."};
  return report;
}

testing::HtmlPage expect_sound(const std::string& html) {
  const testing::HtmlPage page = testing::read_html(html);
  EXPECT_EQ(page.problems, std::vector<std::string>());
  EXPECT_EQ(testing::outside_references(html, page), std::vector<std::string>());
  EXPECT_EQ(page.count("script"), 1u) << "ours";
  return page;
}

TEST(ReportPage, ShowsAllParts) {
  const testing::HtmlPage page = expect_sound(report_html(full_report()));
  for (const char* words : {"small beside large", "B is smaller.", "3.5× smaller", "Size and quality", "q8_0",
                            "0.0004000", "∞", "Where the error is", "How far predictions move", "90.7 %",
                            "token_embd.weight", "Notes", "Types of the layers", "q6_k", "Only in A: x.", "0.980000"}) {
    EXPECT_TRUE(page.has_text(words)) << words;
  }
  // Wide and narrow drawings of a curve and a histogram, and one strip of types.
  EXPECT_EQ(page.count("svg"), 5u);
  EXPECT_EQ(page.count("desc"), 5u);
  EXPECT_EQ(page.count("circle"), 2u * 3) << "what is infinite is in the table only";
  EXPECT_EQ(page.count("h1"), 1u);
}

TEST(ReportPage, IsTheSameForTheSameReport) {
  EXPECT_EQ(report_html(full_report()), report_html(full_report()));
  const testing::TempDir folder;
  const std::string path = folder.path() / "page.html";
  write_report_html(full_report(), path);
  std::ifstream file(path, std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), report_html(full_report()));
  EXPECT_THROW(write_report_html(full_report(), folder.path() / "absent" / "page.html"), IoError);
}

TEST(ReportPage, HostileTextsStayTexts) {
  PrecisionReport report = full_report();
  report.title = report.subtitle = report.summary = report.plan_heading = kHostile;
  report.facts = {{kHostile, kHostile, kHostile}};
  QualityCurve& curve = report.curves[0];
  curve.heading = curve.explanation = curve.cost_name = curve.columns[0] = kHostile;
  for (CurvePoint& point : curve.points) point.name = point.cells[0] = kHostile;
  for (ComparedTensor& layer : report.layers) layer.name = layer.type_a = layer.type_b = layer.problem = kHostile;
  for (TypedTensor& tensor : report.plan) tensor.name = tensor.type = kHostile;
  report.spreads.push_back(report.spreads[0]);
  for (DivergenceSpread& spread : report.spreads) spread.name = kHostile;
  report.notes = {kHostile};
  const std::string html = report_html(report);
  const testing::HtmlPage page = expect_sound(html);
  EXPECT_EQ(page.count("img"), 0u);
  EXPECT_TRUE(page.has_text("<script>alert(1)</script>")) << "as words";
  EXPECT_EQ(html.find('\x1b'), std::string::npos);
  EXPECT_EQ(html.find('\xff'), std::string::npos);
  EXPECT_NE(html.find("\xEF\xBF\xBD"), std::string::npos) << "U+FFFD for what is not UTF-8";
}

TEST(ReportPage, PartsMayBeMissingOrOdd) {
  EXPECT_TRUE(expect_sound(report_html({})).has_text("imago"));
  PrecisionReport odd;
  QualityCurve nothing{.heading = "h", .explanation = "", .cost_name = "c", .columns = {}, .points = {}};
  QualityCurve zeros = nothing, alike = nothing, wild = nothing;
  zeros.points = {{"a", 1, 8, 0, true, {}}, {"b", 2, 16, 0, false, {}}};
  alike.points = {{"a", 1, 8, 0.5, true, {}}, {"b", 1, 8, 0.5, true, {}}};
  wild.points = {{"a", 1, 8, std::nan(""), false, {}},
                 {"b", 1, 0, 1e300, false, {}},
                 {"c", 1, 1, -3, false, {}},
                 {"d", 1, 64, 1e-300, false, {}}};
  odd.curves = {nothing, zeros, alike, wild};
  odd.spreads = {{"none", {}}};
  ComparedTensor unknown;
  unknown.name = "blk.99999999999999999999.x";
  unknown.weights = 1;
  odd.layers = {unknown, layer_row("layers.0", kInfinity), layer_row("", 0), layer_row("1.2", 1e-300)};
  odd.plan = {{"x", "q4_k", 0, 0}};
  const std::string html = report_html(odd);
  expect_sound(html);
  EXPECT_EQ(html.find("nan"), std::string::npos);
  EXPECT_EQ(html.find("\"inf"), std::string::npos);
}

TEST(LayerGrid, GoesByBlockAndRole) {
  const std::vector<std::string> names = {"token_embd.weight",
                                          "blk.1.ffn_down.weight",
                                          "blk.0.attn_q.weight",
                                          "blk.0.new.weight",
                                          "blk.0.ffn_down.weight",
                                          "blk.10.attn_q.weight",
                                          "blk.0.attn_q.weight",
                                          "layers.3",
                                          "x.y"};
  const precision::LayerGrid grid = precision::make_layer_grid(names);
  EXPECT_EQ(grid.columns, (std::vector<std::string>{"q", "down", "new"}));
  ASSERT_EQ(grid.rows.size(), 3u);
  constexpr std::size_t kNone = precision::LayerGrid::kNone;
  EXPECT_EQ(grid.rows[0].cells, (std::vector<std::size_t>{2, 4, 3}));
  EXPECT_EQ(grid.rows[1].cells, (std::vector<std::size_t>{kNone, 1, kNone}));
  EXPECT_EQ(grid.rows[2].block, 10u);
  EXPECT_EQ(grid.outside, (std::vector<std::size_t>{0, 6, 7, 8})) << "a repeated name is outside the grid";
}

TEST(Axis, MarksRoundValues) {
  const precision::Axis linear(precision::AxisScale::linear, 1.3, 8.6, 0, 100, 8);
  EXPECT_EQ(linear.ticks().front().label, "1");
  EXPECT_EQ(linear.ticks().back().label, "9");
  EXPECT_NEAR(linear.place(5), 50, 1e-9);
  const precision::Axis powers(precision::AxisScale::log10, 0.0004, 0.8, 0, 100, 6);
  std::vector<std::string> labels;
  for (const precision::AxisTick& tick : powers.ticks()) labels.push_back(tick.label);
  EXPECT_EQ(labels, (std::vector<std::string>{"0.001", "0.01", "0.1", "1"}));
  EXPECT_LT(powers.place(0.001), powers.place(0.01));
  EXPECT_EQ(powers.place(1e-9), 0) << "values outside map to the end";
}

TEST(ReportWords, AreShort) {
  EXPECT_EQ(precision::bytes_text(11675648), "11.1 MiB");
  EXPECT_EQ(precision::bytes_text(12), "12 B");
  EXPECT_EQ(precision::count_text(1234567), "1,234,567");
  EXPECT_EQ(precision::figure_text(0.0365931), "0.03659");
  EXPECT_EQ(precision::figure_text(4), "4.000");
  EXPECT_EQ(precision::figure_text(1.8e6), "1.800e+06");
  EXPECT_EQ(precision::figure_text(kInfinity), "∞");
  EXPECT_EQ(precision::share_text(0.99997), "99.997 %");
  EXPECT_EQ(precision::change_text(0.0201), "+2.0 %");
  EXPECT_EQ(precision::size_change_text(100, 29), "3.45× smaller");
  EXPECT_EQ(precision::size_change_text(29, 100), "3.45× larger");
  EXPECT_EQ(precision::file_name("/a/b/model/"), "model");
}

}  // namespace
}  // namespace imago
