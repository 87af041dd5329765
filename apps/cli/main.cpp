// imago: parse, call, print. Every error ends here as one line on standard error and an exit code: 1 the work failed,
// 2 the command line is wrong.

#include <unistd.h>

#include <csignal>
#include <exception>
#include <new>

#include "command.h"

namespace imago::cli {
namespace {

constexpr int kDone = 0;
constexpr int kWorkFailed = 1;
constexpr int kUsage = 2;

std::vector<Command> add_commands(CLI::App& program) {
  std::vector<Command> commands = add_language_commands(program);
  add_group(program, commands, "Model files", {add_inspect, add_convert, add_morph});
  add_group(program, commands, "What precision costs", {add_compare, add_sweep});
  add_group(program, commands, "Networks of layers", {add_init, add_train, add_forward});
  add_group(program, commands, "This machine", {add_doctor, add_bench, add_synth, add_dtypes});
  add_group(program, commands, "The program", {add_demo, add_man, add_completion});
  return commands;
}

int run(int argc, const char* const* argv) {
  CLI::App program(fmt::format("Train, quantize and run neural networks in {} numeric types and {} block formats",
                               kDTypes.size(), kBlockFormats.size()),
                   "imago");
  program.set_help_flag("-h,--help", "Show this help and exit");
  program.set_version_flag("--version", fmt::format("imago {}", version()), "Show the version and exit");
  program.require_subcommand(0, 1);
  program.allow_extras();  // read_command_line explains them better than CLI11
  program.footer(
      "'imago COMMAND --help' describes a command, 'imago man' all of them.\n"
      "Exit codes: 0 success, 1 the work failed, 2 the command line is wrong.\n"
      "Environment: IMAGO_MODEL names the default model, IMAGO_KERNELS=ref|avx2|avx512|amx|neon limits the kernels "
      "used, NO_COLOR=1 turns colours off.\n"
      "Examples:\n  imago run -p 'To be, or not to be'\n  imago morph folder model.gguf --to q4_k\n  imago doctor");
  const std::vector<Command> commands = add_commands(program);

  if (const auto text = read_command_line(program, argc, argv)) {
    print(*text);
    return kDone;
  }
  for (const Command& command : commands) {
    if (command.options->parsed()) command.run();
  }
  return kDone;
}

int fail(std::string_view message, int exit_code) noexcept {
  print_error(message);
  return exit_code;
}

extern "C" void end_at_signal(int signal) {
  remove_unfinished_files();
  ::_exit(128 + signal);  // as a shell reports it
}

/// Ctrl-C and the like leave old files unchanged and remove unfinished ones.
void clean_up_at_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) != 0 || now.sa_handler == SIG_IGN) continue;  // set by nohup
    struct sigaction action {};
    action.sa_handler = end_at_signal;
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace
}  // namespace imago::cli

int main(int argc, char** argv) {
  using namespace imago::cli;
  std::signal(SIGPIPE, SIG_IGN);  // write() reports a closed pipe
  std::signal(SIGXFSZ, SIG_IGN);  // and a file that exceeds the size limit
  clean_up_at_signals();
  try {
    return run(argc, argv);
  } catch (const ReaderGone&) {
    return kDone;
  } catch (const imago::Error& error) {
    return fail(error.what(), error.kind() == imago::ErrorKind::usage ? kUsage : kWorkFailed);
  } catch (const std::bad_alloc&) {
    return fail("out of memory; free some or use a smaller type", kWorkFailed);
  } catch (const std::exception& error) {
    return fail(error.what(), kWorkFailed);
  }
}
