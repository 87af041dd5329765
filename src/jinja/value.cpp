#include "jinja/value.h"

namespace imago::jinja {

namespace {

/// A number as double; integers beyond 2^53 compare as their nearest double, which templates never notice.
double number(const Value& value) noexcept {
  if (const bool* boolean = value.get<bool>()) return *boolean ? 1 : 0;
  if (const std::int64_t* integer = value.get<std::int64_t>()) return static_cast<double>(*integer);
  return *value.get<double>();
}

}  // namespace

const Value* Dict::find(std::string_view key) const noexcept {
  for (const auto& [name, value] : items) {
    if (const std::string* text = name.string(); text != nullptr && *text == key) return &value;
  }
  return nullptr;
}

const Value* Dict::find(const Value& key) const noexcept {
  if (const std::string* text = key.string()) return find(*text);
  for (const auto& [name, value] : items) {
    if (equal_plain(name, key)) return &value;
  }
  return nullptr;
}

const Value* Namespace::find(std::string_view name) const noexcept {
  for (const auto& [key, value] : items) {
    if (key == name) return &value;
  }
  return nullptr;
}

Value make_text(std::string text) { return Value(std::make_shared<const std::string>(std::move(text))); }

bool truth(const Value& value) noexcept {
  if (value.is_none() || value.is_undefined()) return false;
  if (value.is_number()) return number(value) != 0;
  if (const std::string* text = value.string()) return !text->empty();
  if (const List* list = value.list()) return !list->items.empty();
  if (const Dict* dict = value.dict()) return !dict->items.empty();
  return true;
}

bool equal_plain(const Value& a, const Value& b) noexcept {
  if (a.is_number() && b.is_number()) {
    const std::int64_t* x = a.get<std::int64_t>();
    const std::int64_t* y = b.get<std::int64_t>();
    return x && y ? *x == *y : number(a) == number(b);
  }
  if (a.is_none() || a.is_undefined()) return a.is_none() ? b.is_none() : b.is_undefined();
  if (a.is_string()) return b.is_string() && *a.string() == *b.string();
  if (Namespace* const* x = a.get<Namespace*>()) {
    Namespace* const* y = b.get<Namespace*>();
    return y && *x == *y;
  }
  if (const Function* x = a.get<Function>()) {
    const Function* y = b.get<Function>();
    return y && x->builtin == y->builtin && x->macro == y->macro;
  }
  return false;
}

std::string_view type_name(const Value& value) noexcept {
  if (value.is_none()) return "None";
  if (value.is_undefined()) return "undefined value";
  if (value.get<bool>()) return "bool object";
  if (value.get<std::int64_t>()) return "int object";
  if (value.get<double>()) return "float object";
  if (value.is_string()) return "str object";
  if (const List* list = value.list()) return list->tuple ? "tuple object" : "list object";
  if (value.is_dict()) return "dict object";
  if (value.get<Namespace*>()) return "namespace object";
  if (value.get<const Loop*>()) return "loop";
  return "function";
}

int depth_of(const Value& value) noexcept {
  if (const List* list = value.list()) return list->depth;
  if (const Dict* dict = value.dict()) return dict->depth;
  return 0;
}

}  // namespace imago::jinja
