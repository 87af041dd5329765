#pragma once

// Template text to tokens. Whitespace is treated as transformers sets Jinja up: the newline after a block tag goes
// (trim_blocks), and so do the blanks before one that starts its line (lstrip_blocks).

#include <cstdint>
#include <string>
#include <vector>

#include "jinja/source.h"

namespace imago::jinja {

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
  std::string text;  ///< of a string: what it means
  std::size_t at;    ///< byte in the source
};

/// The last token is `end`. Throws FormatError for what is no token, and for brackets that do not match.
std::vector<Token> tokenize(const Source& source);

/// Newlines as Jinja sees them: \r\n and \r become \n, and one at the very end goes.
std::string normalize_newlines(std::string text);

}  // namespace imago::jinja
