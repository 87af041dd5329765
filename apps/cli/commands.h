#pragma once

// The commands, one file each.

#include <functional>
#include <vector>

namespace CLI {
class App;
}

namespace imago::cli {

/// A command: its part of the command line, and what it does once that has been read.
struct Command {
  CLI::App* options;
  std::function<void()> run;
};

/// The commands of language models: none in a build without them.
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
