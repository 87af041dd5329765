#pragma once

// Cuts a text into the words that byte-level BPE merges inside of.

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace imago::lm {

class WordSplitter {
 public:
  /// Expressions in the order in which they cut: what one matches and what is left between its matches are pieces for
  /// the next. Throws UnsupportedError, with the expression and why, for one that cannot be used.
  explicit WordSplitter(const std::vector<std::string>& patterns);
  WordSplitter(WordSplitter&&) noexcept;
  ~WordSplitter();

  using Word = std::function<void(std::string_view word)>;
  /// All words of `text` in order; together they are the text. Throws UnsupportedError if an expression of a file gives
  /// up on it; those with a name never do. REQUIRES: `text` is UTF-8.
  void split(std::string_view text, const Word& word) const;

 private:
  struct Stage;
  class Run;
  std::vector<Stage> stages_;
};

}  // namespace imago::lm
