#pragma once

// A program at a terminal, as a person sits at it: what it shows, keys pressed, and the end.

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace imago::testing {

inline constexpr std::string_view kCtrlC = "\x03", kCtrlD = "\x04", kCtrlS = "\x13";

/// Runs `command` (a path, then arguments) on a pseudo terminal of its own. Killed with the object if it still runs.
class Terminal {
 public:
  explicit Terminal(const std::vector<std::string>& command) {
    std::vector<char*> arguments;
    for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    master_ = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master_ < 0 || ::grantpt(master_) != 0 || ::unlockpt(master_) != 0) fail("posix_openpt");
    const std::string name = ::ptsname(master_);
    child_ = ::fork();
    if (child_ < 0) fail("fork");
    if (child_ == 0) {
      ::setsid();
      const int terminal = ::open(name.c_str(), O_RDWR);
      ::ioctl(terminal, TIOCSCTTY, 0);
      for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(terminal, descriptor);
      ::setenv("TERM", "xterm", 1);
      ::setenv("NO_COLOR", "1", 1);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      wait();
    }
    ::close(master_);
  }

  /// All that it has shown.
  const std::string& shown() const noexcept { return shown_; }

  void type(std::string_view keys) {
    seen_ = shown_.size();
    while (!keys.empty()) {
      const ssize_t written = ::write(master_, keys.data(), keys.size());
      if (written < 0 && errno != EINTR) fail("write");
      if (written > 0) keys.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  /// Waits until it shows `text` after what was there at the last `type`. False if it ends or half a minute passes.
  bool shows(std::string_view text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (shown_.find(text, seen_) == std::string::npos) {
      if (std::chrono::steady_clock::now() > end || !read_some()) return false;
    }
    return true;
  }

  /// Its exit code once it ends by itself; -1 if a signal ended it, -2 if it does not end.
  int end() {
    const auto last = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (read_some()) {
      if (std::chrono::steady_clock::now() > last) return -2;
    }
    return wait();
  }

 private:
  [[noreturn]] static void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

  /// False once nothing more can come.
  bool read_some() {
    pollfd ready{.fd = master_, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, 100) <= 0) return true;
    char buffer[4096];
    const ssize_t got = ::read(master_, buffer, sizeof buffer);
    if (got <= 0) return got < 0 && errno == EINTR;  // EIO: the other end is closed
    shown_.append(buffer, static_cast<std::size_t>(got));
    return true;
  }

  int wait() {
    int status = 0;
    while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  int master_ = -1;
  pid_t child_ = -1;
  std::string shown_;
  std::size_t seen_ = 0;
};

}  // namespace imago::testing
