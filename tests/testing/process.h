#pragma once

// Runs a program as a user would and keeps what it said.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
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
    std::rewind(file_.get());
    while (const std::size_t got = std::fread(buffer, 1, sizeof buffer, file_.get())) text.append(buffer, got);
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

/// Runs `command` (a path, then arguments) and waits for its end.
inline ProcessResult run_process(const std::vector<std::string>& command, const ProcessOptions& options = {}) {
  const detail::Capture out;
  const detail::Capture err;
  int target = out.descriptor();
  if (options.close_stdout) target = detail::widowed_pipe();
  if (!options.stdout_to.empty()) target = ::open(options.stdout_to.c_str(), O_WRONLY | O_CLOEXEC);
  if (target < 0) throw std::system_error(errno, std::generic_category(), options.stdout_to);

  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);

  const pid_t child = ::fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) {
    ::dup2(::open(options.stdin_from.c_str(), O_RDONLY), STDIN_FILENO);
    ::dup2(target, STDOUT_FILENO);
    if (options.without_stdout) ::close(STDOUT_FILENO);
    ::dup2(err.descriptor(), STDERR_FILENO);
    for (const auto& [name, value] : options.environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  if (target != out.descriptor()) ::close(target);

  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "waitpid");
  }
  ProcessResult result;
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  result.out = out.text();
  result.err = err.text();
  return result;
}

}  // namespace imago::testing
