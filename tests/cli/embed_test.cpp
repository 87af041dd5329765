// imago embed and rerank, and what inspect says about the models they take.

#include <cmath>
#include <fstream>

#include "imago.h"
#include "imago/data.h"
#include "testing/cross_encoder.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago::testing {
namespace {

using Json = nlohmann::json;

class Embed : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto missing = CrossEncoder::missing()) GTEST_SKIP() << *missing;
    model_.emplace();
    bert_ = *find_torch_model("bert_bf16");
    std::ifstream in(bert_ + "/reference.json");
    reference_ = Json::parse(in);
    for (const Json& id : reference_.at("ids")) ids_ += (ids_.empty() ? "" : ",") + id.dump();
  }
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }

  TempDir folder_;
  std::optional<CrossEncoder> model_;
  std::string bert_, ids_;
  Json reference_;
};

TEST_F(Embed, WritesTheHiddenStatesOfIds) {
  const ProcessResult result = imago_run({"embed", bert_, "--ids", ids_, "-o", file("hidden.safetensors")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Tensor<float> hidden = SafetensorsFile::open(file("hidden.safetensors")).read_float32("hidden");
  ASSERT_EQ(hidden.shape(), (Shape{reference_.at("ids").size(), 64}));
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    ASSERT_NEAR(hidden[i], reference_.at("hidden").at(i / 64).at(i % 64).get<double>(), 2e-3) << i;
  }
}

TEST_F(Embed, PoolsAndNormalizes) {
  const auto embedding = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"embed", bert_, "--ids", ids_, "--json"});
    const Json report = expect_json(imago_run(more));
    EXPECT_EQ(report.at("tokens"), reference_.at("ids").size());
    return report.at("embedding").get<std::vector<double>>();
  };
  const std::vector<double> first = embedding({"--pooling", "cls"}), last = embedding({"--pooling", "last"}),
                            mean = embedding({}), unit = embedding({"--normalize"});
  double squares = 0, of_unit = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    const Json& rows = reference_.at("hidden");
    double sum = 0;
    for (const Json& row : rows) sum += row.at(i).get<double>();
    EXPECT_NEAR(first[i], rows.front().at(i).get<double>(), 2e-3);
    EXPECT_NEAR(last[i], rows.back().at(i).get<double>(), 2e-3);
    EXPECT_NEAR(mean[i], sum / static_cast<double>(rows.size()), 2e-3);
    squares += mean[i] * mean[i];
    of_unit += unit[i] * unit[i];
  }
  EXPECT_NEAR(of_unit, 1, 1e-4);
  EXPECT_NEAR(unit[5], mean[5] / std::sqrt(squares), 1e-5);
}

TEST_F(Embed, SaysWhatIsWrong) {
  expect_error(imago_run({"embed", bert_}), 2, "one of --text, --file and --ids");
  expect_error(imago_run({"embed", bert_, "--ids", "1", "--text", "a"}), 2, "one of --text, --file and --ids");
  expect_error(imago_run({"embed", bert_, "--ids", "1,x"}), 2, "--ids: number 2");
  expect_error(imago_run({"embed", bert_, "--ids", "1", "--pooling", "most"}), 2, "mean, cls, last");
  expect_error(imago_run({"embed", bert_, "--ids", "1", "--json", "-o", file("x")}), 2, "choose one");
  expect_error(imago_run({"embed", bert_, "--text", "a"}), 1, "no tokenizer");
  expect_error(imago_run({"embed", bert_, "--ids", "256"}), 2, "the ids 0 to 255");
  expect_error(imago_run({"run", model_->path(), "-p", "a"}), 1, "makes embeddings");
  expect_error(imago_run({"logits", bert_, "--ids", "1", "-o", file("x")}), 1, "makes embeddings");
}

TEST_F(Embed, DocumentsAreSortedByScore) {
  folder_.write("documents.txt", "the ships.\n\na ship\r\nword\n");
  const std::vector<std::string> command = {"rerank",      model_->path(),        "--query", "ship?",
                                            "--documents", file("documents.txt"), "--json"};
  const Json all = expect_json(imago_run(command));
  ASSERT_EQ(all.at("results").size(), 3u);
  std::vector<double> scores;
  for (const Json& result : all.at("results")) scores.push_back(result.at("relevance_score").get<double>());
  EXPECT_TRUE(std::is_sorted(scores.rbegin(), scores.rend()));
  const std::vector<std::string> lines = {"the ships.", "a ship", "word"};
  for (const Json& result : all.at("results")) {
    EXPECT_EQ(result.at("document"), lines.at(result.at("index").get<std::size_t>()));
  }
  std::vector<std::string> top = command;
  top.insert(top.end(), {"--top", "1"});
  const Json best = expect_json(imago_run(top));
  ASSERT_EQ(best.at("results").size(), 1u);
  EXPECT_EQ(best.at("results").at(0), all.at("results").at(0));
  folder_.write("none.txt", "\n\n");
  expect_error(imago_run({"rerank", model_->path(), "--query", "a", "--documents", file("none.txt")}), 2,
               "has no documents");
  expect_error(
      imago_run({"rerank", bert_, "--tokenizer", model_->path(), "--query", "a", "--documents", file("documents.txt")}),
      1, "reranking needs a cross-encoder");
}

TEST_F(Embed, InspectSaysWhatTheModelIsAndNeeds) {
  const Json encoder = expect_json(imago_run({"inspect", bert_, "--json"})).at("language_model");
  EXPECT_EQ(encoder.at("architecture"), "bert");
  EXPECT_EQ(encoder.at("runs"), true);
  EXPECT_EQ(encoder.at("generates"), false);
  EXPECT_EQ(encoder.at("context"), 128);
  EXPECT_EQ(encoder.at("cache_bytes_per_token"), 0);
  EXPECT_EQ(encoder.at("active_parameters"), 2 * (4 * 64 * 64 + 2 * 64 * 128));
  EXPECT_EQ(encoder.at("fits"), true);
  EXPECT_TRUE(encoder.at("tokens_per_second_at_most").is_null());
  const ProcessResult text = imago_run({"inspect", bert_});
  EXPECT_NE(text.out.find("makes embeddings with it"), std::string::npos) << text.out;
  const auto decoder = find_torch_model("llama_tied_f32");
  if (!decoder) GTEST_SKIP() << missing_torch_model("llama_tied_f32");
  const ProcessResult llama = imago_run({"inspect", *decoder});
  EXPECT_NE(llama.out.find("tokens/s"), std::string::npos) << llama.out;
}

}  // namespace
}  // namespace imago::testing
