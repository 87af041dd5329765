#pragma once

// Runs a program as a user would and keeps what it said.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace imago::testing {

struct ProcessResult {
  int exit_code = -1;  ///< -1 if a signal ended it
  int signal = 0;
  std::string out;
  std::string err;
};

struct ProcessOptions {
  std::vector<std::pair<std::string, std::string>> environment = {};  ///< added to ours
  std::string stdout_to = {};                                         ///< a file to write to instead of capturing
  std::string stdin_from = "/dev/null";                               ///< a file
  bool close_stdout = false;    ///< nobody reads: the pipe is closed before the program starts
  bool without_stdout = false;  ///< descriptor 1 is not open at all
};

namespace detail {

/// An unnamed temporary file: it takes any amount of output, so that nothing waits for a reader.
class Capture {
 public:
  Capture() : file_(std::tmpfile(), std::fclose) {
    if (!file_) throw std::system_error(errno, std::generic_category(), "tmpfile");
  }
  int descriptor() const { return ::fileno(file_.get()); }
  std::string text() const {
    std::string text;
    char buffer[4096];
    // Not by fread: the offset is the program's, too.
    for (ssize_t got = 0; (got = ::pread(descriptor(), buffer, sizeof buffer, static_cast<off_t>(text.size()))) > 0;) {
      text.append(buffer, static_cast<std::size_t>(got));
    }
    return text;
  }

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

/// The write end of a pipe that has no reader.
inline int widowed_pipe() {
  int ends[2];
  if (::pipe(ends) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  ::close(ends[0]);
  return ends[1];
}

}  // namespace detail

/// A program that runs.
class Process {
 public:
  /// Starts `command`: a path, then arguments.
  explicit Process(const std::vector<std::string>& command, const ProcessOptions& options = {}) {
    int target = out_.descriptor();
    if (options.close_stdout) target = detail::widowed_pipe();
    if (!options.stdout_to.empty()) target = ::open(options.stdout_to.c_str(), O_WRONLY | O_CLOEXEC);
    if (target < 0) throw std::system_error(errno, std::generic_category(), options.stdout_to);

    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);

    child_ = ::fork();
    if (child_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (child_ == 0) {
      ::dup2(::open(options.stdin_from.c_str(), O_RDONLY), STDIN_FILENO);
      ::dup2(target, STDOUT_FILENO);
      if (options.without_stdout) ::close(STDOUT_FILENO);
      ::dup2(err_.descriptor(), STDERR_FILENO);
      for (const auto& [name, value] : options.environment) ::setenv(name.c_str(), value.c_str(), 1);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    if (target != out_.descriptor()) ::close(target);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    wait();
  }

  /// What it has printed on standard error so far.
  std::string err() const { return err_.text(); }
  bool is_running() {
    if (child_ > 0 && ::waitpid(child_, &status_, WNOHANG) == child_) child_ = 0;
    return child_ > 0;
  }
  void send(int signal) const {
    if (child_ > 0) ::kill(child_, signal);
  }
  ProcessResult wait() {
    while (child_ > 0 && ::waitpid(child_, &status_, 0) < 0) {
      if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "waitpid");
    }
    child_ = 0;
    ProcessResult result;
    if (WIFEXITED(status_)) result.exit_code = WEXITSTATUS(status_);
    if (WIFSIGNALED(status_)) result.signal = WTERMSIG(status_);
    result.out = out_.text();
    result.err = err_.text();
    return result;
  }

 private:
  const detail::Capture out_, err_;
  pid_t child_ = 0;  // 0: it has ended
  int status_ = 0;
};

/// Runs `command` and waits for its end.
inline ProcessResult run_process(const std::vector<std::string>& command, const ProcessOptions& options = {}) {
  return Process(command, options).wait();
}

}  // namespace imago::testing
