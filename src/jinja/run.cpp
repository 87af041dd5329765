#include "jinja/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "jinja/ast.h"

namespace imago::jinja {

const Value* Arguments::find(std::size_t place, std::string_view name) const noexcept {
  if (place < positional.size()) return &positional[place];
  for (const auto& [given, value] : named) {
    if (given == name) return &value;
  }
  return nullptr;
}

/// Where errors point while it lives.
class Run::Place {
 public:
  Place(Run& run, std::size_t at) : run_(run), outer_(std::exchange(run.at_, at)) {
    run.spend(1);
    if (run.depth_ >= kMaxEvaluationDepth) {
      run.fail(fmt::format("blocks, expressions and macros nest more than {} deep while running", kMaxEvaluationDepth));
    }
    ++run.depth_;
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() {
    run_.at_ = outer_;
    --run_.depth_;
  }

 private:
  Run& run_;
  std::size_t outer_;
};

Value Run::evaluate(const Expression& expression) {
  const Place place(*this, expression.at);
  return expression.evaluate(*this);
}

Flow Run::execute(const Block& block) {
  for (const auto& statement : block) {
    const Place place(*this, statement->at);
    const Flow flow = statement->execute(*this);
    if (flow != Flow::next) return flow;
  }
  return Flow::next;
}

std::string Run::capture(const Block& block) {
  const Scope scope(*this, Scope::Sees::all);
  std::string outer = std::exchange(output_, {});
  execute(block);
  return std::exchange(output_, std::move(outer));
}

Value Run::call(const Value& callee, Arguments& arguments) {
  const Function* function = callee.get<Function>();
  if (callee.is_undefined()) fail(*callee.get<Undefined>()->why);
  if (function == nullptr) fail(fmt::format("a {} cannot be called", type_name(callee)));
  if (function->builtin != nullptr) return function->builtin(*this, arguments);
  if (function->macro != nullptr) return call_macro(*function->macro, arguments);
  refuse("a method can only be called where it is named");
}

Value Run::call_macro(const MacroDefinition& macro, Arguments& arguments) {
  if (calls_ >= kMaxCallDepth) fail(fmt::format("macros call each other more than {} deep", kMaxCallDepth));
  if (arguments.positional.size() > macro.parameters.size()) {
    fail(fmt::format("macro '{}' takes {} arguments, not {}", macro.name, macro.parameters.size(),
                     arguments.positional.size()));
  }
  for (const auto& [name, value] : arguments.named) {
    std::size_t place = 0;
    while (place < macro.parameters.size() && macro.parameters[place].name != name) ++place;
    if (place == macro.parameters.size()) fail(fmt::format("macro '{}' has no parameter '{}'", macro.name, name));
    if (place < arguments.positional.size()) fail(fmt::format("parameter '{}' is given twice", name));
  }
  ++calls_;
  const Scope scope(*this, Scope::Sees::outermost);
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    const MacroDefinition::Parameter& parameter = macro.parameters[i];
    if (const Value* given = arguments.find(i, parameter.name)) {
      assign(parameter.name, *given);
    } else if (parameter.otherwise) {
      assign(parameter.name, evaluate(*parameter.otherwise));
    } else {
      assign(parameter.name, undefined(fmt::format("parameter '{}' was not provided", parameter.name)));
    }
  }
  std::string outer = std::exchange(output_, {});
  execute(macro.body);
  std::string printed = std::exchange(output_, std::move(outer));
  --calls_;
  return text(std::move(printed));
}

Run::Scope::Scope(Run& run, Sees sees) : run_(run), outer_(run.scope_) {
  run.scopes_.push_back({{}, sees == Sees::all ? run.scope_ : 0});
  run.scope_ = run.scopes_.size() - 1;
}
Run::Scope::~Scope() {
  run_.scopes_.pop_back();
  run_.scope_ = outer_;
}
void Run::Scope::clear() { run_.scopes_.back().items.clear(); }

const Value* Run::find(std::string_view name) const noexcept {
  for (std::size_t scope = scope_;; scope = scopes_[scope].parent) {
    for (const auto& [known, value] : scopes_[scope].items) {
      if (known == name) return &value;
    }
    if (scope == 0) return nullptr;
  }
}

void Run::assign(std::string_view name, Value value) {
  auto& items = scopes_[scope_].items;
  for (auto& [known, held] : items) {
    if (known == name) {
      held = std::move(value);
      return;
    }
  }
  items.emplace_back(name, std::move(value));
}

Value Run::text(std::string text) {
  expect_text_size(text.size());
  allocate(text.size() + 64);  // with what shared ownership and small strings take
  return make_text(std::move(text));
}

Value Run::list(std::vector<Value> items, bool tuple) {
  List made{std::move(items), tuple, 1};
  for (const Value& value : made.items) made.depth = std::max(made.depth, 1 + depth_of(value));
  if (made.depth > kMaxValueDepth) fail(fmt::format("lists and dictionaries nest more than {} deep", kMaxValueDepth));
  allocate(64 + made.items.size() * sizeof(Value));
  return Value(std::make_shared<const List>(std::move(made)));
}

Value Run::dict(Pairs items) {
  Dict made{std::move(items), 1};
  for (const auto& [key, value] : made.items)
    made.depth = std::max({made.depth, 1 + depth_of(key), 1 + depth_of(value)});
  if (made.depth > kMaxValueDepth) fail(fmt::format("lists and dictionaries nest more than {} deep", kMaxValueDepth));
  allocate(64 + made.items.size() * 2 * sizeof(Value));
  return Value(std::make_shared<const Dict>(std::move(made)));
}

Value Run::undefined(std::string why) {
  allocate(why.size() + 64);
  return Value(Undefined{std::make_shared<const std::string>(std::move(why))});
}

Namespace* Run::make_namespace() {
  allocate(sizeof(Namespace) + 64);
  return &namespaces_.emplace_back();
}

Loop* Run::make_loop(ListRef items) {
  allocate(sizeof(Loop));
  return &loops_.emplace_back(Loop{std::move(items), 0});
}

void Run::spend(std::size_t steps) {
  steps_ += steps;
  if (steps_ > kMaxSteps) fail(fmt::format("the template takes more than {} steps", kMaxSteps));
}

void Run::allocate(std::size_t bytes) {
  allocated_ += bytes;
  if (allocated_ > kMaxAllocatedBytes) {
    fail(fmt::format("the values that the template makes take more than {} bytes", kMaxAllocatedBytes));
  }
}

void Run::expect_text_size(std::size_t bytes) const {
  if (bytes > kMaxTextBytes) fail(fmt::format("a text of more than {} bytes", kMaxTextBytes));
}

void Run::write(std::string_view text) {
  touch(text.size());
  expect_text_size(output_.size() + text.size());
  output_ += text;
}

}  // namespace imago::jinja
