#include <cmath>

#include "imago.h"
#include "imago/files.h"
#include "testing/loom.h"
#include "testing/loom_files.h"
#include "testing/temp_dir.h"

namespace imago::testing {
namespace {

using Json = nlohmann::json;

class Compare : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string save(const std::string& name, const Network& network) const {
    save_network(network, file(name));
    return file(name);
  }
  TempDir folder_;
};

Network one_layer(const std::vector<float>& weights) {
  Network network(layer_list(dense(5, 3)));
  network.layers()[0].weights->set_master(weights);
  return network;
}

TEST_F(Compare, AgreesWithTheOriginal) {
  const Json reference = loom_reference("dna");
  const auto a = reference.at("a").get<std::vector<float>>(), b = reference.at("b").get<std::vector<float>>();
  const Json report = expect_json(
      imago_run({"compare", save("a.json", one_layer(a)), save("b.json", one_layer(b)), "--json", "-t", "1"}));
  EXPECT_NEAR(report.at("overall").get<double>(), reference.at("overall_a_b").get<double>(), 1e-6);
  ASSERT_EQ(report.at("layers").size(), 1u);
  const Json& layer = report.at("layers")[0];
  EXPECT_EQ(layer.at("name"), "layers.0");
  EXPECT_EQ(layer.at("type_a"), "float32");
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  EXPECT_NEAR(layer.at("rmse").get<double>(), std::sqrt(squares / 15), 1e-6);
  EXPECT_EQ(report.at("logic_shifts"), Json::array());
}

TEST_F(Compare, QuantizationLossIsVisible) {
  Network network(layer_list(dense(6, 8), sequential(layer_list(dense(8, 8), dense(8, 4))), softmax()), 3);
  const std::string whole = save("a.json", network);
  morph_network(network, DType::int4);
  const std::string narrow = save("b.entity", network);
  const Json report = expect_json(imago_run({"compare", whole, narrow, "--json"}));
  EXPECT_GT(report.at("overall").get<double>(), 0.9);
  EXPECT_LT(report.at("overall").get<double>(), 1.0);
  ASSERT_EQ(report.at("layers").size(), 3u);
  EXPECT_EQ(report.at("layers")[1].at("type_a"), "float32");
  EXPECT_EQ(report.at("layers")[1].at("type_b"), "int4");
  EXPECT_GT(report.at("layers")[1].at("rmse").get<double>(), 0.0);
  EXPECT_EQ(report.at("layers")[2].at("cosine"), 1.0);
  EXPECT_EQ(report.at("layers")[2].at("rmse"), 0.0);
  const Json strict = expect_json(imago_run({"compare", whole, narrow, "--json", "--strict"}));
  EXPECT_EQ(strict.at("layers")[0].at("cosine"), 0.0);
}

TEST_F(Compare, LayersThatMovedAreFound) {
  Network a(layer_list(dense(4, 4), dense(4, 4), dense(4, 3)), 1), b(layer_list(dense(4, 4), dense(4, 4)), 9);
  b.layers()[0].weights->set_master(a.layers()[1].weights->master());
  const std::string first = save("a.json", a), second = save("b.json", b);
  const Json report = expect_json(imago_run({"compare", first, second, "--json"}));
  ASSERT_EQ(report.at("logic_shifts").size(), 1u);
  const Json& shift = report.at("logic_shifts")[0];
  EXPECT_EQ(shift.at("source"), "layers.1");
  EXPECT_EQ(shift.at("target"), "layers.0");
  EXPECT_EQ(shift.at("source_at"), Json::parse("[0,0,0,1]"));
  EXPECT_NEAR(shift.at("overlap").get<double>(), 1, 1e-6);
  EXPECT_EQ(report.at("only_a"), 1);
  const ProcessResult text = imago_run({"compare", first, second});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  for (const char* words : {"Overall ", "layers.1", "Dense", "layers.1 of A is most like layers.0 of B: 1.000000",
                            "1 layers of A have no counterpart"}) {
    EXPECT_NE(text.out.find(words), std::string::npos) << words << " is missing from\n" << text.out;
  }
}

TEST_F(Compare, FailuresNameTheFile) {
  const std::string a = (loom_folder() / "dense_float32.json").string();
  expect_error(imago_run({"compare", a}), 2, "B is required");
  expect_error(imago_run({"compare", a, file("absent.json")}), 1, "absent.json");
  expect_error(imago_run({"compare", (loom_folder() / "grid_mixed.safetensors").string(), a}), 1,
               "is not a language model");
  folder_.write("cut.json", read_text(a).substr(0, 200));
  expect_error(imago_run({"compare", a, file("cut.json")}), 1, "cut.json: at byte ");
  folder_.write("arch.json", R"({"depth":1,"rows":1,"cols":1,"layers_per_cell":1,
    "layers":[{"z":0,"y":0,"x":0,"l":0,"type":"Dense","input_height":5,"output_height":3}]})");
  expect_error(imago_run({"compare", a, file("arch.json")}), 1, "layers.0 (Dense) has no weights");
}

}  // namespace
}  // namespace imago::testing
