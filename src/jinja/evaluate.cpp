// What expressions evaluate to and statements do.

#include <fmt/format.h>

#include "jinja/ast.h"
#include "jinja/run.h"

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
  return calculate(run, negative ? ArithmeticOperator::subtract : ArithmeticOperator::add, Value(std::int64_t{0}),
                   value);
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

Flow Data::execute(Run& run) const {
  run.write(text);
  return Flow::next;
}

Flow Print::execute(Run& run) const {
  const Value printed = run.evaluate(*value);
  if (const std::string* text = printed.string()) {
    run.write(*text);
  } else {
    run.write(to_text(run, printed));
  }
  return Flow::next;
}

Flow If::execute(Run& run) const {
  for (const auto& [condition, block] : branches) {
    if (truth(run.evaluate(*condition))) return run.execute(block);
  }
  return run.execute(otherwise);
}

void Target::assign(Run& run, const Value& value) const {
  if (!attribute.empty()) {
    const Value* space = run.find(names[0]);
    if (space == nullptr) run.fail(fmt::format("'{}' is undefined", names[0]));
    Namespace* const* held = space->get<Namespace*>();
    if (held == nullptr)
      run.fail(fmt::format("'{}' is not a namespace, so its attributes cannot be assigned to", names[0]));
    for (auto& [name, old] : (*held)->items) {
      if (name == attribute) {
        old = value;
        return;
      }
    }
    run.allocate(attribute.size() + sizeof(Value) + 32);
    (*held)->items.emplace_back(attribute, value);
    return;
  }
  if (!unpack) {
    run.assign(names[0], value);
    return;
  }
  const ListRef items = items_of(run, value);
  if (items->items.size() != names.size()) {
    run.fail(fmt::format("expected {} values, got {}", names.size(), items->items.size()));
  }
  for (std::size_t i = 0; i < names.size(); ++i) run.assign(names[i], items->items[i]);
}

ListRef For::selected(Run& run) const {
  ListRef all = items_of(run, run.evaluate(*iterable));
  if (!condition) return all;
  std::vector<Value> kept;
  Run::Scope scope(run, Run::Scope::Sees::all);
  for (const Value& value : all->items) {
    scope.clear();
    target.assign(run, value);
    if (truth(run.evaluate(*condition))) kept.push_back(value);
  }
  return *run.list(std::move(kept)).get<ListRef>();
}

Flow For::execute(Run& run) const {
  const ListRef items = selected(run);
  if (items->items.empty()) return run.execute(otherwise);
  Run::Scope scope(run, Run::Scope::Sees::all);
  Loop* const loop = run.make_loop(items);
  for (; loop->index < items->items.size(); ++loop->index) {
    run.spend(1);
    scope.clear();
    target.assign(run, items->items[loop->index]);
    run.assign("loop", Value(static_cast<const Loop*>(loop)));
    if (run.execute(body) == Flow::break_loop) break;
  }
  return Flow::next;
}

Flow Set::execute(Run& run) const {
  target.assign(run, run.evaluate(*value));
  return Flow::next;
}

namespace {

Value filtered(Run& run, const std::vector<std::unique_ptr<const FilterCall>>& filters, std::string text) {
  Value value = run.text(std::move(text));
  for (const auto& filter : filters) {
    Arguments arguments = filter->arguments.evaluate(run);
    value = apply_filter(run, filter->name, value, arguments);
  }
  return value;
}

}  // namespace

Flow SetBlock::execute(Run& run) const {
  target.assign(run, filtered(run, filters, run.capture(body)));
  return Flow::next;
}

Flow FilterBlock::execute(Run& run) const {
  run.write(to_text(run, filtered(run, filters, run.capture(body))));
  return Flow::next;
}

Flow MacroDefinition::execute(Run& run) const {
  run.assign(name, Value(Function{nullptr, this}));
  return Flow::next;
}

}  // namespace imago::jinja
