// What holds for every command: help, exit codes, error lines, output that cannot be written.

#include "imago.h"
#include "imago/system.h"

namespace imago::testing {
namespace {

TEST(Version, IsOneLine) {
  const ProcessResult result = imago_run({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "imago " + std::string(version()) + "\n");
  EXPECT_EQ(result.err, "");
}

TEST(Help, OfTheProgramListsTheCommands) {
  for (const char* flag : {"--help", "-h"}) {
    const ProcessResult result = imago_run({flag});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.err, "");
    EXPECT_NE(result.out.find("dtypes"), std::string::npos);
    EXPECT_NE(result.out.find("doctor"), std::string::npos);
    for (const char* command : {"bench", "inspect", "train", "forward", "compare", "synth"}) {
      EXPECT_NE(result.out.find(command), std::string::npos) << command;
    }
  }
}

TEST(Help, OfEachCommandHasDefaultsAndExamples) {
  for (const char* command : {"dtypes", "doctor", "bench", "inspect", "train", "forward", "compare", "synth"}) {
    expect_help(command);
  }
}

TEST(CommandLine, MistakesGiveTwoAndALineThatHelps) {
  expect_error(imago_run({}), 2, "no command given; 'imago --help' lists them");
  expect_error(imago_run({"dtyps"}), 2, "unknown command 'dtyps'; did you mean 'dtypes'?");
  expect_error(imago_run({"dcotor"}), 2, "did you mean 'doctor'?");
  expect_error(imago_run({"doc"}), 2, "did you mean 'doctor'?");
  expect_error(imago_run({"frobnicate"}), 2, "unknown command 'frobnicate'; see 'imago --help'");
  expect_error(imago_run({""}), 2, "unknown command ''; see 'imago --help'");
  expect_error(imago_run({"--verison"}), 2, "unknown option '--verison'; did you mean '--version'?");
  expect_error(imago_run({"dtypes", "--jsn"}), 2, "unknown option '--jsn'; did you mean '--json'?");
  expect_error(imago_run({"dtypes", "--frobnicate=3"}), 2, "unknown option '--frobnicate'; see 'imago dtypes --help'");
  expect_error(imago_run({"dtypes", "more"}), 2, "unexpected argument 'more'; see 'imago dtypes --help'");
  expect_error(imago_run({"dtypes", "doctor"}), 2, "unexpected argument 'doctor'");
  expect_error(imago_run({"doctor", "-t", ""}), 2, "--threads");
  expect_error(imago_run({"run", "m.gguf", "--temp", ""}), 2, "--temp: the value is empty; see 'imago run --help'");
  expect_error(imago_run({"inspect", ""}), 2, "MODEL: the value is empty");
  expect_error(imago_run({"run", "m.gguf", "-p", "a", "-p", "b"}), 2, "--prompt is given 2 times");
  for (const char* seed : {"36893488147419103232", "-1", "1.5", "x", ""}) {
    expect_error(imago_run({"synth", "m.gguf", "--seed", seed}), 2, "--seed");
    expect_error(imago_run({"forward", "n.json", "--input", "x", "-o", "y", "--seed", seed}), 2, "--seed");
    expect_error(imago_run({"train", "n.json", "--data", "x", "-o", "y.json", "--seed", seed}), 2, "--seed");
  }
  expect_error(imago_run({"doctor", "-x"}), 2, "unknown option '-x'; see 'imago doctor --help'");
}

TEST(CommandLine, DevicesAreNamedAndMustBeThere) {
  const std::vector<std::vector<std::string>> commands = {{"run", "m.gguf", "-p", "a"},
                                                          {"logits", "m.gguf", "--ids", "1", "-o", "l.safetensors"},
                                                          {"bench", "m.gguf"},
                                                          {"forward", "n.json", "--input", "x", "-o", "y.safetensors"},
                                                          {"train", "n.json", "--data", "d", "-o", "o.json"}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.end(), {"--device", "gpu"});
    expect_error(imago_run(command), 2, "--device: unknown device 'gpu': use cpu, cuda, or cuda:1");
    command.back() = "cuda:4000";
    expect_error(imago_run(command), 1, "--device cuda:4000: ");
  }
  expect_error(imago_run({"run", "m.gguf", "-p", "a", "--gpu-layers", "3"}), 2, "add --device cuda");
  expect_error(imago_run({"run", "m.gguf", "-p", "a", "--device", "cpu", "--gpu-layers", "all"}), 2,
               "add --device cuda");
  for (const char* layers : {"some", "-1", "3x", "1e3"}) {
    expect_error(imago_run({"run", "m.gguf", "-p", "a", "--gpu-layers", layers}), 2, "--gpu-layers");
  }
  expect_error(imago_run({"bench", "kernels", "--device", "cuda"}), 2, "measures the CPU");
  // The CPU may be named: it gets as far as the file that is not there.
  expect_error(imago_run({"run", "no.gguf", "-p", "a", "--device", "cpu"}), 1, "no.gguf");
}

TEST(CommandLine, FlagsOfLlamaCppAreTakenOrExplained) {
  expect_error(imago_run({"run", "m.gguf", "-p", "a", "-ngl", "99"}), 2, "--device cuda");
  expect_error(imago_run({"run", "m.gguf", "-p", "a", "--n-gpu-layers=99"}), 2,
               "'--n-gpu-layers' is a flag of llama.cpp");
  expect_error(imago_run({"run", "m.gguf", "-p", "a", "-ts", "1,1"}), 2, "one GPU");
  expect_error(imago_run({"run", "m.gguf", "-i"}), 2, "imago chat");
  expect_error(imago_run({"eval", "m.gguf", "-f", "t", "-ctk", "f16"}), 2, "--cache-type");
  // What is read gets as far as the model that is not there.
  expect_error(imago_run({"run",
                          "-m",
                          "no.gguf",
                          "-p",
                          "a\\n",
                          "-e",
                          "-n",
                          "4",
                          "-c",
                          "16",
                          "-t",
                          "1",
                          "-s",
                          "7",
                          "--temp",
                          "0.5",
                          "--top-k",
                          "9",
                          "--top-p",
                          "0.9",
                          "--min-p",
                          "0.1",
                          "--repeat-penalty",
                          "1.1",
                          "-b",
                          "8",
                          "--ignore-eos"}),
               1, "no.gguf");
  expect_error(imago_run({"run", "--model", "no.gguf", "--prompt", "a", "--n-predict", "4", "--ctx-size", "16",
                          "--threads", "1", "--seed", "7", "--batch-size", "8", "--temperature", "0"}),
               1, "no.gguf");
  expect_error(imago_run({"run", "-m", "no.gguf", "--file", "/nowhere.txt"}), 1, "/nowhere.txt");
}

TEST(Help, HasEachHeadingOnce) {
  const std::string text = imago_run({"--help"}).out;
  for (const char* heading : {"\nLanguage models:\n", "\nWhat precision costs:\n", "\nModel files:\n"}) {
    const std::size_t at = text.find(heading);
    EXPECT_NE(at, std::string::npos) << heading;
    EXPECT_EQ(text.find(heading, at + 1), std::string::npos) << heading;
  }
}

TEST(Help, IsACommandToo) {
  EXPECT_EQ(imago_run({"help"}).out, imago_run({"--help"}).out);
  EXPECT_EQ(imago_run({"help", "doctor"}).out, imago_run({"doctor", "--help"}).out);
  expect_error(imago_run({"help", "docter"}), 2, "did you mean 'doctor'?");
}

TEST(Help, FitsAScreen) {
  for (const char* command : {"run", "train", "morph", "bench"}) {
    const std::string text = imago_run({command, "--help"}).out;
    for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
      const std::string line = text.substr(at, end - at);
      const bool is_example = line.starts_with("  imago ");  // copied whole
      EXPECT_TRUE(is_example || line.size() <= 104) << line;
    }
  }
}

