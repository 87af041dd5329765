#pragma once

// The text of a template, and complaints about it.

#include <cstddef>
#include <string>
#include <string_view>

namespace imago::jinja {

/// What a template may cost. They are far beyond what published templates need for the longest chats, and keep a
/// hostile one to a second of time and some hundred megabytes.
inline constexpr std::size_t kMaxSourceBytes = 1 << 20;
inline constexpr int kMaxNesting = 64;                         ///< of blocks and expressions in the text
inline constexpr int kMaxEvaluationDepth = 1024;               ///< of both while running, through macros
inline constexpr int kMaxCallDepth = 64;                       ///< of macros in each other
inline constexpr int kMaxValueDepth = 100;                     ///< of lists and dictionaries in each other
inline constexpr std::size_t kMaxSteps = 5'000'000;            ///< expressions and statements run, items walked over
inline constexpr std::size_t kMaxTextBytes = 16 << 20;         ///< of the output and of each string on the way
inline constexpr std::size_t kMaxAllocatedBytes = 256u << 20;  ///< of all values made
inline constexpr std::size_t kMaxRange = 100'000;              ///< numbers of one range()

struct Source {
  std::string text;

  /// From 1.
  std::size_t line_of(std::size_t offset) const noexcept;
  /// Throws FormatError with the byte and the line.
  [[noreturn]] void fail(std::size_t offset, std::string_view problem) const;
  /// Throws UnsupportedError with the line.
  [[noreturn]] void refuse(std::size_t offset, std::string_view problem) const;
};

}  // namespace imago::jinja
