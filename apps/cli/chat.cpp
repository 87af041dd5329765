// imago chat: a conversation, line by line.

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <system_error>

#include "imago/engine.h"
#include "model_options.h"

namespace imago::cli {

namespace {

// A byte in this pipe is a pending Ctrl-C. A flag could be missed if it were set between checking it and waiting for a
// line; poll() can wait for the pipe and the line together.
int requests[2] = {-1, -1};

extern "C" void note_interrupt(int signal) {
  const int before = errno;
  pollfd pending{.fd = requests[0], .events = POLLIN, .revents = 0};
  // A second Ctrl-C before the first was handled ends the program.
  if (::poll(&pending, 1, 0) > 0) {
    remove_unfinished_files();
    ::_exit(128 + signal);
  }
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = ::write(requests[1], &byte, 1);
  errno = before;
}

/// While it exists, Ctrl-C is a request that `take_interrupt` or `LineInput` handles, even if it comes between two of
/// their calls. At most one may exist.
class InterruptRequests {
 public:
  InterruptRequests() {
    if (::pipe2(requests, O_CLOEXEC | O_NONBLOCK) != 0) {
      throw std::system_error(errno, std::generic_category(), "pipe2");
    }
    struct sigaction action {};
    action.sa_handler = note_interrupt;
    action.sa_flags = SA_RESTART;  // otherwise text being written to a slow terminal is lost
    ::sigaction(SIGINT, &action, &before_);
  }
  InterruptRequests(const InterruptRequests&) = delete;
  InterruptRequests& operator=(const InterruptRequests&) = delete;
  ~InterruptRequests() {
    ::sigaction(SIGINT, &before_, nullptr);
    for (int& end : requests) ::close(std::exchange(end, -1));
  }

 private:
  struct sigaction before_ {};
};

/// Whether Ctrl-C was pressed since the last call.
bool take_interrupt() {
  char byte = 0;
  return ::read(requests[0], &byte, 1) == 1;
}

/// Reads lines from standard input.
class LineInput {
 public:
  enum class Outcome : unsigned char { line, end, interrupt };

  Outcome next(std::string& line) {
    for (;;) {
      if (take_interrupt()) return Outcome::interrupt;
      if (const std::size_t end = text_.find('\n'); end != std::string::npos) {
        line = text_.substr(0, end);
        text_.erase(0, end + 1);
        if (line.ends_with('\r')) line.pop_back();
        return Outcome::line;
      }
      pollfd waiting[] = {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                          {.fd = requests[0], .events = POLLIN, .revents = 0}};
      if (::poll(waiting, 2, -1) < 0 && errno == EINTR) continue;
      if (waiting[1].revents != 0) continue;
      char buffer[4096];
      const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof buffer);
      if (got > 0) {
        text_.append(buffer, static_cast<std::size_t>(got));
      } else if (got == 0 || errno != EINTR) {
        line = std::exchange(text_, {});
        return line.empty() ? Outcome::end : Outcome::line;
      }
    }
  }

