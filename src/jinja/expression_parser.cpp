// Parses expressions, in order of precedence: a if b else c, or, and, not, comparisons, + -, ~, * / // %, **, signs,
// then what follows a value: .name, [item], [from:to:step], (call), |filter, is test. Chains of operators are flat, so
// that long ones do not nest deeply.

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <span>

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

Arguments ArgumentList::evaluate(Run& run) const {
  Arguments arguments;
  arguments.positional.reserve(positional.size());
  for (const Expression& argument : positional) arguments.positional.push_back(run.evaluate(argument));
  for (const auto& [name, argument] : named) arguments.named.emplace_back(name, run.evaluate(argument));
  return arguments;
}

Value Filter::apply(Run& run, const Value& input) const {
  Arguments given = arguments.evaluate(run);
  return apply_filter(run, name, input, given);
}

namespace {

template <class Operator>
using Sign = std::pair<std::string_view, Operator>;

constexpr Sign<ComparisonOperator> kComparisons[] = {
    {"==", ComparisonOperator::equal},  {"!=", ComparisonOperator::unequal},
    {"<", ComparisonOperator::less},    {"<=", ComparisonOperator::less_equal},
    {">", ComparisonOperator::greater}, {">=", ComparisonOperator::greater_equal}};
constexpr Sign<ArithmeticOperator> kSums[] = {{"+", ArithmeticOperator::add}, {"-", ArithmeticOperator::subtract}};
constexpr Sign<ArithmeticOperator> kProducts[] = {{"*", ArithmeticOperator::multiply},
                                                  {"/", ArithmeticOperator::divide},
                                                  {"//", ArithmeticOperator::floor_divide},
                                                  {"%", ArithmeticOperator::modulo}};
constexpr Sign<ArithmeticOperator> kPowers[] = {{"**", ArithmeticOperator::power}};

/// a + b - c: operands with operators between them.
template <class Operator>
struct Chain {
  Expression first;
  std::vector<std::pair<Operator, Expression>> rest;
};

Expression literal(std::size_t at, Value value) {
  return {at, [value = std::move(value)](Run&) { return value; }};
}

Expression list_of(std::size_t at, std::vector<Expression> items, bool tuple) {
  return {at, [items = std::move(items), tuple](Run& run) {
            std::vector<Value> values;
            values.reserve(items.size());
            for (const Expression& item : items) values.push_back(run.evaluate(item));
            return run.list(std::move(values), tuple);
          }};
}

Expression variable(std::size_t at, std::string name) {
  return {at, [name = std::move(name)](Run& run) {
            if (const Value* value = run.find(name)) return *value;
            if (const Builtin function = find_function(name)) return Value(Function{function, nullptr});
            return run.undefined(fmt::format("'{}' is undefined", name));
          }};
}

Expression attribute_of(std::size_t at, Expression object, std::string name) {
  auto parts = std::make_shared<const Attribute>(Attribute{std::move(object), std::move(name)});
  return {at, [parts](Run& run) { return attribute(run, run.evaluate(parts->object), parts->name); }, parts};
}

Expression item_of(std::size_t at, Expression object, Expression key) {
  return {at, [object = std::move(object), key = std::move(key)](Run& run) {
            const Value held = run.evaluate(object);
            return item(run, held, run.evaluate(key));
          }};
}

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  Expression expressions(bool conditional) {
    const std::size_t at = here();
    std::vector<Expression> items;
    items.push_back(expression(conditional));
    if (!tokens_.is_sign(",")) return std::move(items[0]);
    while (tokens_.skip_sign(",")) {
      if (tokens_.is(TokenKind::block_end) || tokens_.is(TokenKind::print_end) || tokens_.is_sign(")")) break;
      items.push_back(expression(conditional));
    }
    return list_of(at, std::move(items), true);
  }

