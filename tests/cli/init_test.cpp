#include "imago.h"
#include "imago/files.h"
#include "testing/loom_files.h"
#include "testing/temp_dir.h"

namespace imago::testing {
namespace {

constexpr const char* kTwoLayers =
    R"({"id":"n","depth":1,"rows":1,"cols":1,"layers_per_cell":2,"layers":[
  {"z":0,"y":0,"x":0,"l":0,"type":"Sequential","sequential_layers":[
    {"type":"Dense","dtype":"INT8","input_height":2,"output_height":8},{"type":"RMSNorm","input_height":8}]},
  {"z":0,"y":0,"x":0,"l":1,"type":"Dense","input_height":8,"output_height":2}]})";

class Init : public ::testing::Test {
 protected:
  Init() { folder_.write("net.json", kTwoLayers); }
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }
  TempDir folder_;
};

TEST_F(Init, WeightsAreThoseOfTheLibrary) {
  const Network wanted = build_network_from_json(kTwoLayers, 7);
  const auto report = expect_json(imago_run({"init", file("net.json"), "-o", file("a.json"), "--seed", "7", "--json"}));
  EXPECT_EQ(report.at("parameters"), 2 * 8 + 8 + 8 * 2);
  EXPECT_EQ(report.at("seed"), 7);
  EXPECT_EQ(read_text(file("a.json")), serialize_network(wanted));
  const ProcessResult text = imago_run({"init", file("net.json"), "-o", file("a.entity"), "-s", "7"});
  EXPECT_EQ(text.out, "40 fresh weights from seed 7\nwritten to " + file("a.entity") + "\n") << text.err;
  EXPECT_EQ(serialize_network(load_network(file("a.entity"))), serialize_network(wanted));
  EXPECT_EQ(imago_run({"init", file("net.json"), "-o", file("b.json"), "--seed", "8"}).exit_code, 0);
  EXPECT_NE(read_text(file("b.json")), read_text(file("a.json")));
}

TEST_F(Init, ReplacesTheWeightsOfATrainedNetwork) {
  EXPECT_EQ(imago_run({"init", file("net.json"), "-o", file("a.json"), "--seed", "1"}).exit_code, 0);
  EXPECT_EQ(imago_run({"init", file("net.json"), "-o", file("b.json"), "--seed", "2"}).exit_code, 0);
  EXPECT_EQ(imago_run({"init", file("b.json"), "-o", file("b.json"), "--seed", "1"}).exit_code, 0);
  EXPECT_EQ(read_text(file("b.json")), read_text(file("a.json")));
}

TEST_F(Init, WrongOnesAreRefused) {
  expect_help("init");
  expect_error(imago_run({"init", file("net.json")}), 2, "--output");
  expect_error(imago_run({"init", file("net.json"), "-o", file("a.txt")}), 2, ".json, .entity, .safetensors or .gguf");
  expect_error(imago_run({"init", file("net.json"), "-o", file("none/a.json")}), 1, "create it first");
  expect_error(imago_run({"init", file("none.json"), "-o", file("a.json")}), 1, "none.json");
  folder_.write("huge.json",
                R"({"depth":1,"rows":1,"cols":1,"layers_per_cell":1,"layers":[
    {"z":0,"y":0,"x":0,"l":0,"type":"Dense","input_height":2147483647,"output_height":2147483647}]})");
  expect_error(imago_run({"init", file("huge.json"), "-o", file("a.json")}), 1, "this machine has");
}

}  // namespace
}  // namespace imago::testing