 private:
  std::string text_;
};

struct ChatCommand {
  GenerationOptions generation;
  std::string system;
};

constexpr const char* kHelp =
    "/help         show this list\n"
    "/clear        forget the conversation, not the system message\n"
    "/system TEXT  set the system message; without TEXT remove it\n"
    "/regen        another answer to the last message\n"
    "/save FILE    write the conversation as JSON\n"
    "/load FILE    continue a saved conversation\n"
    "/stats        show tokens and times\n"
    "/types        show the types of the matrices\n"
    "/morph WHAT TYPE  give matrices another type: a role (ffn, attention, query, output), a block (blk.0)\n"
    "              or a regular expression over names; the conversation goes on\n"
    "/undo         take the last /morph back\n"
    "/exit         end, like Ctrl-D or Ctrl-C twice\n"
    "Ctrl-C stops an answer; pressed again before that, it ends the program.\n";

class Chat {
 public:
  Chat(Engine& engine, ChatSession& session, bool quiet) : engine_(engine), session_(session), quiet_(quiet) {}

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
        fmt::print(stderr, "\npress Ctrl-C again or type /exit to end\n");
        continue;
      }
      warned = false;
      try {
        if (!handle(line)) return;
      } catch (const Error& error) {
        // A script must see the failure, but not with the exit code of a wrong command line.
        if (!terminal)
          throw Error(error.kind() == ErrorKind::usage ? ErrorKind::unsupported : error.kind(), error.what());
        print_error(error.what());
      }
    }
    if (terminal) print("\n");
  }

 private:
  /// Returns false to end the chat.
  bool handle(const std::string& line) {
    if (line.find_first_not_of(" \t") == std::string::npos) return true;
    if (line.front() != '/') {
      answer([&](const auto& on_event) { return session_.say(line, on_event); });
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
    } else if (command == "/types") {
      show_types();
    } else if (command == "/morph") {
      const std::size_t gap = rest.find(' '), type = rest.find_last_of(' ') + 1;
      if (gap == std::string::npos) throw UsageError("/morph needs a pattern and a type: /morph ffn q4_0");
      const Format format = parse_format(rest.substr(type));
      change_types([&](LanguageModel& model, const auto& progress) {
        return model.morph(rest.substr(0, gap), format, progress);
      });
    } else if (command == "/undo") {
      change_types([](LanguageModel& model, const auto& progress) { return model.undo(progress); });
    } else {
      throw UsageError(fmt::format("unknown command '{}'; /help lists them", printable(command)));
    }
    return true;
  }

  template <class Ask>
  void answer(Ask ask) {
    std::optional<Progress> reading(std::in_place, quiet_);  // until the answer begins
    const auto on_event = [&](const EngineEvent& event) {
      if (event.token) {
        reading.reset();
        show(event.token->text);
      } else {
        reading->show(event.prompt_done, event.prompt_total, "reading");
      }
      return !take_interrupt();
    };
    bool answered = false;
    try {
      answered = ask(on_event);
    } catch (const ContextError& full) {
      throw UsageError(fmt::format("{}; /clear starts over, and -c gives more room", full.what()));
    }
    reading.reset();
    if (!answered) {
      fmt::print(stderr, "\nimago: stopped before an answer; the conversation is unchanged\n");
      return;
    }
    print("\n");
    const EndReason end = session_.last().end;
    if (quiet_) return;
    if (end == EndReason::context_full) {
      fmt::print(stderr, "imago: the context of {} tokens is full, so the answer ends here; /clear starts over\n",
                 engine_.context());
    } else if (end == EndReason::max_tokens) {
      fmt::print(stderr, "imago: the answer was cut after {} tokens; -n allows more\n", session_.last().ids.size());
    }
  }

  void show_stats() const {
    const RequestResult& last = session_.last();
    fmt::print(stderr, "messages: {}\ncontext: {} of {} tokens\nlast prompt: {}\nlast answer: {}\n",
               session_.messages().size(), last.cached_tokens + last.prompt_tokens + last.ids.size(), engine_.context(),
               rate(last.prompt_tokens, last.prompt_seconds), rate(last.ids.size(), last.generate_seconds));
  }

  /// Matrices of one role and type in a line.
  void show_types() const {
    struct Line {
      std::string role, type;
      std::uint64_t bytes = 0;
      std::vector<std::pair<std::size_t, std::size_t>> blocks = {};  ///< runs, first and last
    };
    std::vector<Line> lines;
    for (const ModelMatrix& matrix : engine_.model().matrices()) {
      const auto same = [&](const Line& line) { return line.role == matrix.role && line.type == matrix.type.name(); };
      auto line = std::ranges::find_if(lines, same);
      if (line == lines.end()) line = lines.insert(line, {matrix.role, std::string(matrix.type.name())});
      line->bytes += matrix.bytes;
      if (!matrix.block) continue;
      if (line->blocks.empty() || line->blocks.back().second + 1 != *matrix.block) {
        line->blocks.emplace_back(*matrix.block, *matrix.block);
      }
      line->blocks.back().second = *matrix.block;
    }
    Table table({{"matrix"}, {"type"}, {"blocks"}, {"size", Table::Align::right}});
    for (const Line& line : lines) {
      std::vector<std::string> runs;
      for (const auto& [first, last] : line.blocks) {
        runs.push_back(first == last ? std::to_string(first) : fmt::format("{}-{}", first, last));
      }
      table.add({line.role, line.type, join(runs, ", "), format_bytes(line.bytes)});
    }
    fmt::print(stderr, "{}", table.text());
  }

  template <class Change>
  void change_types(Change change) {
    engine_.change_model([&](LanguageModel& model) { change_types_of(model, change); });
  }

  template <class Change>
  void change_types_of(LanguageModel& model, Change change) {
    if (!tokens_per_second_) tokens_per_second_ = measure_speed(model);
    const auto start = std::chrono::steady_clock::now();
    std::optional<Progress> bar(std::in_place, quiet_);
    const MorphedMatrices result = change(model, [&](std::uint64_t done, std::uint64_t total) {
      if (take_interrupt()) throw UsageError("stopped; every matrix has its type from before");
      bar->show(done, total, "morphing");
    });
    bar.reset();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!result.misfits.empty()) {
      fmt::print(stderr, "imago: rows of {}{} do not fit blocks of that type: as stored\n", result.misfits.front(),
                 result.misfits.size() == 1 ? "" : fmt::format(" and {} more", result.misfits.size() - 1));
    }
    const double before = *tokens_per_second_;
    if (!result.changed.empty()) tokens_per_second_ = measure_speed(model);
    fmt::print(stderr, "{} changed in {:.2f} s\nsize: {} -> {}\ngeneration: {:.1f} -> {:.1f} tokens/s\n",
               counted(static_cast<int>(result.changed.size()), "tensor"), seconds, format_bytes(result.bytes_before),
               format_bytes(result.bytes_after), before, *tokens_per_second_);
  }

  static double measure_speed(const LanguageModel& model) {
    constexpr std::size_t kTokens = 8;
    const ModelBenchOptions options{.prompt = 0, .generate = std::clamp(model.context(), std::size_t{1}, kTokens)};
    return bench_model(model, options).front().tokens_per_second;
  }

  Engine& engine_;
  ChatSession& session_;
  bool quiet_;
  std::optional<double> tokens_per_second_;  // with the types of now, once they were changed
};

