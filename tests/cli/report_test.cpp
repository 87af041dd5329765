// compare and sweep as a user calls them: figures as JSON, and the page with the same figures.

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "imago.h"
#include "imago/files.h"
#include "testing/byte_model.h"
#include "testing/html.h"

namespace imago::testing {
namespace {

using Json = nlohmann::json;

std::string page_at(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

HtmlPage expect_page(const std::string& path) {
  const std::string html = page_at(path);
  HtmlPage page = read_html(html);
  EXPECT_EQ(page.problems, std::vector<std::string>());
  EXPECT_EQ(outside_references(html, page), std::vector<std::string>());
  return page;
}

/// As the page shows a figure.
std::string figure(double value) { return value == 0 ? "0" : fmt::format("{:#.4g}", value); }
std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

class Reports : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto missing = ByteModel::missing()) GTEST_SKIP() << *missing;
    model_.emplace();
    std::ofstream(model_->file("text.txt"), std::ios::binary) << ByteModel::text(6 * 32);
  }
  std::string file(const std::string& name) const { return model_->file(name); }
  std::string morphed(const std::string& type) const {
    const std::string out = file(type + ".gguf");
    const ProcessResult made = imago_run({"morph", model_->path(), out, "--to", type, "--pure", "-q", "-t", "1"});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    return out;
  }
  std::optional<ByteModel> model_;
};

TEST_F(Reports, HelpIsThere) {
  expect_help("compare");
  expect_help("sweep");
}

TEST_F(Reports, CompareWritesAPageWithTheFiguresOfJson) {
  const std::string page_file = file("page.html");
  const std::vector<std::string> command = {"compare",
                                            model_->path(),
                                            morphed("q4_0"),
                                            "--text",
                                            file("text.txt"),
                                            "--ctx",
                                            "32",
                                            "--html",
                                            page_file,
                                            "--json",
                                            "-t",
                                            "1"};
  const Json report = expect_json(imago_run(command));
  for (const char* key : {"overall", "perplexity_a", "perplexity_b", "kl_mean", "kl_median", "kl_p99", "kl_max"}) {
    EXPECT_GT(report.at(key).get<double>(), 0) << key;
  }
  std::size_t counted = 0;
  for (const Json& bin : report.at("kl_histogram")) counted += bin.at("count").get<std::size_t>();
  EXPECT_EQ(counted, report.at("tokens_scored"));
  EXPECT_EQ(report.at("names_only_b"), Json::parse(R"(["rope_freqs.weight"])"));
  EXPECT_EQ(report.at("logic_shifts"), Json::array());
  const HtmlPage page = expect_page(page_file);
  for (const char* key : {"kl_mean", "kl_median", "kl_p99", "kl_max", "perplexity_a", "perplexity_b"}) {
    EXPECT_TRUE(page.has_text(figure(report.at(key).get<double>()))) << key;
  }
  EXPECT_TRUE(page.has_text(percent(report.at("same_top").get<double>())));
  EXPECT_TRUE(page.has_text(fmt::format("{:.6f}", report.at("overall").get<double>())));
  for (const Json& layer : report.at("layers")) {
    EXPECT_TRUE(page.has_text(layer.at("name").get<std::string>())) << layer;
    EXPECT_TRUE(page.has_text(fmt::format("{:.6f}", layer.at("cosine").get<double>()))) << layer;
    EXPECT_TRUE(page.has_text(figure(layer.at("rmse").get<double>()))) << layer;
  }
  const std::string first = page_at(page_file);
  EXPECT_EQ(imago_run(command).exit_code, 0);
  EXPECT_EQ(page_at(page_file), first) << "the same figures give the same bytes";
}

