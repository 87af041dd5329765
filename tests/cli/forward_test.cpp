#include <cstring>
#include <filesystem>

#include "imago.h"
#include "imago/files.h"
#include "testing/loom.h"
#include "testing/loom_files.h"
#include "testing/temp_dir.h"

namespace imago::testing {
namespace {

using Tensors = std::vector<std::pair<std::string, Tensor<float>>>;

std::vector<float> floats(const Tensor<float>& tensor) { return {tensor.values().begin(), tensor.values().end()}; }

void expect_near(const std::vector<float>& got, const std::vector<float>& wanted, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], wanted[i], 1e-5 + 1e-4 * std::fabs(wanted[i])) << what << " " << i;
  }
}

class Forward : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string write(const std::string& name, const Tensors& tensors) const {
    save_safetensors(file(name), tensors);
    return file(name);
  }
  ProcessResult run(const std::string& network, const std::string& x, std::vector<std::string> more = {}) const {
    std::vector<std::string> words{"forward", network, "--input", x, "-o", file("y.safetensors")};
    words.insert(words.end(), more.begin(), more.end());
    return imago_run(words);
  }
  bool has_output() const { return std::filesystem::exists(file("y.safetensors")); }
  TempDir folder_;
};

TEST_F(Forward, GivesWhatTheOriginalGave) {
  for (const std::string name : {"dense_float32", "dense_int4", "cnn1_ternary", "softmax_float32", "rmsnorm_float16"}) {
    const nlohmann::json reference = loom_reference(name);
    const std::string x = write("x.safetensors", {{"x", loom_tensor(reference, "input")}});
    const ProcessResult result = run(loom(name + ".json"), x);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out + result.err, "");
    const SafetensorsFile y = SafetensorsFile::open(file("y.safetensors"));
    ASSERT_EQ(y.tensors().size(), 1u);
    const Tensor<float> wanted = loom_tensor(reference, "output");
    EXPECT_EQ(y.require("y").shape, wanted.shape()) << name;
    expect_near(floats(y.read_float32("y")), floats(wanted), name);
  }
}

TEST_F(Forward, MultipliesBlocks) {
  save_network(Network(layer_list(dense(64, 32, Activation::tanh), swiglu(32, 96)), 3), file("net.json"));
  Tensor<float> x(Shape{3, 64});
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i)));
  const std::string input = write("x.safetensors", {{"x", x}});
  for (const std::string out : {"q4.json", "q4.entity", "q4.safetensors", "q4.gguf"}) {
    EXPECT_EQ(imago_run({"morph", file("net.json"), file(out), "--to", "q4_0"}).exit_code, 0);
    // The same network in float32: what the blocks stand for.
    EXPECT_EQ(imago_run({"convert", file(out), file("wide.json"), "--to", "float32"}).exit_code, 0);
    Network wide = load_network(file("wide.json"));
    const std::vector<float> wanted = floats(wide.forward(x));
    EXPECT_EQ(run(file(out), input).err, "");
    const std::vector<float> exact = floats(SafetensorsFile::open(file("y.safetensors")).read_float32("y"));
    expect_near(exact, wanted, out);
    EXPECT_EQ(run(file(out), input, {"--fast"}).err, "");
    EXPECT_NE(floats(SafetensorsFile::open(file("y.safetensors")).read_float32("y")), exact);
  }
  expect_error(run(file("q4.json"), input, {"--fast", "--grad-output", input}), 2, "leave out --fast");
}

