#pragma once

// Where written bytes go.

#include <span>
#include <string>
#include <string_view>

#include "base/atomic_file.h"

namespace imago::files {

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void write(std::string_view text) = 0;
};

class StringSink final : public Sink {
 public:
  void write(std::string_view text) override { text_ += text; }
  std::string& text() noexcept { return text_; }

 private:
  std::string text_;
};

/// Does not commit.
class FileSink final : public Sink {
 public:
  explicit FileSink(AtomicFile& file) : file_(file) {}
  void write(std::string_view text) override { file_.write(text); }

 private:
  AtomicFile& file_;
};

}  // namespace imago::files