  Expression expression(bool conditional = true) {
    const TokenStream::Level level(tokens_);
    const std::size_t at = here();
    Expression value = disjunction();
    if (!conditional || !tokens_.skip_word("if")) return value;
    Expression condition = disjunction();
    std::optional<Expression> otherwise;
    if (tokens_.skip_word("else")) otherwise = expression();
    if (tokens_.is_word("if")) tokens_.fail_unexpected("'else' or the end of the expression");
    return {at, [value = std::move(value), condition = std::move(condition), otherwise](Run& run) {
              if (truth(run.evaluate(condition))) return run.evaluate(value);
              return otherwise ? run.evaluate(*otherwise)
                               : run.undefined("the inline if has no else, and its condition is false");
            }};
  }

  Filter filter() {
    Filter made{tokens_.expect_name(), {}};
    if (tokens_.is_sign("(")) made.arguments = arguments();
    return made;
  }

 private:
  using Next = Expression (ExpressionParser::*)();

  std::size_t here() const noexcept { return tokens_.now().at; }

  /// Operands separated by what skip() skips; a single one stands for itself.
  template <class Skip, class Combine>
  Expression joined(Next next, Skip skip, Combine combine) {
    const std::size_t at = here();
    std::vector<Expression> operands;
    do {
      operands.push_back((this->*next)());
    } while (skip());
    if (operands.size() == 1) return std::move(operands[0]);
    return {at, [operands = std::move(operands), combine](Run& run) { return combine(run, operands); }};
  }

  /// and, or: the first operand that decides.
  Expression logic(std::string_view word, bool conjunction, Next next) {
    return joined(
        next, [&] { return tokens_.skip_word(word); },
        [conjunction](Run& run, const std::vector<Expression>& operands) {
          Value value;
          for (const Expression& operand : operands) {
            value = run.evaluate(operand);
            if (truth(value) != conjunction) break;
          }
          return value;
        });
  }
  Expression disjunction() { return logic("or", false, &ExpressionParser::conjunction); }
  Expression conjunction() { return logic("and", true, &ExpressionParser::negation); }

  Expression negation() {
    const std::size_t at = here();
    if (!tokens_.skip_word("not")) return comparison();
    const TokenStream::Level level(tokens_);
    return {at, [operand = negation()](Run& run) { return Value(!truth(run.evaluate(operand))); }};
  }

