#pragma once

// Text that comes in pieces of bytes and goes out in whole characters, up to a stop string.

#include <string>
#include <string_view>
#include <vector>

#include "imago/lm.h"

namespace imago::lm {

/// Holds back what may yet become a stop string or a character. The text that comes out, joined, ends before the stop
/// string that is complete first, however the bytes were cut.
class TextStream {
 public:
  /// Throws UsageError for an empty stop string.
  explicit TextStream(std::vector<std::string> stops);

  /// What is certain now. Nothing after a stop string.
  std::string push(std::string_view bytes);
  /// What was held back. Nothing after a stop string.
  std::string finish();
  bool stopped() const noexcept { return stopped_; }

 private:
  std::size_t held_bytes() const noexcept;

  std::vector<std::string> stops_;
  Utf8Stream characters_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace imago::lm
