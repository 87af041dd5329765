#include <fcntl.h>
#include <signal.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <random>
#include <thread>

#include "imago.h"
#include "imago/models.h"
#include "imago/train.h"
#include "testing/loom_files.h"
#include "testing/temp_dir.h"

namespace imago::testing {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

constexpr const char* kArchitecture = R"({"id":"n","depth":1,"rows":1,"cols":1,"layers_per_cell":2,"layers":[
  {"z":0,"y":0,"x":0,"l":0,"type":"Dense","activation":"Tanh","input_height":2,"output_height":8},
  {"z":0,"y":0,"x":0,"l":1,"type":"Dense","activation":"Linear","input_height":8,"output_height":2}]})";

class Train : public ::testing::Test {
 protected:
  Train() {
    folder_.write("net.json", kArchitecture);
    std::string csv = "a,b,class\n";
    for (int i = 0; i < 50; ++i) {
      const double a = std::sin(i * 1.7), b = std::cos(i * 2.3);
      csv += std::to_string(a) + "," + std::to_string(b) + "," + (a > b ? "1" : "0") + "\n";
    }
    folder_.write("data.csv", csv);
  }
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }
  Words words(const std::string& out, const Words& more) const {
    Words all{"train", file("net.json"), "--data", file("data.csv"), "-o", file(out), "--batch", "10"};
    all.insert(all.end(), {"--loss", "cross_entropy_logits", "--lr", "0.05", "-t", "1"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  ProcessResult run(const std::string& out, const Words& more = {}) const { return imago_run(words(out, more)); }
  /// Nothing but the two files that were there at the start.
  bool is_untouched() const { return std::distance(std::filesystem::directory_iterator(folder_.path()), {}) == 2; }
  TempDir folder_;
};

TEST_F(Train, EqualsTheLibraryAndTellsWhatItDid) {
  const Json report =
      expect_json(run("out.json", {"--json", "--optimizer", "adam", "--epochs", "12", "--seed", "3", "--validation",
                                   "0.2", "--schedule", "cosine", "--warmup", "4", "--clip-norm", "1"}));
  LoadOptions load;
  load.seed = 3;
  Network network = load_network(file("net.json"), load);
  const Dataset data = load_dataset(file("data.csv"));
  TrainOptions options{.epochs = 12, .batch = 10, .seed = 3, .validation_share = 0.2};
  options.loss.kind = LossKind::cross_entropy_logits;
  options.optimizer = {.kind = OptimizerKind::adam, .clip_norm = 1};
  options.schedule = {.kind = ScheduleKind::cosine, .rate = 0.05f, .warmup_steps = 4};
  const TrainResult wanted = train(network, data, options);
  EXPECT_EQ(read_text(file("out.json")), serialize_network(network));
  EXPECT_EQ(report.at("epochs"), 12);
  EXPECT_EQ(report.at("steps"), 48);
  EXPECT_EQ(report.at("epoch_loss").get<std::vector<double>>(), wanted.epoch_loss);
  EXPECT_EQ(report.at("validation_loss").get<std::vector<double>>(), wanted.validation_loss);
  EXPECT_EQ(report.at("final_loss").get<double>(), wanted.final_loss);
  EXPECT_EQ(report.at("accuracy").get<double>(), accuracy(network, data));
  EXPECT_GT(report.at("accuracy").get<double>(), 0.8);
  EXPECT_GT(report.at("seconds").get<double>(), 0.0);
  EXPECT_EQ(report.at("parameters"), 32);
}

TEST_F(Train, AnyTypeIsTrainedThroughItsRounding) {
  const ProcessResult result = run("out.json", {"--dtype", "INT4", "--learn-scales", "--epochs", "3"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "") << "progress without a terminal";
  EXPECT_NE(result.out.find("final loss "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("accuracy "), std::string::npos) << result.out;
  for (const TensorSummary& tensor : inspect_model(file("out.json")).tensors) EXPECT_EQ(tensor.type, "int4");
  EXPECT_EQ(imago_run({"train", file("out.json"), "--data", file("data.csv"), "-o", file("more.entity"), "--loss",
                       "cross_entropy_logits", "--epochs", "1"})
                .exit_code,
            0)
      << "a checkpoint can be trained on";
}

TEST_F(Train, BlocksAreTrainedWhereTheyFit) {
  folder_.write("net.json", R"({"depth":1,"rows":1,"cols":1,"layers_per_cell":3,"layers":[
    {"l":0,"type":"Dense","activation":"Tanh","input_height":2,"output_height":32},
    {"l":1,"type":"Dense","activation":"Tanh","input_height":32,"output_height":32},
    {"l":2,"type":"Dense","input_height":32,"output_height":2}]})");
  const ProcessResult result = run("out.json", {"--dtype", "q5_k", "--epochs", "3"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("imago: note: layer (0,0,0,0), Dense stays float32: rows of 2 fit no block of q5_k\n"),
            std::string::npos)
      << result.err;
  const std::vector<TensorSummary> tensors = inspect_model(file("out.json")).tensors;
  EXPECT_EQ(tensors.at(0).type, "float32");
  EXPECT_EQ(tensors.at(1).type, "q5_1");
  EXPECT_EQ(run("again.json", {"--dtype", "q5_k", "--epochs", "1", "--quiet"}).err, "");
}

TEST_F(Train, TernaryLearnsItsScalesUnlessToldNotTo) {
  const auto loss = [&](const Words& more) {
    Words all{"--json", "--dtype", "ternary", "--optimizer", "adam", "--epochs", "30"};
    all.insert(all.end(), more.begin(), more.end());
    return expect_json(run("out.json", all)).at("final_loss").get<double>();
  };
  const double usual = loss({});
  EXPECT_EQ(usual, loss({"--learn-scales"}));
  EXPECT_LT(usual, 0.9 * loss({"--no-learn-scales"}));
}

TEST_F(Train, GoingOnEqualsNeverHavingStopped) {
  const Words common{"--optimizer", "adamw", "--weight-decay", "0.01", "--schedule", "cosine",
                     "--dtype",     "int8",  "--epochs",       "4",    "--seed",     "18446744073709551615"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), common.begin(), common.end());
    return more;
  };
  const Json whole = expect_json(run("whole.json", with({"--json"})));
  EXPECT_EQ(whole.at("steps"), 20);
  const Json first = expect_json(run("half.json", with({"--json", "--max-steps", "10", "--state", file("state")})));
  EXPECT_EQ(first.at("steps"), 10);
  EXPECT_EQ(first.at("stopped_early"), true);
  EXPECT_NE(read_text(file("half.json")), read_text(file("whole.json")));
  const Json second = expect_json(run("end.json", with({"--json", "--resume", file("state")})));
  EXPECT_EQ(second.at("steps"), 20);
  EXPECT_EQ(second.at("epoch_loss"), whole.at("epoch_loss"));
  EXPECT_EQ(read_text(file("end.json")), read_text(file("whole.json")));

  EXPECT_EQ(run("kept.json", with({"--checkpoint-every", "7", "--max-steps", "9"})).exit_code, 0);
  EXPECT_EQ(run("end2.json", with({"--resume", file("kept.json.state")})).exit_code, 0);
  EXPECT_EQ(read_text(file("end2.json")), read_text(file("whole.json")));
}

TEST_F(Train, ValidationMayBeginLater) {
  EXPECT_EQ(run("first.json", {"--epochs", "2", "--state", file("state")}).exit_code, 0);
  const auto later = run("second.json", {"--epochs", "6", "--resume", file("state"), "--validation", "0.25"});
  EXPECT_EQ(later.exit_code, 0) << later.err;
  EXPECT_NE(later.out.find("validation"), std::string::npos) << later.out;
  EXPECT_NE(later.out.find("–"), std::string::npos) << "the first epochs had none:\n" << later.out;
}

TEST_F(Train, TextTrainsALanguageModel) {
  Network network(layer_list(embedding(4, 8), dense(8, 4)), 1);
  save_network(network, file("text.json"));
  std::string text;
  for (int i = 0; i < 60; ++i) text += "abcd";
  folder_.write("text.txt", text);
  const Json report =
      expect_json(imago_run({"train", file("text.json"), "--data", file("text.txt"), "--text-context", "8", "-o",
                             file("out.json"), "--optimizer", "adam", "--lr", "0.05", "--json"}));
  EXPECT_EQ(report.at("accuracy"), 1.0);
}

TEST_F(Train, WrongCommandLinesGiveTwo) {
  expect_error(run("out.json", {"--optimizer", "adm"}), 2, "adm");
  expect_error(run("out.json", {"--loss", "hinge"}), 2, "--loss");
  expect_error(
      imago_run({"train", file("net.json"), "--data", file("data.csv"), "-o", file("o.json"), "--loss", "hinge"}), 2,
      "hinge");
  expect_error(run("out.json", {"--dtype", "int5"}), 2, "int5");
  expect_error(run("out.json", {"--schedule", "step"}), 2, "step");
  expect_error(run("out.json", {"--epochs", "-1"}), 2, "--epochs");
  expect_error(run("out.json", {"--batch", "0"}), 2, "--batch");
  expect_error(run("out.json", {"--clip", "nan"}), 2, "not nan");
  expect_error(run("out.json", {"--patience", "2"}), 2, "--patience makes sense only with --validation");
  expect_error(run("out.json", {"--weight-decay", "0.1"}), 2, "only with --optimizer adamw");
  expect_error(run("out.txt"), 2, ".json, .entity, .safetensors or .gguf");
  expect_error(imago_run({"train", file("net.json"), "-o", file("out.json")}), 2, "--data");
  expect_error(imago_run({"train", file("net.json"), "--data", file("data.csv"), "-o", file("o.json"), "--lr", "nan"}),
               2, "--lr nan");
  EXPECT_TRUE(is_untouched());
}

TEST_F(Train, FailuresNameTheFileAndWriteNothing) {
  const auto train_on = [&](const std::string& spec, const std::string& data) {
    return imago_run({"train", spec, "--data", data, "-o", file("out.json"), "--loss", "cross_entropy_logits"});
  };
  expect_error(train_on(file("absent.json"), file("data.csv")), 1, "absent.json");
  expect_error(train_on(file("net.json"), file("absent.csv")), 1, "absent.csv");
  expect_error(run("no/folder/out.json"), 1, "there is no folder ");
  expect_error(imago_run({"train", file("net.json"), "--data", file("data.csv"), "-o", file("out.json"), "--lr", "1e30",
                          "--one-hot"}),
               1, "try a lower --lr");
  expect_error(run("out.json", {"--resume", file("data.csv")}), 1, "data.csv");
  expect_error(run("out.json", {"--targets", "3"}), 1, "data.csv");
  EXPECT_TRUE(is_untouched());

  folder_.write("far.csv", "0.5,0.1,1e6,1e6\n0.1,0.5,-1e6,1e6\n");
  expect_error(imago_run({"train", file("net.json"), "--data", file("far.csv"), "-o", file("out.json"), "--targets",
                          "2", "--lr", "3e38", "--max-steps", "1"}),
               1, "the weights are not finite after 1 steps");
  folder_.write("nan.csv", "1,2,0\n1,nan,1\n");
  expect_error(train_on(file("net.json"), file("nan.csv")), 1, "nan.csv");
  folder_.write("wide.csv", "1,2,3,0\n1,2,3,1\n");
  expect_error(train_on(file("net.json"), file("wide.csv")), 1, "wide.csv");
  folder_.write("classes.csv", "1,2,7\n1,2,1\n");
  expect_error(train_on(file("net.json"), file("classes.csv")), 1, "classes.csv");
  folder_.write("cut.json", std::string(kArchitecture).substr(0, 150));
  expect_error(train_on(file("cut.json"), file("data.csv")), 1, "cut.json: at byte ");
  folder_.write("softmax.json", R"({"depth":1,"rows":1,"cols":1,"layers_per_cell":1,"layers":[{"type":"Softmax"}]})");
  expect_error(train_on(file("softmax.json"), file("data.csv")), 1, "nothing to train");
  EXPECT_FALSE(std::filesystem::exists(file("out.json")));
}

/// Starts `command` without waiting for it.
pid_t start(Words command) {
  command.insert(command.begin(), IMAGO_PROGRAM);
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGINT, SIG_DFL);
    const int nowhere = ::open("/dev/null", O_WRONLY);
    ::dup2(nowhere, STDERR_FILENO);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  return child;
}

