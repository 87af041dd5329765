// What the blocks of a template do.

#include <fmt/format.h>

#include "jinja/ast.h"

namespace imago::jinja {

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
    if (held == nullptr) run.fail(fmt::format("'{}' is no namespace: its attributes take no values", names[0]));
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
    run.fail(fmt::format("{} values for {} names", items->items.size(), names.size()));
  }
  for (std::size_t i = 0; i < names.size(); ++i) run.assign(names[i], items->items[i]);
}

ListRef For::chosen(Run& run) const {
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
  const ListRef items = chosen(run);
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
