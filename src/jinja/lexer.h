#pragma once

// The text of a template and its tokens. White space is handled as transformers configures Jinja: the newline after a
// block tag is removed (trim_blocks), and so are blanks before a tag that starts its line (lstrip_blocks).

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace imago::jinja {

// Limits. They are far beyond what published templates need for the longest chats, and limit a hostile one to about a
// second and a few hundred megabytes.
inline constexpr std::size_t kMaxSourceBytes = 1 << 20;
inline constexpr int kMaxNesting = 64;                         ///< of blocks and expressions in the source
inline constexpr int kMaxEvaluationDepth = 1024;               ///< of both at run time, through macros
inline constexpr int kMaxCallDepth = 64;                       ///< of macro calls
inline constexpr int kMaxValueDepth = 100;                     ///< of lists and dictionaries
inline constexpr std::size_t kMaxSteps = 5'000'000;            ///< expressions, statements and loop iterations
inline constexpr std::size_t kMaxTextBytes = 16 << 20;         ///< of the output and of each string
inline constexpr std::size_t kMaxAllocatedBytes = 256u << 20;  ///< of all values created
inline constexpr std::size_t kMaxRange = 100'000;              ///< numbers of one range()

struct Source {
  std::string text;

  /// Counted from 1.
  std::size_t line_of(std::size_t offset) const noexcept;
  /// Throws FormatError with the byte and the line.
  [[noreturn]] void fail(std::size_t offset, std::string_view problem) const;
  /// Throws UnsupportedError with the line.
  [[noreturn]] void refuse(std::size_t offset, std::string_view problem) const;
};

enum class TokenKind : std::uint8_t {
  data,  ///< text between tags
  print_begin,
  print_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  real,
  sign,  ///< operators and brackets
  end,
};

struct Token {
  TokenKind kind;
  std::string text;  ///< for a string its value, without quotes and escapes
  std::size_t at;    ///< byte in the source
};

/// The last token is `end`. Throws FormatError for invalid tokens and unbalanced brackets.
std::vector<Token> tokenize(const Source& source);

/// Converts \r\n and \r to \n and removes one newline at the end, as Jinja does.
std::string normalize_newlines(std::string text);

}  // namespace imago::jinja
