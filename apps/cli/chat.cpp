// imago chat: a conversation, line by line.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bundled_model.h"
#include "chat_session.h"
#include "commands.h"
#include "generation_options.h"
#include "imago/error.h"
#include "imago/system.h"
#include "line_input.h"
#include "output.h"
#include "progress.h"
#include "shared_options.h"

namespace imago::cli {

namespace {

struct Options {
  GenerationOptions generation;
  std::string system;
};

constexpr const char* kHelp =
    "/help         this list\n"
    "/clear        forget the conversation, not the system message\n"
    "/system TEXT  set the system message; without TEXT take it away\n"
    "/regen        another answer to the last message\n"
    "/save FILE    write the conversation as JSON\n"
    "/load FILE    go on with a conversation that was saved\n"
    "/stats        tokens and times\n"
    "/exit         end; so does Ctrl-D, or Ctrl-C twice\n"
    "Ctrl-C stops an answer; once more while it has not stopped yet, it ends.\n";

class Chat {
 public:
  /// `reading`: the bar while a prompt is read, gone once the answer begins.
  Chat(ChatSession& session, std::optional<Progress>& reading, bool quiet)
      : session_(session), reading_(reading), quiet_(quiet) {}

  void run() {
    const bool terminal = ::isatty(STDIN_FILENO) == 1;
    if (terminal && !quiet_) fmt::print(stderr, "/help lists the commands\n");
    LineInput lines;
    std::string line;
    for (bool warned = false;;) {
      if (terminal) print(bold("> "));
      const LineInput::Outcome outcome = lines.next(line);
      if (outcome == LineInput::Outcome::end) break;
      if (outcome == LineInput::Outcome::interrupt) {
        if (std::exchange(warned, true)) break;
        fmt::print(stderr, "\nCtrl-C once more, or /exit, ends\n");
        continue;
      }
      warned = false;
      try {
        if (!obey(line)) return;
      } catch (const Error& error) {
        // A script must learn of it; its lines are no command line, so the code is never that of a wrong one.
        if (!terminal)
          throw Error(error.kind() == ErrorKind::usage ? ErrorKind::unsupported : error.kind(), error.what());
        print_error(error.what());
      }
    }
    if (terminal) print("\n");
  }

 private:
  /// False to end.
  bool obey(const std::string& line) {
    if (line.find_first_not_of(" \t") == std::string::npos) return true;
    if (line.front() != '/') {
      answer([&](const auto& on_token) { return session_.say(line, on_token); });
      return true;
    }
    const std::size_t space = line.find(' ');
    const std::string command = line.substr(0, space);
    std::string rest = space == std::string::npos ? "" : line.substr(space);
    rest.erase(0, rest.find_first_not_of(' '));
    if (command == "/exit" || command == "/quit") return false;
    if (command == "/help") {
      fmt::print(stderr, "{}", kHelp);
    } else if (command == "/clear") {
      session_.clear();
    } else if (command == "/system") {
      session_.set_system(rest);
    } else if (command == "/regen") {
      answer([&](const auto& on_token) { return session_.again(on_token); });
    } else if (command == "/save" || command == "/load") {
      if (rest.empty()) throw UsageError(command + " needs the name of a file");
      command == "/save" ? session_.save(rest) : session_.load(rest);
    } else if (command == "/stats") {
      show_stats();
    } else {
      throw UsageError(fmt::format("unknown command '{}'; /help lists them", printable(command)));
    }
    return true;
  }

  template <class Ask>
  void answer(Ask ask) {
    const bool answered = ask([&](const GeneratedToken& token) {
      reading_.reset();
      show(token.text);
      return !take_interrupt();
    });
    reading_.reset();
    if (!answered) {
      fmt::print(stderr, "\nimago: stopped before an answer; the conversation is as before\n");
      return;
    }
    print("\n");
    const EndReason end = session_.last().end;
    if (quiet_) return;
    if (end == EndReason::context_full) {
      fmt::print(stderr, "imago: the context of {} tokens is full, so the answer ends here; /clear starts anew\n",
                 session_.sequence().capacity());
    } else if (end == EndReason::max_tokens) {
      fmt::print(stderr, "imago: the answer was cut after {} tokens; -n allows more\n", session_.last().ids.size());
    }
  }

  void show_stats() const {
    const GenerateResult& last = session_.last();
    fmt::print(stderr, "messages: {}\ncontext: {} of {} tokens\nlast prompt: {}\nlast answer: {}\n",
               session_.messages().size(), session_.sequence().size(), session_.sequence().capacity(),
               rate(last.prompt_tokens, last.prompt_seconds), rate(last.ids.size(), last.generate_seconds));
  }

  ChatSession& session_;
  std::optional<Progress>& reading_;
  bool quiet_;
};

void chat(const Options& options) {
  constexpr std::size_t kUsualContext = 4096;  // keys and values of more would take memory that few conversations need
  GenerateOptions generation = generate_options(options.generation);
  SequenceOptions sequence{.context = options.generation.context,
                           .cache = cache_kind(options.generation.cache),
                           .batch = options.generation.batch};
  ModelOptions load = options.generation.model;
  load.path = model_path(load.path);
  set_thread_count(options.generation.threads);
  const LanguageModel model = load_model(load);
  if (sequence.context == 0) sequence.context = std::min(std::max(model.context(), std::size_t{1}), kUsualContext);
  warn_of_long_context(model, sequence.context, load.quiet);
  std::optional<Progress> reading;
  generation.prompt_progress = [&](std::size_t done, std::size_t total) {
    if (!reading) reading.emplace(load.quiet);
    reading->show(done, total, "reading");
    return !take_interrupt();
  };
  ChatSession session(model, sequence, std::move(generation), [&](const std::string& note) {
    if (!load.quiet) fmt::print(stderr, "imago: {}\n", printable(note));
  });
  session.set_system(options.system);
  const InterruptRequests requests;
  Chat(session, reading, load.quiet).run();
}

}  // namespace

Command add_chat(CLI::App& program) {
  CLI::App* command = program.add_subcommand("chat", "Talk with a language model");
  const auto options = std::make_shared<Options>();
  add_generation(*command, options->generation, -1);
  command->add_option("--system,--system-prompt", options->system, "The system message (default: none)")
      ->type_name("TEXT");
  command->footer(
      "One message per line, also from a pipe. /help lists the commands of a conversation.\n"
      "Examples:\n  imago chat\n  imago chat model.gguf\n  imago chat model.gguf --system 'Answer in French.' --temp "
      "0.2");
  return {command, [options] { chat(*options); }};
}

}  // namespace imago::cli
