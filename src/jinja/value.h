#pragma once

// The values of a template, which are Python's. Strings, lists and dictionaries are immutable, so values share them
// freely and cannot form cycles. Namespaces and loops are mutable; the run owns them, and values only point at them.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace imago::jinja {

class Value;
class Run;
struct Arguments;
struct Namespace;
struct Loop;
struct MacroDefinition;

using Text = std::shared_ptr<const std::string>;

struct Undefined {
  Text why;  ///< "'name' is undefined"
};
struct None {};

struct List;
struct Dict;
using ListRef = std::shared_ptr<const List>;
using DictRef = std::shared_ptr<const Dict>;

using Builtin = Value (*)(Run&, Arguments&);

/// A macro, a function, or, if both are null, a method that is not called.
struct Function {
  Builtin builtin = nullptr;
  const MacroDefinition* macro = nullptr;
};

class Value {
 public:
  Value() : data_(None{}) {}
  /// One of the types that `data_` holds.
  template <class T>
  requires(!std::is_same_v<T, Value>) explicit Value(T data) : data_(std::in_place_type<T>, std::move(data)) {}

  bool is_undefined() const noexcept { return get<Undefined>() != nullptr; }
  bool is_none() const noexcept { return get<None>() != nullptr; }
  bool is_string() const noexcept { return get<Text>() != nullptr; }
  bool is_list() const noexcept { return get<ListRef>() != nullptr; }
  bool is_dict() const noexcept { return get<DictRef>() != nullptr; }
  bool is_number() const noexcept { return get<std::int64_t>() || get<double>() || get<bool>(); }

  /// The place of its type among the alternatives of `data_`.
  std::size_t type_index() const noexcept { return data_.index(); }
  /// The value as a T; null if it has another type.
  template <class T>
  const T* get() const noexcept {
    return std::get_if<T>(&data_);
  }
  const std::string* string() const noexcept {
    const Text* text = get<Text>();
    return text ? text->get() : nullptr;
  }
  /// A list or a tuple.
  const List* list() const noexcept {
    const ListRef* held = get<ListRef>();
    return held ? held->get() : nullptr;
  }
  const Dict* dict() const noexcept {
    const DictRef* held = get<DictRef>();
    return held ? held->get() : nullptr;
  }

 private:
  std::variant<None, Undefined, bool, std::int64_t, double, Text, ListRef, DictRef, Namespace*, const Loop*, Function>
      data_;
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;  ///< nesting including itself; limited, so that functions may recurse
};

/// Keeps insertion order, like Python.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;

  const Value* find(std::string_view key) const noexcept;
  const Value* find(const Value& key) const noexcept;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> items;
  const Value* find(std::string_view name) const noexcept;
};

/// `loop` in a for block.
struct Loop {
  ListRef items;
  std::size_t index = 0;  ///< counted from 0
};

Value make_text(std::string text);
bool truth(const Value& value) noexcept;
/// == for values other than lists and dictionaries: numbers by value, namespaces by identity.
bool equal_plain(const Value& a, const Value& b) noexcept;
/// The name for messages: "dict object".
std::string_view type_name(const Value& value) noexcept;
int depth_of(const Value& value) noexcept;

}  // namespace imago::jinja
