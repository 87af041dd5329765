#pragma once

// The commands, one source file each.

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace imago::cli {

/// A command: its options, and what it does once they are parsed.
struct Command {
  CLI::App* options;
  std::function<void()> run;
};

/// Parses the command line. Returns the text to print if it asks for help or the version. Throws UsageError, with a
/// suggestion for a misspelled name.
std::optional<std::string> read_command_line(CLI::App& program, int argc, const char* const* argv);

/// The commands for language models; none in a build without them.
std::vector<Command> add_language_commands(CLI::App& program);

Command add_completion(CLI::App& program);
Command add_demo(CLI::App& program);
Command add_man(CLI::App& program);
Command add_dtypes(CLI::App& program);
Command add_doctor(CLI::App& program);
Command add_bench(CLI::App& program);
Command add_inspect(CLI::App& program);
Command add_forward(CLI::App& program);
Command add_train(CLI::App& program);
Command add_compare(CLI::App& program);
Command add_sweep(CLI::App& program);
Command add_convert(CLI::App& program);
Command add_morph(CLI::App& program);
Command add_plan(CLI::App& program);
Command add_logits(CLI::App& program);
Command add_calibrate(CLI::App& program);
Command add_eval(CLI::App& program);
Command add_synth(CLI::App& program);
Command add_tokenize(CLI::App& program);
Command add_run(CLI::App& program);
Command add_chat(CLI::App& program);

}  // namespace imago::cli
