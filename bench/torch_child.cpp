#include "torch_child.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

namespace imago::bench {

TorchChild::TorchChild(int threads) {
  if (threads == 0) return;
  int down[2];
  int up[2];
  if (pipe(down) != 0) return;
  if (pipe(up) != 0) {
    close(down[0]);
    close(down[1]);
    return;
  }
  signal(SIGPIPE, SIG_IGN);  // a child that ended is noticed by its missing answer
  const std::string count = std::to_string(threads);
  child_ = fork();
  if (child_ == 0) {
    dup2(down[0], STDIN_FILENO);
    dup2(up[1], STDOUT_FILENO);
    for (const int end : {down[0], down[1], up[0], up[1]}) close(end);
    setenv("OMP_NUM_THREADS", count.c_str(), 1);
    execl("/usr/bin/python3", "python3", IMAGO_TORCH_SCRIPT, count.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  close(down[0]);
  close(up[1]);
  to_ = down[1];
  from_ = up[0];
  if (child_ > 0) greeting_ = read_line();
}

TorchChild::~TorchChild() {
  if (to_ >= 0) close(to_);  // its end of input
  if (from_ >= 0) close(from_);
  if (child_ > 0) waitpid(child_, nullptr, 0);
}

std::string TorchChild::ask(const std::string& line) {
  const std::string text = line + "\n";
  const bool sent = write(to_, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  std::string answer = sent ? read_line() : std::string();
  if (answer.empty()) throw std::runtime_error(fmt::format("PyTorch ended at \"{}\"", line));
  return answer;
}

std::string TorchChild::read_line() {
  for (;;) {
    if (const std::size_t end = pending_.find('\n'); end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    char buffer[256];
    const ssize_t count = read(from_, buffer, sizeof buffer);
    if (count <= 0) return {};
    pending_.append(buffer, static_cast<std::size_t>(count));
  }
}

}  // namespace imago::bench
