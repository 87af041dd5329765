#include "line_input.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "imago/system.h"

namespace imago::cli {

namespace {

// A byte in this pipe is a request that nobody has taken up. A flag alone would be missed when it is raised between
// looking at it and waiting for a line; a pipe can be waited for together with the line.
int requests[2] = {-1, -1};

extern "C" void note_interrupt(int signal) {
  const int before = errno;
  pollfd pending{.fd = requests[0], .events = POLLIN, .revents = 0};
  // Whoever asks again before anyone has looked wants out.
  if (::poll(&pending, 1, 0) > 0) {
    remove_unfinished_files();
    ::_exit(128 + signal);
  }
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = ::write(requests[1], &byte, 1);
  errno = before;
}

}  // namespace

InterruptRequests::InterruptRequests() {
  if (::pipe2(requests, O_CLOEXEC | O_NONBLOCK) != 0) throw std::system_error(errno, std::generic_category(), "pipe2");
  struct sigaction wanted {};
  wanted.sa_handler = note_interrupt;
  wanted.sa_flags = SA_RESTART;  // text being written to a slow terminal is not lost
  ::sigaction(SIGINT, &wanted, &before_);
}

InterruptRequests::~InterruptRequests() {
  ::sigaction(SIGINT, &before_, nullptr);
  for (int& end : requests) ::close(std::exchange(end, -1));
}

bool take_interrupt() {
  char byte = 0;
  return ::read(requests[0], &byte, 1) == 1;
}

LineInput::Outcome LineInput::next(std::string& line) {
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

}  // namespace imago::cli
