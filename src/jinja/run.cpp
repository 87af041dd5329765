#include "jinja/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "jinja/text.h"

namespace imago::jinja {

const Value* Arguments::find(std::size_t place, std::string_view name) const noexcept {
  if (place < positional.size()) return &positional[place];
  for (const auto& [given, value] : named) {
    if (given == name) return &value;
  }
  return nullptr;
}

const Value* Arguments::find_set(std::size_t place, std::string_view name) const noexcept {
  const Value* given = find(place, name);
  return given && !given->is_none() ? given : nullptr;
}

bool Arguments::flag(std::size_t place, std::string_view name) const noexcept {
  const Value* given = find(place, name);
  return given && truth(*given);
}

/// Sets the position that errors report, and counts depth.
class Run::Place {
 public:
  Place(Run& run, std::size_t at) : run_(run), outer_(std::exchange(run.at_, at)) {
    run.spend(1);
    if (run.depth_ >= kMaxEvaluationDepth) {
      run.fail(fmt::format("blocks, expressions and macros are nested more than {} levels deep at run time",
                           kMaxEvaluationDepth));
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
  return expression.value(*this);
}

Flow Run::execute(const Block& block) {
  for (const Statement& statement : block) {
    const Place place(*this, statement.at);
    const Flow flow = statement.execute(*this);
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
  refuse("a method cannot be stored and called later");
}

Value Run::call_macro(const MacroDefinition& macro, Arguments& arguments) {
  if (calls_ >= kMaxCallDepth) fail(fmt::format("macro calls are nested more than {} levels deep", kMaxCallDepth));
  if (arguments.positional.size() > macro.parameters.size()) {
    fail(fmt::format("macro '{}' takes {} arguments, not {}", macro.name, macro.parameters.size(),
                     arguments.positional.size()));
  }
  for (const auto& [name, value] : arguments.named) {
    std::size_t place = 0;
    while (place < macro.parameters.size() && macro.parameters[place].name != name) ++place;
    if (place == macro.parameters.size()) fail(fmt::format("macro '{}' has no parameter '{}'", macro.name, name));
    if (place < arguments.positional.size()) fail(fmt::format("parameter '{}' is repeated", name));
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
  std::string printed = capture(macro.body);
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
  const auto known = std::ranges::find(items, name, &std::pair<std::string_view, Value>::first);
  if (known == items.end()) {
    items.emplace_back(name, std::move(value));
  } else {
    known->second = std::move(value);
  }
}

Value Run::text(std::string text) {
  expect_text_size(text.size());
  allocate(text.size() + 64);  // includes the overhead of shared_ptr and std::string
  return make_text(std::move(text));
}

void Run::check_value_depth(int depth) const {
  if (depth <= kMaxValueDepth) return;
  fail(fmt::format("lists and dictionaries are nested more than {} levels deep", kMaxValueDepth));
}

Value Run::list(std::vector<Value> items, bool tuple) {
  List made{std::move(items), tuple, 1};
  for (const Value& value : made.items) made.depth = std::max(made.depth, 1 + depth_of(value));
  check_value_depth(made.depth);
  allocate(64 + made.items.size() * sizeof(Value));
  return Value(std::make_shared<const List>(std::move(made)));
}

Value Run::dict(Pairs items) {
  Dict made{std::move(items), 1};
  for (const auto& [key, value] : made.items) made.depth = std::max(made.depth, 1 + depth_of(value));
  check_value_depth(made.depth);
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
    fail(fmt::format("the values of the template take more than {} bytes", kMaxAllocatedBytes));
  }
}

void Run::expect_text_size(std::size_t bytes) const {
  if (bytes > kMaxTextBytes) fail(fmt::format("a string exceeds {} bytes", kMaxTextBytes));
}

void Run::write(std::string_view text) {
  touch(text.size());
  expect_text_size(output_.size() + text.size());
  output_ += text;
}

namespace {

/// Converts an index, which counts from the end if negative, to a position. False if it is out of range.
template <class Count>
bool place_of(std::int64_t index, Count count, std::size_t& place) noexcept {
  const auto size = static_cast<std::int64_t>(count);
  if (index < -size || index >= size) return false;
  place = static_cast<std::size_t>(index < 0 ? index + size : index);
  return true;
}

Value no_attribute(Run& run, const Value& value, std::string_view name) {
  return run.undefined(fmt::format("'{}' has no attribute '{}'", type_name(value), name.substr(0, 100)));
}

Value loop_attribute(Run& run, const Value& value, const Loop& loop, std::string_view name) {
  const std::vector<Value>& items = loop.items->items;
  const auto number = [](std::size_t count) { return Value(static_cast<std::int64_t>(count)); };
  const std::size_t left = items.size() - std::min(loop.index, items.size());
  if (name == "index") return number(loop.index + 1);
  if (name == "index0") return number(loop.index);
  if (name == "revindex") return number(left);
  if (name == "revindex0") return number(left == 0 ? 0 : left - 1);
  if (name == "first") return Value(loop.index == 0);
  if (name == "last") return Value(left <= 1);
  if (name == "length") return number(items.size());
  if (name == "depth") return number(1);
  if (name == "depth0") return number(0);
  if (name == "previtem") return loop.index > 0 ? items[loop.index - 1] : run.undefined("there is no previous item");
  if (name == "nextitem") return left > 1 ? items[loop.index + 1] : run.undefined("there is no next item");
  return no_attribute(run, value, name);
}

}  // namespace

Value attribute(Run& run, const Value& value, std::string_view name) {
  if (value.is_undefined()) run.fail(*value.get<Undefined>()->why);
  if (has_method(value, name)) return Value(Function{});
  if (const Dict* dict = value.dict()) {
    run.touch(dict->items.size() * 8);
    if (const Value* held = dict->find(name)) return *held;
  } else if (Namespace* const* space = value.get<Namespace*>()) {
    run.touch((*space)->items.size() * 8);
    if (const Value* held = (*space)->find(name)) return *held;
  } else if (const Loop* const* loop = value.get<const Loop*>()) {
    return loop_attribute(run, value, **loop, name);
  }
  return no_attribute(run, value, name);
}

Value item(Run& run, const Value& value, const Value& key) {
  if (value.is_undefined()) run.fail(*value.get<Undefined>()->why);
  if (const Dict* dict = value.dict()) {
    run.touch(dict->items.size() * 8);
    if (const Value* held = dict->find(key)) return *held;
  }
  if (const std::string* name = key.string()) return attribute(run, value, *name);
  const std::int64_t* index = key.get<std::int64_t>();
  std::size_t place = 0;
  if (const List* list = value.list(); list && index && place_of(*index, list->items.size(), place)) {
    return list->items[place];
  }
  if (const std::string* text = value.string(); text && index) {
    run.touch(text->size());
    const Characters characters(*text);
    if (place_of(*index, characters.size(), place)) return run.text(std::string(characters.range(place, place + 1)));
  }
  return run.undefined(fmt::format("'{}' has no item {}", type_name(value), to_text(run, key).substr(0, 100)));
}

ListRef items_of(Run& run, const Value& value) {
  if (const ListRef* list = value.get<ListRef>()) return *list;
  std::vector<Value> items;
  if (const Dict* dict = value.dict()) {
    run.spend(dict->items.size());
    for (const auto& [key, held] : dict->items) items.push_back(key);
  } else if (const std::string* text = value.string()) {
    const Characters characters(*text);
    run.spend(characters.size());
    for (std::size_t i = 0; i < characters.size(); ++i) {
      items.push_back(run.text(std::string(characters.range(i, i + 1))));
    }
  } else if (!value.is_undefined()) {
    run.fail(fmt::format("a {} cannot be iterated over", type_name(value)));
  }
  return *run.list(std::move(items)).get<ListRef>();
}

std::int64_t length(Run& run, const Value& value) {
  if (value.is_undefined()) return 0;
  if (const List* list = value.list()) return static_cast<std::int64_t>(list->items.size());
  if (const Dict* dict = value.dict()) return static_cast<std::int64_t>(dict->items.size());
  if (const std::string* text = value.string()) {
    run.touch(text->size());
    return static_cast<std::int64_t>(character_count(*text));
  }
  run.fail(fmt::format("a {} has no length", type_name(value)));
}

const std::string& expect_string(Run& run, const Value& value, std::string_view what) {
  const std::string* text = value.string();
  if (text == nullptr) run.fail(fmt::format("{} must be a string, not a {}", what, type_name(value)));
  return *text;
}

std::int64_t expect_integer(Run& run, const Value& value, std::string_view what) {
  if (const std::int64_t* integer = value.get<std::int64_t>()) return *integer;
  if (const bool* boolean = value.get<bool>()) return *boolean ? 1 : 0;
  run.fail(fmt::format("{} must be an integer, not a {}", what, type_name(value)));
}

}  // namespace imago::jinja