// threats.md 65: whenever the program is killed, the last state that was written is whole.
TEST_F(Train, AKillLeavesAStateThatCanBeGoneOnFrom) {
  std::mt19937 random(1);
  std::uint64_t steps = 0;
  const auto written_at = [&] {  // of the state; the least time there is while there is none
    std::error_code none;
    const auto time = std::filesystem::last_write_time(file("state"), none);
    return none ? std::filesystem::file_time_type::min() : time;
  };
  for (int kills = 0; kills < 10; ++kills) {
    const auto before = written_at();
    Words more = {"--epochs", "1000000", "--state", file("state"), "--checkpoint-every", "1", "--optimizer", "adam"};
    if (kills > 0) more.insert(more.end(), {"--resume", file("state")});
    const pid_t child = start(words("out.json", more));
    ASSERT_GE(child, 0);
    // However slow the machine is, each run gets to write a state at least.
    while (written_at() == before) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 50000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it ended before";
    LoadOptions load;
    load.seed = 0;
    Network network = load_network(file("net.json"), load);
    const TrainState state = load_train_state(file("state"), network);
    EXPECT_GE(state.steps, steps);
    steps = state.steps;
  }
  EXPECT_GE(steps, 10u);
  EXPECT_FALSE(std::filesystem::exists(file("out.json")));
}

TEST_F(Train, AnInterruptLeavesTheOldFile) {
  folder_.write("out.json", "old");
  const pid_t child =
      start(words("out.json", {"--epochs", "1000000", "--state", file("state"), "--checkpoint-every", "1"}));
  ASSERT_GE(child, 0);
  for (int i = 0; i < 1000 && !std::filesystem::exists(file("state")); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(child, SIGINT);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_EQ(read_text(file("out.json")), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 4) << "net, data, out and state";
}

}  // namespace
}  // namespace imago::testing
