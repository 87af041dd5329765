// What is inside a value. This is the whole of what a template can reach: no name leads to anything of the program.

#include <fmt/format.h>

#include "jinja/run.h"
#include "jinja/text.h"

namespace imago::jinja {

namespace {

/// A number of an item, counted from the end if negative.
template <class Count>
bool place_of(std::int64_t index, Count count, std::size_t& place) noexcept {
  const auto size = static_cast<std::int64_t>(count);
  if (index < -size || index >= size) return false;
  place = static_cast<std::size_t>(index < 0 ? index + size : index);
  return true;
}

Value none_such(Run& run, const Value& value, std::string_view name) {
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
  return none_such(run, value, name);
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
  return none_such(run, value, name);
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
    run.fail(fmt::format("a {} cannot be walked over", type_name(value)));
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
  run.fail(fmt::format("{} must be a whole number, not a {}", what, type_name(value)));
}

}  // namespace imago::jinja
