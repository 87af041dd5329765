#pragma once

// The commands, one file each.

#include <functional>

namespace CLI {
class App;
}

namespace imago::cli {

/// A command: its part of the command line, and what it does once that has been read.
struct Command {
  CLI::App* options;
  std::function<void()> run;
};

Command add_dtypes(CLI::App& program);
Command add_doctor(CLI::App& program);
Command add_bench(CLI::App& program);
Command add_inspect(CLI::App& program);
Command add_forward(CLI::App& program);
Command add_train(CLI::App& program);
Command add_compare(CLI::App& program);

}  // namespace imago::cli