TEST_F(Forward, ComputesInFloat64WhereTheWeightsAre) {
  // Weights, input and result that float32 cannot hold, in every format that a network travels in.
  const std::vector<double> weights = {1 / 3.0, -1 / 7.0, 1e-12, 1 / 9.0, 1 / 11.0, -1 / 13.0};
  const std::vector<double> x = {1 + 1e-12, 2 / 3.0, -1 / 17.0};
  Network network(layer_list(dense(3, 2)));
  Layer& layer = network.layers()[0];
  layer.config.dtype = DType::float64;
  layer.weights->set_loaded(DType::float64, std::as_bytes(std::span(weights)), 1);
  save_network(network, file("net.json"));
  SafetensorsWriter writer(file("x.safetensors"), {{"x", SafetensorsType::f64, Shape{1, 3}}});
  writer.write("x", std::as_bytes(std::span(x)));
  writer.commit();
  for (const std::string net : {"net.json", "net.entity", "net.safetensors", "net.gguf"}) {
    if (net != "net.json") {
      EXPECT_EQ(imago_run({"convert", file("net.json"), file(net)}).exit_code, 0);
    }
    EXPECT_EQ(run(file(net), file("x.safetensors")).err, "");
    const SafetensorsFile result = SafetensorsFile::open(file("y.safetensors"));
    const SafetensorsTensor& y = result.require("y");
    ASSERT_EQ(y.type, SafetensorsType::f64);
    std::vector<double> got(2);
    ASSERT_EQ(y.bytes.size(), 16u);
    std::memcpy(got.data(), y.bytes.data(), 16);
    for (std::size_t row = 0; row < 2; ++row) {
      double wanted = 0;
      for (std::size_t i = 0; i < 3; ++i) wanted += weights[3 * row + i] * x[i];
      EXPECT_NEAR(got[row], wanted, 1e-15) << net;
    }
  }
}

TEST_F(Forward, GivesTheGradientsOfTheOriginal) {
  const nlohmann::json reference = loom_reference("dense_float32");
  const std::string x = write("x.safetensors", {{"x", loom_tensor(reference, "input")}});
  const auto gradient = reference.at("grad_output").get<std::vector<float>>();
  const std::string dy =
      write("dy.safetensors", {{"dy", Tensor<float>(loom_tensor(reference, "output").shape(), gradient)}});
  EXPECT_EQ(run(loom("dense_float32.json"), x, {"--grad-output", dy, "-t", "1", "--quiet", "--seed", "4"}).err, "");
  const SafetensorsFile y = SafetensorsFile::open(file("y.safetensors"));
  EXPECT_EQ(y.tensors().size(), 3u);
  expect_near(floats(y.read_float32("y")), floats(loom_tensor(reference, "output")), "y");
  expect_near(floats(y.read_float32("dx")), reference.at("grad_input").get<std::vector<float>>(), "dx");
  EXPECT_EQ(y.require("dw.layers.0").shape, (Shape{15}));
  expect_near(floats(y.read_float32("dw.layers.0")), reference.at("grad_weights").get<std::vector<float>>(), "dw");
}

TEST_F(Forward, NamesGradientsByPathAndGivesTokenIdsNone) {
  Network network(layer_list(embedding(5, 4), sequential(layer_list(dense(4, 3), residual())),
                             parallel("add", layer_list(dense(3, 2), dense(3, 2)))),
                  7);
  save_network(network, file("net.json"));
  const Tensor<float> ids({2, 3}, {0, 1, 2, 3, 4, 0});
  const Tensor<float> y = network.forward_training(ids);
  const Tensor<float> dy(y.shape(), std::vector<float>(y.size(), 0.5f));
  network.clear_gradients();
  network.backward(dy);
  const ProcessResult result = run(file("net.json"), write("x.safetensors", {{"x", ids}}),
                                   {"--grad-output", write("dy.safetensors", {{"dy", dy}})});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const SafetensorsFile got = SafetensorsFile::open(file("y.safetensors"));
  EXPECT_EQ(floats(got.read_float32("dx")), std::vector<float>(6, 0.0f));
  EXPECT_EQ(floats(got.read_float32("dw.layers.0")), network.gradients()[0].weights);
  EXPECT_EQ(floats(got.read_float32("dw.layers.1.sequential_layers.0")), network.gradients()[1].children[0].weights);
  EXPECT_EQ(floats(got.read_float32("dw.layers.2.parallel_branches.1")), network.gradients()[2].children[1].weights);
  EXPECT_EQ(got.tensors().size(), 2u + 4u);
}

