#pragma once

#include <sys/types.h>
#include <string>

namespace imago::bench {

/// bench/torch_training.py as a child process; the protocol is described there.
class TorchChild {
 public:
  /// Not running if /usr/bin/python3 or its torch is missing, nor with 0 threads.
  explicit TorchChild(int threads);
  ~TorchChild();
  TorchChild(const TorchChild&) = delete;
  TorchChild& operator=(const TorchChild&) = delete;

  bool is_running() const noexcept { return !greeting_.empty(); }
  /// "PyTorch 1.13.1 with libopenblas.so.0"
  const std::string& greeting() const noexcept { return greeting_; }
  /// Sends a line and waits for the answer. Throws std::runtime_error if the child ended.
  std::string ask(const std::string& line);

 private:
  std::string read_line();

  pid_t child_ = 0;
  int to_ = -1, from_ = -1;
  std::string pending_;  // read, but not yet asked for
  std::string greeting_;
};

}  // namespace imago::bench
