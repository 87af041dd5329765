#pragma once

// A rendering of a template: its variables, its output, and what it has cost so far.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/lexer.h"
#include "jinja/value.h"

namespace imago::jinja {

using Pairs = std::vector<std::pair<Value, Value>>;

/// The arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;

  /// The argument at that position or with that name; null if neither was given.
  const Value* find(std::size_t place, std::string_view name) const noexcept;
  /// The same, but None counts as not given.
  const Value* find_set(std::size_t place, std::string_view name) const noexcept;
  /// Whether it was given and is true.
  bool flag(std::size_t place, std::string_view name) const noexcept;
};

/// A row of a table of filters, methods or tests.
template <class Result>
struct NamedFunction {
  std::string_view name;
  Result (*function)(Run&, const Value&, Arguments&);
};

enum class ArithmeticOperator : std::uint8_t { add, subtract, multiply, divide, floor_divide, modulo, power };
enum class ComparisonOperator : std::uint8_t {
  equal,
  unequal,
  less,
  less_equal,
  greater,
  greater_equal,
  inside,
  outside
};

// A parsed template.

struct Attribute;
struct Expression {
  std::size_t at;  ///< byte in the source
  std::function<Value(Run&)> value;
  std::shared_ptr<const Attribute> attribute = nullptr;  ///< of `object.name`, which a call may take for a method
};
struct Attribute {
  Expression object;
  std::string name;
};

enum class Flow : std::uint8_t { next, break_loop, continue_loop };
struct Statement {
  std::size_t at;
  std::function<Flow(Run&)> execute;
};
using Block = std::vector<Statement>;

struct MacroDefinition {
  struct Parameter {
    std::string name;
    std::optional<Expression> otherwise;  ///< default value; none: undefined
  };
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
};

class Run {
 public:
  /// `date` is what strftime_now formats; empty means today.
  Run(const Source& source, std::string_view date) : source_(source), date_(date), scopes_(1) {}

  Value evaluate(const Expression& expression);
  Flow execute(const Block& block);
  /// The output of a block, executed in its own scope.
  std::string capture(const Block& block);
  /// Calls a macro or a function.
  Value call(const Value& callee, Arguments& arguments);

  // Variables. A for block, a macro and a captured block have their own scope; macros also see the outermost one.
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

  // Create values, which count towards the limits.
  Value text(std::string text);
  Value list(std::vector<Value> items, bool tuple = false);
  Value dict(Pairs items);
  Value undefined(std::string why);
  Namespace* make_namespace();
  Loop* make_loop(ListRef items);

  // Count costs. Each throws FormatError if a limit is exceeded.
  void spend(std::size_t steps);
  /// Counts reading or comparing that many bytes; an item counts as 8.
  void touch(std::size_t bytes) { spend(bytes / 64); }
  void allocate(std::size_t bytes);
  /// Throws FormatError if a string of that size exceeds the limit.
  void expect_text_size(std::size_t bytes) const;
  void write(std::string_view text);
  std::string take_output() { return std::move(output_); }

  [[noreturn]] void fail(std::string_view problem) const { source_.fail(at_, problem); }
  [[noreturn]] void refuse(std::string_view problem) const { source_.refuse(at_, problem); }
  std::size_t line() const noexcept { return source_.line_of(at_); }
  std::string_view date() const noexcept { return date_; }

 private:
  class Place;  // the expression or statement being evaluated
  struct Variables {
    std::vector<std::pair<std::string_view, Value>> items;
    std::size_t parent = 0;
  };
  void check_value_depth(int depth) const;
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

// Operations on values. All may fail with FormatError.

/// The items that a for block iterates over: of a list, keys of a dictionary, characters of a string.
ListRef items_of(Run& run, const Value& value);
/// str(value)
std::string to_text(Run& run, const Value& value);
/// `value.name` and `value[key]`; an undefined value if there is none.
Value attribute(Run& run, const Value& value, std::string_view name);
Value item(Run& run, const Value& value, const Value& key);
/// ==. Counts a step per value, because values may share parts and be far larger than their memory.
bool equal(Run& run, const Value& a, const Value& b);
/// -1, 0 or 1. Fails for types without an order.
int compare(Run& run, const Value& a, const Value& b);
bool contains(Run& run, const Value& container, const Value& value);
/// len(value)
std::int64_t length(Run& run, const Value& value);

/// Fail unless the value is a string or an integer; `what` names it in the message.
const std::string& expect_string(Run& run, const Value& value, std::string_view what);
std::int64_t expect_integer(Run& run, const Value& value, std::string_view what);

// Functions, filters, tests and methods by name. find_function returns null for an unknown name; the others fail.
Builtin find_function(std::string_view name) noexcept;
Value apply_filter(Run& run, std::string_view name, const Value& input, Arguments& arguments);
bool apply_test(Run& run, std::string_view name, const Value& input, Arguments& arguments);
bool has_method(const Value& value, std::string_view name) noexcept;
Value call_method(Run& run, const Value& value, std::string_view name, Arguments& arguments);

Value calculate(Run& run, ArithmeticOperator operation, const Value& a, const Value& b);
bool holds(Run& run, ComparisonOperator comparison, const Value& a, const Value& b);
/// How many numbers from, from + step, … lie before `to`. REQUIRES: step is not 0.
std::uint64_t count_steps(std::int64_t from, std::int64_t to, std::int64_t step) noexcept;
/// value[from:to:step]; None means an absent bound.
Value slice(Run& run, const Value& value, const Value& from, const Value& to, const Value& step);
/// pairs[key] = value. Fails for lists and dictionaries as keys.
void insert(Run& run, Pairs& pairs, Value key, Value value);

}  // namespace imago::jinja
