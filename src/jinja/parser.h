#pragma once

// Parser of a subset of Jinja2, the part that published chat templates use: if, for (with else, if, loop, break and
// continue), set, macro, filter, raw and generation blocks, all operators, and the filters, tests, functions and
// methods that have no side effects. Not supported: include, import, extends, call, recursive loops, macros inside
// loops, *arguments, and autoescaping. A template can access nothing but the values it is given.

#include <string_view>

#include "jinja/ast.h"
#include "jinja/lexer.h"

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

  void expect_sign(std::string_view sign);
  void expect_word(std::string_view word);
  void expect(TokenKind kind);
  std::string expect_name();
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

/// Parses expressions.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  ExpressionPtr expression(bool conditional = true);
  /// One expression, or a tuple of several separated by commas.
  ExpressionPtr expressions(bool conditional = true);
  /// "name(arguments)" after '|'.
  std::unique_ptr<FilterCall> filter();

 private:
  ExpressionPtr disjunction();
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters = true);
  ExpressionPtr primary();
  ExpressionPtr suffixes(ExpressionPtr inner);
  ExpressionPtr subscript(ExpressionPtr inner, std::size_t at);
  ExpressionPtr call(ExpressionPtr inner, std::size_t at);
  ExpressionPtr filters_and_tests(ExpressionPtr inner);
  ExpressionPtr test(ExpressionPtr inner, std::size_t at);
  ExpressionPtr number();
  ExpressionPtr list(std::size_t at);
  ExpressionPtr dict(std::size_t at);
  ArgumentList arguments();
  template <class Next>
  ExpressionPtr logic(std::string_view word, bool conjunction, Next next);
  template <class Next>
  ExpressionPtr arithmetic(std::initializer_list<std::pair<std::string_view, ArithmeticOperator>> signs, Next next);

  TokenStream& tokens_;
};

/// Throws FormatError for invalid Jinja, UnsupportedError for what is outside the subset.
Block parse_template(const Source& source);

}  // namespace imago::jinja
