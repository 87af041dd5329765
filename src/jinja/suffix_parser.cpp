// What follows a value in an expression: .name, [item], [a:b:c], (arguments), |filter, is test.

#include <fmt/format.h>

#include "jinja/token_stream.h"

namespace imago::jinja {

namespace {

/// Suffixes nest to the left; a chain of them is as deep as it is long.
class SuffixCount {
 public:
  explicit SuffixCount(const TokenStream& tokens) : tokens_(tokens) {}
  void add() {
    if (++count_ > kMaxNesting) {
      tokens_.source().fail(tokens_.now().at, fmt::format("more than {} suffixes after one value", kMaxNesting));
    }
  }

 private:
  const TokenStream& tokens_;
  int count_ = 0;
};

}  // namespace

ExpressionPtr ExpressionParser::suffixes(ExpressionPtr inner) {
  for (SuffixCount count(tokens_);; count.add()) {
    const std::size_t at = tokens_.now().at;
    if (tokens_.skip_sign(".")) {
      if (tokens_.is(TokenKind::integer)) {
        auto item = std::make_unique<ItemOf>(at);
        item->object = std::move(inner);
        item->key = number();
        inner = std::move(item);
        continue;
      }
      auto attribute = std::make_unique<AttributeOf>(at);
      attribute->object = std::move(inner);
      attribute->name = tokens_.expect_name();
      inner = std::move(attribute);
    } else if (tokens_.skip_sign("[")) {
      inner = subscript(std::move(inner), at);
    } else if (tokens_.is_sign("(")) {
      inner = call(std::move(inner), at);
    } else {
      return inner;
    }
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr inner, std::size_t at) {
  ExpressionPtr from = tokens_.is_sign(":") ? nullptr : expressions();
  if (from && tokens_.skip_sign("]")) {
    auto item = std::make_unique<ItemOf>(at);
    item->object = std::move(inner);
    item->key = std::move(from);
    return item;
  }
  auto slice = std::make_unique<SliceOf>(at);
  slice->object = std::move(inner);
  slice->from = std::move(from);
  tokens_.expect_sign(":");
  if (!tokens_.is_sign(":") && !tokens_.is_sign("]")) slice->to = expression();
  if (tokens_.skip_sign(":") && !tokens_.is_sign("]")) slice->step = expression();
  tokens_.expect_sign("]");
  return slice;
}

ArgumentList ExpressionParser::arguments() {
  ArgumentList list;
  tokens_.expect_sign("(");
  for (bool first = true; !tokens_.skip_sign(")"); first = false) {
    if (!first) {
      tokens_.expect_sign(",");
      if (tokens_.skip_sign(")")) break;
    }
    const std::size_t at = tokens_.now().at;
    if (tokens_.is_sign("*") || tokens_.is_sign("**")) {
      tokens_.source().refuse(at, "arguments out of a list or dictionary ('*', '**') are not supported");
    }
    if (tokens_.is(TokenKind::name) && tokens_.ahead().kind == TokenKind::sign && tokens_.ahead().text == "=") {
      std::string name = tokens_.take().text;
      tokens_.take();
      for (const auto& [given, value] : list.named) {
        if (given == name) tokens_.source().fail(at, fmt::format("the argument '{}' is given twice", name));
      }
      list.named.emplace_back(std::move(name), expression());
    } else {
      if (!list.named.empty()) tokens_.source().fail(at, "an argument without a name after one with a name");
      list.positional.push_back(expression());
    }
  }
  return list;
}

ExpressionPtr ExpressionParser::call(ExpressionPtr inner, std::size_t at) {
  auto made = std::make_unique<Call>(at);
  made->callee = std::move(inner);
  made->arguments = arguments();
  return made;
}

std::unique_ptr<FilterCall> ExpressionParser::filter() {
  auto made = std::make_unique<FilterCall>(tokens_.now().at);
  made->name = tokens_.expect_name();
  if (tokens_.is_sign("(")) made->arguments = arguments();
  return made;
}

ExpressionPtr ExpressionParser::filters_and_tests(ExpressionPtr inner) {
  for (SuffixCount count(tokens_);; count.add()) {
    const std::size_t at = tokens_.now().at;
    if (tokens_.skip_sign("|")) {
      std::unique_ptr<FilterCall> made = filter();
      made->input = std::move(inner);
      inner = std::move(made);
    } else if (tokens_.skip_word("is")) {
      inner = test(std::move(inner), at);
    } else if (tokens_.is_sign("(")) {
      inner = call(std::move(inner), at);
    } else {
      return inner;
    }
  }
}

ExpressionPtr ExpressionParser::test(ExpressionPtr inner, std::size_t at) {
  const bool negated = tokens_.skip_word("not");
  auto made = std::make_unique<TestCall>(at);
  made->input = std::move(inner);
  made->name = tokens_.expect_name();
  const TokenKind next = tokens_.now().kind;
  const bool value_follows =
      (next == TokenKind::name && !tokens_.is_word("else") && !tokens_.is_word("or") && !tokens_.is_word("and")) ||
      next == TokenKind::string || next == TokenKind::integer || next == TokenKind::real || tokens_.is_sign("[") ||
      tokens_.is_sign("{");
  if (tokens_.is_sign("(")) {
    made->arguments = arguments();
  } else if (value_follows && !tokens_.is_word("if") && !tokens_.is_word("is")) {
    const TokenStream::Level level(tokens_);
    made->arguments.positional.push_back(suffixes(primary()));
  }
  if (!negated) return made;
  return std::make_unique<Not>(at, std::move(made));
}

}  // namespace imago::jinja