void chat(const ChatCommand& options) {
  constexpr std::size_t kUsualContext = 4096;  // few conversations need the memory of a longer cache
  const GenerateOptions generation = generate_options(options.generation);
  ModelOptions load = options.generation.model;
  load.path = model_path(load.path);
  set_thread_count(options.generation.threads);
  const auto model = std::make_shared<LanguageModel>(load_model(load));
  EngineOptions one = engine_options(options.generation);
  if (one.context == 0) one.context = std::min(std::max(model->context(), std::size_t{1}), kUsualContext);
  warn_of_long_context(*model, one.context, load.quiet);
  Engine engine(model, one);
  ChatSession session(engine, {.generate = generation, .system = options.system});
  if (!session.note().empty() && !load.quiet) fmt::print(stderr, "imago: {}\n", printable(session.note()));
  const InterruptRequests interrupts;
  Chat(engine, session, load.quiet).run();
}

}  // namespace

Command add_chat(CLI::App& program) {
  CLI::App* command = program.add_subcommand("chat", "Talk with a language model");
  const auto options = std::make_shared<ChatCommand>();
  add_generation(*command, options->generation, -1);
  add_value(*command, "--system,--system-prompt", options->system, "TEXT", "The system message (default: none)");
  command->footer(
      "One message per line, also from a pipe. /help lists the chat commands.\n"
      "Examples:\n  imago chat\n  imago chat model.gguf\n  imago chat model.gguf --system 'Answer in French.' --temp "
      "0.2");
  return {command, [options] { chat(*options); }};
}

}  // namespace imago::cli
