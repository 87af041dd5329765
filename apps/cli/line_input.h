#pragma once

// Lines typed at a terminal, and Ctrl-C as a request instead of an end.

#include <csignal>
#include <string>

namespace imago::cli {

/// While it lives Ctrl-C is a request that `take_interrupt` or `LineInput` takes up, whenever it comes: also between
/// two of their calls. Pressed again before anyone took it up, it ends the program. One at a time.
class InterruptRequests {
 public:
  InterruptRequests();
  InterruptRequests(const InterruptRequests&) = delete;
  InterruptRequests& operator=(const InterruptRequests&) = delete;
  ~InterruptRequests();

 private:
  struct sigaction before_ {};
};

/// Whether Ctrl-C was pressed since it was last asked.
bool take_interrupt();

/// Lines of standard input.
class LineInput {
 public:
  enum class Outcome : unsigned char { line, end, interrupt };
  Outcome next(std::string& line);

 private:
  std::string text_;
};

}  // namespace imago::cli