  template <class Operator>
  std::optional<Operator> skip_operator(std::span<const Sign<Operator>> signs) {
    const auto found = std::ranges::find_if(signs, [&](const auto& sign) { return tokens_.skip_sign(sign.first); });
    return found == signs.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<ComparisonOperator> skip_comparison() {
    if (const auto sign = skip_operator<ComparisonOperator>(kComparisons)) return sign;
    if (tokens_.skip_word("in")) return ComparisonOperator::inside;
    if (!tokens_.is_word("not") || tokens_.ahead().kind != TokenKind::name || tokens_.ahead().text != "in") {
      return std::nullopt;
    }
    tokens_.take();
    tokens_.take();
    return ComparisonOperator::outside;
  }

  /// a < b <= c: a < b and b <= c
  Expression comparison() {
    const std::size_t at = here();
    Chain<ComparisonOperator> chain{sum(), {}};
    while (const auto operation = skip_comparison()) chain.rest.emplace_back(*operation, sum());
    if (chain.rest.empty()) return std::move(chain.first);
    return {at, [chain = std::move(chain)](Run& run) {
              Value left = run.evaluate(chain.first);
              for (const auto& [operation, operand] : chain.rest) {
                Value right = run.evaluate(operand);
                if (!holds(run, operation, left, right)) return Value(false);
                left = std::move(right);
              }
              return Value(true);
            }};
  }

  /// Evaluated from the left.
  Expression arithmetic(std::span<const Sign<ArithmeticOperator>> signs, Next next) {
    const std::size_t at = here();
    Chain<ArithmeticOperator> chain{(this->*next)(), {}};
    while (const auto operation = skip_operator(signs)) chain.rest.emplace_back(*operation, (this->*next)());
    if (chain.rest.empty()) return std::move(chain.first);
    return {at, [chain = std::move(chain)](Run& run) {
              Value value = run.evaluate(chain.first);
              for (const auto& [operation, operand] : chain.rest) {
                value = calculate(run, operation, value, run.evaluate(operand));
              }
              return value;
            }};
  }
  Expression sum() { return arithmetic(kSums, &ExpressionParser::concatenation); }
  Expression product() { return arithmetic(kProducts, &ExpressionParser::power); }
  Expression power() { return arithmetic(kPowers, &ExpressionParser::unary); }

  /// a ~ b ~ c
  Expression concatenation() {
    return joined(
        &ExpressionParser::product, [&] { return tokens_.skip_sign("~"); },
        [](Run& run, const std::vector<Expression>& operands) {
          std::string text;
          for (const Expression& operand : operands) {
            const Value value = run.evaluate(operand);
            const std::string made = value.is_string() ? std::string() : to_text(run, value);
            const std::string& part = value.is_string() ? *value.string() : made;
            run.expect_text_size(text.size() + part.size());
            text += part;
          }
          return run.text(std::move(text));
        });
  }

  Expression unary() { return filters_and_tests(signed_value()); }

  /// A value with its sign and suffixes.
  Expression signed_value() {
    const std::size_t at = here();
    if (!tokens_.is_sign("-") && !tokens_.is_sign("+")) return suffixes(primary());
    const TokenStream::Level level(tokens_);
    const auto operation = tokens_.take().text == "-" ? ArithmeticOperator::subtract : ArithmeticOperator::add;
    return suffixes({at, [operation, operand = signed_value()](Run& run) {
                       return calculate(run, operation, Value(std::int64_t{0}), run.evaluate(operand));
                     }});
  }

  Expression number() {
    const Token& token = tokens_.take();
    const char* const last = token.text.data() + token.text.size();
    if (token.kind == TokenKind::real) {
      double real = 0;
      const auto [end, error] = std::from_chars(token.text.data(), last, real);
      if (error != std::errc() || end != last) tokens_.source().fail(token.at, "the number does not fit a double");
      return literal(token.at, Value(real));
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
    return literal(token.at, Value(integer));
  }

  Expression primary() {
    const std::size_t at = here();
    if (tokens_.is(TokenKind::integer) || tokens_.is(TokenKind::real)) return number();
    if (tokens_.is(TokenKind::string)) {
      std::string text;
      while (tokens_.is(TokenKind::string)) text += tokens_.take().text;  // adjacent strings are joined, as in Python
      return literal(at, make_text(std::move(text)));
    }
    if (tokens_.is(TokenKind::name)) {
      const std::string& name = tokens_.take().text;
      if (name == "true" || name == "True") return literal(at, Value(true));
      if (name == "false" || name == "False") return literal(at, Value(false));
      if (name == "none" || name == "None") return literal(at, Value());
      return variable(at, name);
    }
    if (tokens_.skip_sign("(")) {
      if (tokens_.skip_sign(")")) return list_of(at, {}, true);
      Expression inner = expressions(true);
      tokens_.expect_sign(")");
      return inner;
    }
    if (tokens_.skip_sign("[")) {
      std::vector<Expression> items;
      tokens_.read_list("]", [&] { items.push_back(expression()); });
      return list_of(at, std::move(items), false);
    }
    if (tokens_.skip_sign("{")) return dict(at);
    tokens_.fail_unexpected("a value");
  }

  Expression dict(std::size_t at) {
    std::vector<std::pair<Expression, Expression>> items;
    tokens_.read_list("}", [&] {
      Expression key = expression();
      tokens_.expect_sign(":");
      items.emplace_back(std::move(key), expression());
    });
    return {at, [items = std::move(items)](Run& run) {
              Pairs pairs;
              for (const auto& [key, value] : items) {
                Value name = run.evaluate(key);
                insert(run, pairs, std::move(name), run.evaluate(value));
              }
              return run.dict(std::move(pairs));
            }};
  }

  /// Suffixes nest to the left, so a chain of them is as deep as it is long.
  void check_suffixes(int count) const {
    if (count <= kMaxNesting) return;
    tokens_.source().fail(here(), fmt::format("more than {} suffixes after one value", kMaxNesting));
  }

  Expression suffixes(Expression inner) {
    for (int count = 0;; ++count) {
      check_suffixes(count);
      const std::size_t at = here();
      if (tokens_.skip_sign(".")) {
        inner = tokens_.is(TokenKind::integer) ? item_of(at, std::move(inner), number())
                                               : attribute_of(at, std::move(inner), tokens_.expect_name());
      } else if (tokens_.skip_sign("[")) {
        inner = subscript(std::move(inner), at);
      } else if (tokens_.is_sign("(")) {
        inner = call(std::move(inner), at);
      } else {
        return inner;
      }
    }
  }

  Expression subscript(Expression object, std::size_t at) {
    std::optional<Expression> from, to, step;
    if (!tokens_.is_sign(":")) from = expressions(true);
    if (from && tokens_.skip_sign("]")) return item_of(at, std::move(object), *std::move(from));
    tokens_.expect_sign(":");
    if (!tokens_.is_sign(":") && !tokens_.is_sign("]")) to = expression();
    if (tokens_.skip_sign(":") && !tokens_.is_sign("]")) step = expression();
    tokens_.expect_sign("]");
    return {at, [object = std::move(object), from, to, step](Run& run) {
              const Value held = run.evaluate(object);
              const auto bound = [&](const std::optional<Expression>& b) { return b ? run.evaluate(*b) : Value(); };
              const Value first = bound(from), last = bound(to);
              return slice(run, held, first, last, bound(step));
            }};
  }

  ArgumentList arguments() {
    ArgumentList list;
    tokens_.expect_sign("(");
    tokens_.read_list(")", [&] {
      const std::size_t at = here();
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
    });
    return list;
  }

  Expression call(Expression callee, std::size_t at) {
    return {at, [callee = std::move(callee), arguments = arguments()](Run& run) {
              if (const Attribute* called = callee.attribute.get()) {
                const Value object = run.evaluate(called->object);
                if (has_method(object, called->name)) {
                  Arguments given = arguments.evaluate(run);
                  return call_method(run, object, called->name, given);
                }
                const Value function = attribute(run, object, called->name);
                Arguments given = arguments.evaluate(run);
                return run.call(function, given);
              }
              const Value function = run.evaluate(callee);
              Arguments given = arguments.evaluate(run);
              return run.call(function, given);
            }};
  }

  Expression filters_and_tests(Expression inner) {
    for (int count = 0;; ++count) {
      check_suffixes(count);
      const std::size_t at = here();
      if (tokens_.skip_sign("|")) {
        const std::size_t filter_at = here();
        inner = {filter_at, [input = std::move(inner), filter = filter()](Run& run) {
                   const Value value = run.evaluate(input);
                   return filter.apply(run, value);
                 }};
      } else if (tokens_.skip_word("is")) {
        inner = test(std::move(inner), at);
      } else if (tokens_.is_sign("(")) {
        inner = call(std::move(inner), at);
      } else {
        return inner;
      }
    }
  }

  Expression test(Expression input, std::size_t at) {
    const bool negated = tokens_.skip_word("not");
    std::string name = tokens_.expect_name();
    ArgumentList list;
    const TokenKind next = tokens_.now().kind;
    const auto is_one_of = [&](auto... words) { return (tokens_.is_word(words) || ...); };
    const bool value_follows = (next == TokenKind::name && !is_one_of("else", "or", "and", "if", "is")) ||
                               next == TokenKind::string || next == TokenKind::integer || next == TokenKind::real ||
                               tokens_.is_sign("[") || tokens_.is_sign("{");
    if (tokens_.is_sign("(")) {
      list = arguments();
    } else if (value_follows) {
      const TokenStream::Level level(tokens_);
      list.positional.push_back(suffixes(primary()));
    }
    return {at, [negated, input = std::move(input), name = std::move(name), list = std::move(list)](Run& run) {
              const Value value = run.evaluate(input);
              Arguments given = list.evaluate(run);
              return Value(apply_test(run, name, value, given) != negated);
            }};
  }

  TokenStream& tokens_;
};

}  // namespace

Expression parse_expression(TokenStream& tokens, bool conditional) {
  return ExpressionParser(tokens).expression(conditional);
}
Expression parse_expressions(TokenStream& tokens, bool conditional) {
  return ExpressionParser(tokens).expressions(conditional);
}
Filter parse_filter(TokenStream& tokens) { return ExpressionParser(tokens).filter(); }

}  // namespace imago::jinja