TEST(CommandLine, AnArgumentWithNewlinesStillGivesOneLine) {
  expect_error(imago_run({"two\nlines"}), 2, "unknown command 'two lines'");
}

TEST(Output, AReaderThatHasGoneIsNoFailure) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"dtypes"}, {"dtypes", "--json"}, {"doctor"}, {"--help"}, {"--version"}}) {
    const ProcessResult result = imago_run(arguments, {.close_stdout = true});
    EXPECT_EQ(result.exit_code, 0) << arguments[0];
    EXPECT_EQ(result.signal, 0) << arguments[0];
    EXPECT_EQ(result.err, "") << arguments[0];
  }
}

TEST(Output, AFullDiskIsAFailure) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"dtypes"}, {"dtypes", "--json"}, {"doctor"}, {"--help"}, {"--version"}}) {
    expect_error(imago_run(arguments, {.stdout_to = "/dev/full"}), 1, "standard output: cannot write: No space left");
  }
}

TEST(Output, AClosedDescriptorIsAFailure) {
  expect_error(imago_run({"dtypes"}, {.without_stdout = true}), 1,
               "standard output: cannot write: Bad file descriptor");
}

TEST(Output, ThereIsNoColourWithoutATerminal) {
  const ProcessResult result = imago_run({"dtypes"}, {.environment = {{"TERM", "xterm-256color"}}});
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
}

TEST(Output, MessagesCannotSteerATerminal) {
  const ProcessResult result = imago_run({"inspect", "no\x1b[2Jsuch\xff"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err.find('\x1b'), std::string::npos);
  EXPECT_NE(result.err.find("no\\x1b[2Jsuch\\xff"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace imago::testing