TEST_F(Reports, SweepWritesAPageWithTheFiguresOfJson) {
  const std::string page_file = file("sweep.html");
  const Json report =
      expect_json(imago_run({"sweep", model_->path(), "--types", "q8_0,q4_0,f16,q5_1", "--text", file("text.txt"),
                             "--ctx", "32", "--html", page_file, "--json", "-t", "1"}));
  ASSERT_EQ(report.at("points").size(), 4u);
  const HtmlPage page = expect_page(page_file);
  for (const Json& point : report.at("points")) {
    EXPECT_TRUE(page.has_text(point.at("type").get<std::string>()));
    EXPECT_TRUE(page.has_text(figure(point.at("kl_mean").get<double>()))) << point;
    EXPECT_TRUE(page.has_text(figure(point.at("perplexity").get<double>()))) << point;
    EXPECT_TRUE(page.has_text(fmt::format("{:.2f}", point.at("bits_per_weight").get<double>()))) << point;
  }
  EXPECT_EQ(report.at("points")[2].at("type"), "float16");
  EXPECT_EQ(report.at("points")[2].at("kl_mean"), 0.0) << "as it is stored";
  EXPECT_EQ(
      report.at("points")[1].at("bytes"),
      expect_json(imago_run({"morph", model_->path(), file("x.gguf"), "--to", "q4_0", "--pure", "--dry-run", "--json"}))
          .at("bytes_after"));
  const ProcessResult text = imago_run({"sweep", model_->path(), "--types", "q8_0", "-t", "1"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("*  q8_0"), std::string::npos) << text.out;
}

TEST_F(Reports, HostileNamesStayNames) {
  const std::string name = "<script>alert(1)</script>\"'&";
  const std::pair<std::string, Tensor<float>> a[] = {{name, Tensor<float>({2, 2}, {1, 2, 3, 4})}};
  const std::pair<std::string, Tensor<float>> b[] = {{name, Tensor<float>({2, 2}, {1, 2, 3, 5})}};
  save_safetensors(file("a.safetensors"), a);
  save_safetensors(file("b.safetensors"), b);
  const Json report = expect_json(
      imago_run({"compare", file("a.safetensors"), file("b.safetensors"), "--html", file("hostile.html"), "--json"}));
  EXPECT_EQ(report.at("layers")[0].at("name"), name);
  EXPECT_EQ(report.at("layers")[0].at("rmse"), 0.5);
  const HtmlPage page = expect_page(file("hostile.html"));
  EXPECT_TRUE(page.has_text(name));
  EXPECT_EQ(page.count("script"), 1u);
}

TEST_F(Reports, NetworksAreSweptAndComparedOnData) {
  Network network(layer_list(dense(4, 8, Activation::relu), dense(8, 3)), 7);
  save_network(network, file("net.json"));
  morph_network(network, DType::int2);
  save_network(network, file("net2.json"));
  std::string csv = "a,b,c,d,class\n";
  for (int i = 0; i < 30; ++i) csv += fmt::format("{},{},{},{},{}\n", i % 5, i % 7, i % 3, i % 2, i % 3);
  std::ofstream(file("data.csv"), std::ios::binary) << csv;
  const Json compared = expect_json(imago_run({"compare", file("net.json"), file("net2.json"), "--data",
                                               file("data.csv"), "--html", file("net.html"), "--json"}));
  const HtmlPage compared_page = expect_page(file("net.html"));
  for (const char* key : {"loss_a", "loss_b"}) {
    EXPECT_TRUE(compared_page.has_text(figure(compared.at(key).get<double>()))) << key;
  }
  EXPECT_TRUE(compared_page.has_text(percent(compared.at("accuracy_b").get<double>())));
  const Json swept = expect_json(
      imago_run({"sweep", file("net.json"), "--data", file("data.csv"), "--html", file("net.html"), "--json"}));
  ASSERT_EQ(swept.at("points").size(), 21u);
  EXPECT_EQ(swept.at("points")[1].at("loss"), swept.at("loss")) << "float32 is what it was";
  const HtmlPage swept_page = expect_page(file("net.html"));
  for (const Json& point : swept.at("points")) {
    EXPECT_TRUE(swept_page.has_text(figure(point.at("loss").get<double>()))) << point;
  }
}

TEST_F(Reports, MistakesAreTold) {
  const std::string model = model_->path(), q8 = morphed("q8_0");
  expect_error(imago_run({"compare", model, q8, "--data", file("x.csv")}), 2, "--data is for networks of layers");
  expect_error(imago_run({"compare", model, q8, "--text", file("text.txt"), "--ctx", "4096"}), 1,
               "fewer than one window");
  expect_error(imago_run({"compare", model, q8, "--html", file("absent/page.html")}), 1, "there is no folder");
  expect_error(imago_run({"compare", model, q8, "--text", file("absent.txt")}), 1, "absent.txt");
  expect_error(imago_run({"sweep", model, "--types", "q4_9"}), 2, "q4_9");
  expect_error(imago_run({"sweep", model, "--text", file("text.txt"), "--ctx", "4096"}), 1, "fewer than one window");
  expect_error(imago_run({"sweep", file("model.safetensors")}), 1, "give the folder");
  expect_error(imago_run({"sweep", model, "--types", "q8_0", "--plan", file("config.json")}), 1, "config.json");
  EXPECT_FALSE(std::filesystem::exists(file("absent")));
}

}  // namespace
}  // namespace imago::testing
