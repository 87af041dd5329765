// Expressions, loosest operators first: a if b else c, or, and, not, comparisons, + -, ~, * / // %, **, signs, then
// what follows a value: .name, [item], (call), |filter, is test.

#include <fmt/format.h>

#include <charconv>

#include "jinja/token_stream.h"

namespace imago::jinja {

void TokenStream::enter() {
  if (++depth_ > kMaxNesting) {
    --depth_;
    source_.fail(now().at, fmt::format("nested more than {} deep", kMaxNesting));
  }
}

void TokenStream::fail_unexpected(std::string_view wanted) const {
  const Token& token = now();
  std::string found = fmt::format("'{}'", token.text);
  if (token.kind == TokenKind::end) found = "the end of the template";
  if (token.kind == TokenKind::block_end || token.kind == TokenKind::print_end) found = "the end of the tag";
  if (token.kind == TokenKind::string) found = "a string";
  source_.fail(token.at, fmt::format("{} where {} is due", found, wanted));
}

void TokenStream::expect_sign(std::string_view sign) {
  if (!skip_sign(sign)) fail_unexpected(fmt::format("'{}'", sign));
}
void TokenStream::expect_word(std::string_view word) {
  if (!skip_word(word)) fail_unexpected(fmt::format("'{}'", word));
}
void TokenStream::expect(TokenKind kind) {
  if (!is(kind)) fail_unexpected("the end of the tag");
  take();
}
std::string TokenStream::expect_name() {
  if (!is(TokenKind::name)) fail_unexpected("a name");
  return take().text;
}

ExpressionPtr ExpressionParser::expressions(bool conditional) {
  const std::size_t at = tokens_.now().at;
  ExpressionPtr first = expression(conditional);
  if (!tokens_.is_sign(",")) return first;
  auto tuple = std::make_unique<ListLiteral>(at);
  tuple->tuple = true;
  tuple->items.push_back(std::move(first));
  while (tokens_.skip_sign(",")) {
    if (tokens_.is(TokenKind::block_end) || tokens_.is(TokenKind::print_end) || tokens_.is_sign(")")) break;
    tuple->items.push_back(expression(conditional));
  }
  return tuple;
}

ExpressionPtr ExpressionParser::expression(bool conditional) {
  const TokenStream::Level level(tokens_);
  const std::size_t at = tokens_.now().at;
  ExpressionPtr value = disjunction();
  if (!conditional || !tokens_.skip_word("if")) return value;
  auto choice = std::make_unique<Conditional>(at);
  choice->yes = std::move(value);
  choice->condition = disjunction();
  if (tokens_.skip_word("else")) choice->no = expression();
  if (!tokens_.is_word("if")) return choice;
  tokens_.fail_unexpected("'else' or the end of the choice");
}

template <class Next>
ExpressionPtr ExpressionParser::logic(std::string_view word, bool conjunction, Next next) {
  const std::size_t at = tokens_.now().at;
  ExpressionPtr first = next();
  if (!tokens_.is_word(word)) return first;
  auto chain = std::make_unique<Logic>(at);
  chain->conjunction = conjunction;
  chain->operands.push_back(std::move(first));
  while (tokens_.skip_word(word)) chain->operands.push_back(next());
  return chain;
}

ExpressionPtr ExpressionParser::disjunction() {
  return logic("or", false, [&] { return conjunction(); });
}
ExpressionPtr ExpressionParser::conjunction() {
  return logic("and", true, [&] { return negation(); });
}

ExpressionPtr ExpressionParser::negation() {
  const std::size_t at = tokens_.now().at;
  if (!tokens_.skip_word("not")) return comparison();
  const TokenStream::Level level(tokens_);
  return std::make_unique<Not>(at, negation());
}

ExpressionPtr ExpressionParser::comparison() {
  static constexpr std::pair<std::string_view, Operator> kSigns[] = {
      {"==", Operator::equal},      {"!=", Operator::unequal}, {"<", Operator::less},
      {"<=", Operator::less_equal}, {">", Operator::greater},  {">=", Operator::greater_equal}};
  const auto read_operator = [&]() -> const Operator* {
    static constexpr Operator kInside = Operator::inside, kOutside = Operator::outside;
    for (const auto& [sign, operation] : kSigns) {
      if (tokens_.skip_sign(sign)) return &operation;
    }
    if (tokens_.skip_word("in")) return &kInside;
    if (tokens_.is_word("not") && tokens_.ahead().kind == TokenKind::name && tokens_.ahead().text == "in") {
      tokens_.take();
      tokens_.take();
      return &kOutside;
    }
    return nullptr;
  };
  const std::size_t at = tokens_.now().at;
  ExpressionPtr first = sum();
  std::unique_ptr<Comparison> chain;
  while (const Operator* operation = read_operator()) {
    if (!chain) {
      chain = std::make_unique<Comparison>(at);
      chain->first = std::move(first);
    }
    chain->rest.emplace_back(*operation, sum());
  }
  return chain ? ExpressionPtr(std::move(chain)) : std::move(first);
}

template <class Next>
ExpressionPtr ExpressionParser::arithmetic(std::initializer_list<std::pair<std::string_view, Operator>> signs,
                                           Next next) {
  const std::size_t at = tokens_.now().at;
  ExpressionPtr first = next();
  std::unique_ptr<Arithmetic> chain;
  for (bool more = true; more;) {
    more = false;
    for (const auto& [sign, operation] : signs) {
      if (!tokens_.skip_sign(sign)) continue;
      if (!chain) {
        chain = std::make_unique<Arithmetic>(at);
        chain->first = std::move(first);
      }
      chain->rest.emplace_back(operation, next());
      more = true;
      break;
    }
  }
  return chain ? ExpressionPtr(std::move(chain)) : std::move(first);
}

ExpressionPtr ExpressionParser::sum() {
  return arithmetic({{"+", Operator::add}, {"-", Operator::subtract}}, [&] { return concatenation(); });
}

ExpressionPtr ExpressionParser::concatenation() {
  const std::size_t at = tokens_.now().at;
  ExpressionPtr first = product();
  if (!tokens_.is_sign("~")) return first;
  auto chain = std::make_unique<Concatenation>(at);
  chain->operands.push_back(std::move(first));
  while (tokens_.skip_sign("~")) chain->operands.push_back(product());
  return chain;
}

ExpressionPtr ExpressionParser::product() {
  return arithmetic(
      {{"*", Operator::multiply}, {"/", Operator::divide}, {"//", Operator::floor_divide}, {"%", Operator::modulo}},
      [&] { return power(); });
}

ExpressionPtr ExpressionParser::power() {
  return arithmetic({{"**", Operator::power}}, [&] { return unary(); });
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const std::size_t at = tokens_.now().at;
  ExpressionPtr value;
  if (tokens_.is_sign("-") || tokens_.is_sign("+")) {
    const TokenStream::Level level(tokens_);
    const bool negative = tokens_.take().text == "-";
    value = std::make_unique<Sign>(at, unary(false), negative);
  } else {
    value = primary();
  }
  value = suffixes(std::move(value));
  return with_filters ? filters_and_tests(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::number() {
  const Token& token = tokens_.take();
  const char* const last = token.text.data() + token.text.size();
  if (token.kind == TokenKind::real) {
    double real = 0;
    const auto [end, error] = std::from_chars(token.text.data(), last, real);
    if (error != std::errc() || end != last) tokens_.source().fail(token.at, "a number that no double holds");
    return std::make_unique<Literal>(token.at, Value(real));
  }
  int base = 10;
  std::size_t skipped = 0;
  if (token.text.size() > 2 && token.text[0] == '0' && token.text[1] > '9') {
    const char mark = static_cast<char>(token.text[1] | 0x20);
    base = mark == 'x' ? 16 : mark == 'o' ? 8 : 2;
    skipped = 2;
  }
  std::int64_t integer = 0;
  const auto [end, error] = std::from_chars(token.text.data() + skipped, last, integer, base);
  if (error != std::errc() || end != last) {
    tokens_.source().fail(token.at, fmt::format("'{}' is no number of 64 bits", token.text));
  }
  return std::make_unique<Literal>(token.at, Value(integer));
}

ExpressionPtr ExpressionParser::primary() {
  const std::size_t at = tokens_.now().at;
  if (tokens_.is(TokenKind::integer) || tokens_.is(TokenKind::real)) return number();
  if (tokens_.is(TokenKind::string)) {
    std::string text;
    while (tokens_.is(TokenKind::string)) text += tokens_.take().text;  // neighbours join, as in Python
    return std::make_unique<Literal>(at, make_text(std::move(text)));
  }
  if (tokens_.is(TokenKind::name)) {
    const std::string& name = tokens_.take().text;
    if (name == "true" || name == "True") return std::make_unique<Literal>(at, Value(true));
    if (name == "false" || name == "False") return std::make_unique<Literal>(at, Value(false));
    if (name == "none" || name == "None") return std::make_unique<Literal>(at, Value());
    return std::make_unique<Name>(at, name);
  }
  if (tokens_.skip_sign("(")) {
    if (tokens_.skip_sign(")")) {
      auto empty = std::make_unique<ListLiteral>(at);
      empty->tuple = true;
      return empty;
    }
    ExpressionPtr inner = expressions();
    tokens_.expect_sign(")");
    return inner;
  }
  if (tokens_.skip_sign("[")) return list(at);
  if (tokens_.skip_sign("{")) return dict(at);
  tokens_.fail_unexpected("a value");
}

ExpressionPtr ExpressionParser::list(std::size_t at) {
  auto made = std::make_unique<ListLiteral>(at);
  while (!tokens_.skip_sign("]")) {
    if (!made->items.empty()) {
      tokens_.expect_sign(",");
      if (tokens_.skip_sign("]")) break;
    }
    made->items.push_back(expression());
  }
  return made;
}

ExpressionPtr ExpressionParser::dict(std::size_t at) {
  auto made = std::make_unique<DictLiteral>(at);
  while (!tokens_.skip_sign("}")) {
    if (!made->items.empty()) {
      tokens_.expect_sign(",");
      if (tokens_.skip_sign("}")) break;
    }
    ExpressionPtr key = expression();
    tokens_.expect_sign(":");
    made->items.emplace_back(std::move(key), expression());
  }
  return made;
}

}  // namespace imago::jinja
