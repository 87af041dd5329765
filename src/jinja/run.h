#pragma once

// One rendering: variables, output, and what it has cost so far.

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/source.h"
#include "jinja/value.h"

namespace imago::jinja {

struct Expression;
struct Statement;
using Pairs = std::vector<std::pair<Value, Value>>;

/// Arguments of a call, as the caller gave them.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;

  /// The argument at that place or of that name; null if neither was given.
  const Value* find(std::size_t place, std::string_view name) const noexcept;
};

enum class Flow : std::uint8_t { next, break_loop, continue_loop };

class Run {
 public:
  /// `date` is what strftime_now formats; empty: today.
  Run(const Source& source, std::string_view date) : source_(source), date_(date), scopes_(1) {}

  Value evaluate(const Expression& expression);
  Flow execute(const std::vector<std::unique_ptr<const Statement>>& block);
  /// What the block prints, in a scope of its own.
  std::string capture(const std::vector<std::unique_ptr<const Statement>>& block);
  /// Calls a macro or a function.
  Value call(const Value& callee, Arguments& arguments);

  // Variables. A for block, a macro and a captured block have scopes of their own; macros see the outermost besides.
  const Value* find(std::string_view name) const noexcept;
  void assign(std::string_view name, Value value);
  class Scope {
   public:
    enum class Sees : std::uint8_t { all, outermost };
    Scope(Run& run, Sees sees);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();
    void clear();

   private:
    Run& run_;
    std::size_t outer_;
  };

  // Values, paid for.
  Value text(std::string text);
  Value list(std::vector<Value> items, bool tuple = false);
  Value dict(Pairs items);
  Value undefined(std::string why);
  Namespace* make_namespace();
  Loop* make_loop(ListRef items);

  // Costs. Each throws FormatError when a bound is passed.
  void spend(std::size_t steps);
  /// Reads or compares that many bytes or items of 8.
  void touch(std::size_t bytes) { spend(bytes / 64); }
  void allocate(std::size_t bytes);
  /// Throws unless a string of that size may be.
  void expect_text_size(std::size_t bytes) const;
  void write(std::string_view text);
  std::string take_output() { return std::move(output_); }

  [[noreturn]] void fail(std::string_view problem) const { source_.fail(at_, problem); }
  [[noreturn]] void refuse(std::string_view problem) const { source_.refuse(at_, problem); }
  std::size_t line() const noexcept { return source_.line_of(at_); }
  std::string_view date() const noexcept { return date_; }

 private:
  class Place;  // the expression or statement under way
  struct Variables {
    std::vector<std::pair<std::string_view, Value>> items;
    std::size_t parent = 0;
  };
  Value call_macro(const MacroDefinition& macro, Arguments& arguments);

  const Source& source_;
  std::string_view date_;
  std::size_t at_ = 0;
  int depth_ = 0, calls_ = 0;
  std::size_t steps_ = 0, allocated_ = 0;
  std::string output_;
  std::deque<Variables> scopes_;  // the outermost first
  std::size_t scope_ = 0;         // the innermost
  std::deque<Namespace> namespaces_;
  std::deque<Loop> loops_;
};

// What filters, methods and operators share.

/// What a for block would walk over. Fails for what cannot be walked over.
ListRef items_of(Run& run, const Value& value);
/// str(value)
std::string to_text(Run& run, const Value& value);
/// `value.name`, and `value[key]`; undefined if there is none.
Value attribute(Run& run, const Value& value, std::string_view name);
Value item(Run& run, const Value& value, const Value& key);
/// As ==. Spends a step per value, since values may share parts and be far larger than they look.
bool equal(Run& run, const Value& a, const Value& b);
/// Below, equal or above: -1, 0, 1. Fails for types without an order.
int compare(Run& run, const Value& a, const Value& b);
bool contains(Run& run, const Value& container, const Value& value);
/// Python's len(); fails for what has none.
std::int64_t length(Run& run, const Value& value);

/// Throws unless the value is a string, a whole number; `what` names it.
const std::string& expect_string(Run& run, const Value& value, std::string_view what);
std::int64_t expect_integer(Run& run, const Value& value, std::string_view what);

/// Names that the language brings: nothing if there is no such one.
Builtin find_function(std::string_view name) noexcept;
Value apply_filter(Run& run, std::string_view name, const Value& input, Arguments& arguments);
bool apply_test(Run& run, std::string_view name, const Value& input, Arguments& arguments);
bool has_method(const Value& value, std::string_view name) noexcept;
Value call_method(Run& run, const Value& value, std::string_view name, Arguments& arguments);

}  // namespace imago::jinja
