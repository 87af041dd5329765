#pragma once

// Parser of a subset of Jinja2, the part that published chat templates use: if, for (with else, if, loop, break and
// continue), set, macro, filter, raw and generation blocks, all operators, and the filters, tests, functions and
// methods that have no side effects. Not supported: include, import, extends, call, recursive loops, macros inside
// loops, *arguments, and autoescaping. A template can access nothing but the values it is given.
//
// Parsing yields functions: where the syntax of a construct is read, there stands what it does.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/lexer.h"
#include "jinja/run.h"

namespace imago::jinja {

/// The tokens of a template, a position in them, and the depth of nesting.
class TokenStream {
 public:
  explicit TokenStream(const Source& source) : source_(source), tokens_(tokenize(source)) {}

  const Token& now() const noexcept { return tokens_[next_]; }
  const Token& ahead() const noexcept { return tokens_[std::min(next_ + 1, tokens_.size() - 1)]; }
  const Token& take() noexcept { return tokens_[next_ + 1 < tokens_.size() ? next_++ : next_]; }

  bool is(TokenKind kind) const noexcept { return now().kind == kind; }
  bool is_sign(std::string_view sign) const noexcept { return is(TokenKind::sign) && now().text == sign; }
  bool is_word(std::string_view word) const noexcept { return is(TokenKind::name) && now().text == word; }
  bool skip_sign(std::string_view sign) noexcept { return is_sign(sign) && (take(), true); }
  bool skip_word(std::string_view word) noexcept { return is_word(word) && (take(), true); }

  void expect_sign(std::string_view sign) {
    if (!skip_sign(sign)) fail_unexpected(fmt::format("'{}'", sign));
  }
  void expect_word(std::string_view word) {
    if (!skip_word(word)) fail_unexpected(fmt::format("'{}'", word));
  }
  /// REQUIRES: `kind` is print_end or block_end.
  void expect_end(TokenKind kind) {
    if (!is(kind)) fail_unexpected("the end of the tag");
    take();
  }
  std::string expect_name() {
    if (!is(TokenKind::name)) fail_unexpected("a name");
    return take().text;
  }
  /// Calls read_item() for each item up to the sign `close`; commas separate them, and one may follow the last.
  template <class ReadItem>
  void read_list(std::string_view close, ReadItem read_item) {
    for (bool first = true; !skip_sign(close); first = false) {
      if (!first) {
        expect_sign(",");
        if (skip_sign(close)) return;
      }
      read_item();
    }
  }
  [[noreturn]] void fail_unexpected(std::string_view expected) const;
  const Source& source() const noexcept { return source_; }

  /// One level of nesting of brackets, blocks or operators. Fails beyond kMaxNesting.
  class Level {
   public:
    explicit Level(TokenStream& stream) : stream_(stream) { stream.enter(); }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --stream_.depth_; }

   private:
    TokenStream& stream_;
  };

 private:
  void enter();

  const Source& source_;
  std::vector<Token> tokens_;
  std::size_t next_ = 0;
  int depth_ = 0;
};

/// The arguments of a call before they are evaluated.
struct ArgumentList {
  std::vector<Expression> positional;
  std::vector<std::pair<std::string, Expression>> named;
  Arguments evaluate(Run& run) const;
};

/// "name(arguments)" after '|'.
struct Filter {
  std::string name;
  ArgumentList arguments;
  Value apply(Run& run, const Value& input) const;
};

/// One expression. Without `conditional` an "if" after it is left to the caller.
Expression parse_expression(TokenStream& tokens, bool conditional = true);
/// One expression, or a tuple of several separated by commas.
Expression parse_expressions(TokenStream& tokens, bool conditional = true);
Filter parse_filter(TokenStream& tokens);

/// Throws FormatError for invalid Jinja, UnsupportedError for what is outside the subset.
Block parse_template(const Source& source);

}  // namespace imago::jinja