constexpr const char* kSoftmax = R"({"id":"s","depth":1,"rows":1,"cols":1,"layers_per_cell":1,
  "layers":[{"z":0,"y":0,"x":0,"l":0,"type":"Softmax","activation":"Linear","dtype":"float32"}]})";
constexpr const char* kDense = R"({"id":"d","depth":1,"rows":1,"cols":1,"layers_per_cell":1,
  "layers":[{"z":0,"y":0,"x":0,"l":0,"type":"Dense","input_height":2,"output_height":1}]})";

TEST_F(Forward, AnArchitectureRunsWhereNoLayerNeedsWeights) {
  const std::string x = write("x.safetensors", {{"x", Tensor<float>({1, 2}, {0, 0})}});
  folder_.write("softmax.json", kSoftmax);
  EXPECT_EQ(run(file("softmax.json"), x).exit_code, 0);
  EXPECT_EQ(floats(SafetensorsFile::open(file("y.safetensors")).read_float32("y")), (std::vector<float>{0.5f, 0.5f}));

  std::filesystem::remove(file("y.safetensors"));
  folder_.write("dense.json", kDense);
  expect_error(run(file("dense.json"), x), 1, "layers.0 (Dense) has no weights; give it some with 'imago train ");
  EXPECT_FALSE(has_output());
}

TEST_F(Forward, LegacyFp4IsAnOption) {
  const nlohmann::json reference = loom_reference("dense_fp4");
  const std::string x = write("x.safetensors", {{"x", loom_tensor(reference, "input")}});
  EXPECT_EQ(run(loom("dense_fp4.json"), x, {"--fp4-legacy"}).exit_code, 0);
  const std::vector<float> legacy = floats(SafetensorsFile::open(file("y.safetensors")).read_float32("y"));
  expect_near(legacy, reference.at("output_after_reload").get<std::vector<float>>(), "legacy");
  EXPECT_EQ(run(loom("dense_fp4.json"), x).exit_code, 0);
  EXPECT_NE(floats(SafetensorsFile::open(file("y.safetensors")).read_float32("y")), legacy);
}

TEST_F(Forward, FailuresNameTheFileAndLeaveNothing) {
  const std::string net = loom("dense_float32.json");
  const std::string x = write("x.safetensors", {{"x", Tensor<float>({2, 5})}});
  expect_error(run(file("absent.json"), x), 1, "absent.json");
  expect_error(run(net, file("absent.safetensors")), 1, "absent.safetensors");
  expect_error(run(net, write("wide.safetensors", {{"x", Tensor<float>({2, 7})}})), 1, "wide.safetensors");
  expect_error(run(net, write("named.safetensors", {{"z", Tensor<float>({2, 5})}})), 1, "no tensor 'x'");
  const std::string nan = write("nan.safetensors", {{"x", Tensor<float>({5}, {0, 1, NAN, 0, 0})}});
  expect_error(run(net, nan), 1, "element 2 of 'x' [5] is NaN");
  const std::string dy = write("dy.safetensors", {{"dy", Tensor<float>({3, 3})}});
  expect_error(run(net, x, {"--grad-output", dy}), 1, "dy.safetensors: 'dy' has the shape [3, 3]");
  expect_error(run(net, x, {"--grad-output", x}), 1, "no tensor 'dy'");

  const std::string whole = read_text(net);
  folder_.write("cut.json", whole.substr(0, whole.size() / 2));
  expect_error(run(file("cut.json"), x), 1, "cut.json: at byte ");
  folder_.write("cut.safetensors", read_text(x).substr(0, 60));
  expect_error(run(net, file("cut.safetensors")), 1, "cut.safetensors");
  expect_error(run(x, x), 1, "holds tensors, not a network of layers");
  EXPECT_FALSE(has_output());
  expect_error(imago_run({"forward", net, "--input", x}), 2, "--output");
  expect_error(imago_run({"forward", net, "-o", x}), 2, "--input");
  expect_error(imago_run({"forward", net, "--input", x, "-o", file("no/where.safetensors")}), 1, "no/where");
}

}  // namespace
}  // namespace imago::testing
