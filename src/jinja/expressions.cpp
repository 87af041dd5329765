// What the expressions of a template give.

#include <fmt/format.h>

#include "jinja/ast.h"
#include "jinja/operators.h"

namespace imago::jinja {

Arguments ArgumentList::evaluate(Run& run) const {
  Arguments arguments;
  arguments.positional.reserve(positional.size());
  for (const ExpressionPtr& argument : positional) arguments.positional.push_back(run.evaluate(*argument));
  for (const auto& [name, argument] : named) arguments.named.emplace_back(name, run.evaluate(*argument));
  return arguments;
}

Value Name::evaluate(Run& run) const {
  if (const Value* value = run.find(name)) return *value;
  if (const Builtin function = find_function(name)) return Value(Function{function, nullptr});
  return run.undefined(fmt::format("'{}' is undefined", name));
}

Value ListLiteral::evaluate(Run& run) const {
  std::vector<Value> values;
  values.reserve(items.size());
  for (const ExpressionPtr& item : items) values.push_back(run.evaluate(*item));
  return run.list(std::move(values), tuple);
}

Value DictLiteral::evaluate(Run& run) const {
  Pairs pairs;
  for (const auto& [key, value] : items) {
    Value name = run.evaluate(*key);
    insert(run, pairs, std::move(name), run.evaluate(*value));
  }
  return run.dict(std::move(pairs));
}

Value Not::evaluate(Run& run) const { return Value(!truth(run.evaluate(*operand))); }

Value Sign::evaluate(Run& run) const {
  const Value value = run.evaluate(*operand);
  return calculate(run, negative ? Operator::subtract : Operator::add, Value(std::int64_t{0}), value);
}

Value Logic::evaluate(Run& run) const {
  Value value;
  for (const ExpressionPtr& operand : operands) {
    value = run.evaluate(*operand);
    if (truth(value) != conjunction) break;
  }
  return value;
}

Value Concatenation::evaluate(Run& run) const {
  std::string joined;
  for (const ExpressionPtr& operand : operands) {
    const Value value = run.evaluate(*operand);
    const std::string* text = value.string();
    const std::string made = text ? std::string() : to_text(run, value);
    run.expect_text_size(joined.size() + (text ? *text : made).size());
    joined += text ? *text : made;
  }
  return run.text(std::move(joined));
}

Value Arithmetic::evaluate(Run& run) const {
  Value value = run.evaluate(*first);
  for (const auto& [operation, operand] : rest) value = calculate(run, operation, value, run.evaluate(*operand));
  return value;
}

Value Comparison::evaluate(Run& run) const {
  Value left = run.evaluate(*first);
  for (const auto& [operation, operand] : rest) {
    Value right = run.evaluate(*operand);
    if (!holds(run, operation, left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Conditional::evaluate(Run& run) const {
  if (truth(run.evaluate(*condition))) return run.evaluate(*yes);
  return no ? run.evaluate(*no) : run.undefined("the inline if has no else, and its condition is false");
}

Value AttributeOf::evaluate(Run& run) const { return attribute(run, run.evaluate(*object), name); }

Value ItemOf::evaluate(Run& run) const {
  const Value held = run.evaluate(*object);
  return item(run, held, run.evaluate(*key));
}

Value SliceOf::evaluate(Run& run) const {
  const Value held = run.evaluate(*object);
  const auto bound = [&](const ExpressionPtr& expression) { return expression ? run.evaluate(*expression) : Value(); };
  const Value first = bound(from), last = bound(to);
  return slice(run, held, first, last, bound(step));
}

Value Call::evaluate(Run& run) const {
  if (const auto* method = dynamic_cast<const AttributeOf*>(callee.get())) {
    const Value object = run.evaluate(*method->object);
    if (has_method(object, method->name)) {
      Arguments given = arguments.evaluate(run);
      return call_method(run, object, method->name, given);
    }
    const Value function = attribute(run, object, method->name);
    Arguments given = arguments.evaluate(run);
    return run.call(function, given);
  }
  const Value function = run.evaluate(*callee);
  Arguments given = arguments.evaluate(run);
  return run.call(function, given);
}

Value FilterCall::evaluate(Run& run) const {
  const Value value = run.evaluate(*input);
  Arguments given = arguments.evaluate(run);
  return apply_filter(run, name, value, given);
}

Value TestCall::evaluate(Run& run) const {
  const Value value = run.evaluate(*input);
  Arguments given = arguments.evaluate(run);
  return Value(apply_test(run, name, value, given));
}

}  // namespace imago::jinja
