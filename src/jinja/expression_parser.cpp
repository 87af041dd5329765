// Parses expressions, in order of precedence: a if b else c, or, and, not, comparisons, + -, ~, * / // %, **, signs,
// then what follows a value: .name, [item], [from:to:step], (call), |filter, is test.

#include <fmt/format.h>

#include <charconv>

#include "jinja/parser.h"

namespace imago::jinja {

void TokenStream::enter() {
  if (++depth_ > kMaxNesting) {
    --depth_;
    source_.fail(now().at, fmt::format("nested more than {} levels deep", kMaxNesting));
  }
}

void TokenStream::fail_unexpected(std::string_view expected) const {
  const Token& token = now();
  std::string found = fmt::format("'{}'", token.text);
  if (token.kind == TokenKind::end) found = "the end of the template";
  if (token.kind == TokenKind::block_end || token.kind == TokenKind::print_end) found = "the end of the tag";
  if (token.kind == TokenKind::string) found = "a string";
  source_.fail(token.at, fmt::format("expected {}, got {}", expected, found));
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
  tokens_.fail_unexpected("'else' or the end of the expression");
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
  static constexpr std::pair<std::string_view, ComparisonOperator> kSigns[] = {
      {"==", ComparisonOperator::equal},  {"!=", ComparisonOperator::unequal},
      {"<", ComparisonOperator::less},    {"<=", ComparisonOperator::less_equal},
      {">", ComparisonOperator::greater}, {">=", ComparisonOperator::greater_equal}};
  const auto read_operator = [&]() -> const ComparisonOperator* {
    static constexpr ComparisonOperator kInside = ComparisonOperator::inside, kOutside = ComparisonOperator::outside;
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
  while (const ComparisonOperator* operation = read_operator()) {
    if (!chain) {
      chain = std::make_unique<Comparison>(at);
      chain->first = std::move(first);
    }
    chain->rest.emplace_back(*operation, sum());
  }
  return chain ? ExpressionPtr(std::move(chain)) : std::move(first);
}

template <class Next>
ExpressionPtr ExpressionParser::arithmetic(std::initializer_list<std::pair<std::string_view, ArithmeticOperator>> signs,
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
  return arithmetic({{"+", ArithmeticOperator::add}, {"-", ArithmeticOperator::subtract}},
                    [&] { return concatenation(); });
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
  return arithmetic({{"*", ArithmeticOperator::multiply},
                     {"/", ArithmeticOperator::divide},
                     {"//", ArithmeticOperator::floor_divide},
                     {"%", ArithmeticOperator::modulo}},
                    [&] { return power(); });
}

ExpressionPtr ExpressionParser::power() {
  return arithmetic({{"**", ArithmeticOperator::power}}, [&] { return unary(); });
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
    if (error != std::errc() || end != last) tokens_.source().fail(token.at, "the number does not fit a double");
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
    tokens_.source().fail(token.at, fmt::format("'{}' is not a 64-bit integer", token.text));
  }
  return std::make_unique<Literal>(token.at, Value(integer));
}

ExpressionPtr ExpressionParser::primary() {
  const std::size_t at = tokens_.now().at;
  if (tokens_.is(TokenKind::integer) || tokens_.is(TokenKind::real)) return number();
  if (tokens_.is(TokenKind::string)) {
    std::string text;
    while (tokens_.is(TokenKind::string)) text += tokens_.take().text;  // adjacent strings are joined, as in Python
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

namespace {

/// Limits the number of suffixes: they nest to the left, so a chain of them is as deep as it is long.
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
      tokens_.source().refuse(at, "'*' and '**' before arguments are not supported");
    }
    if (tokens_.is(TokenKind::name) && tokens_.ahead().kind == TokenKind::sign && tokens_.ahead().text == "=") {
      std::string name = tokens_.take().text;
      tokens_.take();
      for (const auto& [given, value] : list.named) {
        if (given == name) tokens_.source().fail(at, fmt::format("the argument '{}' is repeated", name));
      }
      list.named.emplace_back(std::move(name), expression());
    } else {
      if (!list.named.empty()) tokens_.source().fail(at, "a positional argument follows a named one");
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
