#pragma once

// The syntax tree of a template. Chains of operators are flat, so that long ones do not nest deeply.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "jinja/run.h"

namespace imago::jinja {

struct Expression {
  explicit Expression(std::size_t place) : at(place) {}
  Expression(const Expression&) = delete;
  Expression& operator=(const Expression&) = delete;
  virtual ~Expression() = default;
  virtual Value evaluate(Run& run) const = 0;
  std::size_t at;  ///< byte in the source
};
using ExpressionPtr = std::unique_ptr<const Expression>;

struct Statement {
  explicit Statement(std::size_t place) : at(place) {}
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  virtual ~Statement() = default;
  virtual Flow execute(Run& run) const = 0;
  std::size_t at;
};

struct ArgumentList {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  Arguments evaluate(Run& run) const;
};

// ---- expressions

struct Literal final : Expression {
  Literal(std::size_t place, Value literal) : Expression(place), value(std::move(literal)) {}
  Value evaluate(Run&) const override { return value; }
  Value value;
};

struct Name final : Expression {
  Name(std::size_t place, std::string text) : Expression(place), name(std::move(text)) {}
  Value evaluate(Run& run) const override;
  std::string name;
};

struct ListLiteral final : Expression {
  using Expression::Expression;
  Value evaluate(Run& run) const override;
  std::vector<ExpressionPtr> items;
  bool tuple = false;
};

struct DictLiteral final : Expression {
  using Expression::Expression;
  Value evaluate(Run& run) const override;
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
};

struct Not final : Expression {
  Not(std::size_t place, ExpressionPtr inner) : Expression(place), operand(std::move(inner)) {}
  Value evaluate(Run& run) const override;
  ExpressionPtr operand;
};

struct Sign final : Expression {
  Sign(std::size_t place, ExpressionPtr inner, bool minus)
      : Expression(place), operand(std::move(inner)), negative(minus) {}
  Value evaluate(Run& run) const override;
  ExpressionPtr operand;
  bool negative;
};

/// and, or
struct Logic final : Expression {
  using Expression::Expression;
  Value evaluate(Run& run) const override;
  std::vector<ExpressionPtr> operands;
  bool conjunction = false;
};

/// a ~ b ~ c
struct Concatenation final : Expression {
  using Expression::Expression;
  Value evaluate(Run& run) const override;
  std::vector<ExpressionPtr> operands;
};

/// a + b - c, evaluated from the left
struct Arithmetic final : Expression {
  using Expression::Expression;
  Value evaluate(Run& run) const override;
  ExpressionPtr first;
  std::vector<std::pair<ArithmeticOperator, ExpressionPtr>> rest;
};

/// a < b <= c: a < b and b <= c
struct Comparison final : Expression {
  using Expression::Expression;
  Value evaluate(Run& run) const override;
  ExpressionPtr first;
  std::vector<std::pair<ComparisonOperator, ExpressionPtr>> rest;
};

struct Conditional final : Expression {
  using Expression::Expression;
  Value evaluate(Run& run) const override;
  ExpressionPtr condition, yes, no;  // `no` may be null
};

struct AttributeOf final : Expression {
  using Expression::Expression;
  Value evaluate(Run& run) const override;
  ExpressionPtr object;
  std::string name;
};

struct ItemOf final : Expression {
  using Expression::Expression;
  Value evaluate(Run& run) const override;
  ExpressionPtr object, key;
};

struct SliceOf final : Expression {
  using Expression::Expression;
  Value evaluate(Run& run) const override;
  ExpressionPtr object, from, to, step;  // null if absent
};

struct Call final : Expression {
  using Expression::Expression;
  Value evaluate(Run& run) const override;
  ExpressionPtr callee;
  ArgumentList arguments;
};

struct FilterCall final : Expression {
  using Expression::Expression;
  Value evaluate(Run& run) const override;
  ExpressionPtr input;  // null in a filter block, whose input is its text
  std::string name;
  ArgumentList arguments;
};

struct TestCall final : Expression {
  using Expression::Expression;
  Value evaluate(Run& run) const override;
  ExpressionPtr input;
  std::string name;
  ArgumentList arguments;
};

// ---- statements

struct Data final : Statement {
  Data(std::size_t place, std::string data) : Statement(place), text(std::move(data)) {}
  Flow execute(Run& run) const override;
  std::string text;
};

struct Print final : Statement {
  Print(std::size_t place, ExpressionPtr printed) : Statement(place), value(std::move(printed)) {}
  Flow execute(Run& run) const override;
  ExpressionPtr value;
};

struct If final : Statement {
  using Statement::Statement;
  Flow execute(Run& run) const override;
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block otherwise;
};

/// What a value is assigned to: names, or one attribute of a namespace.
struct Target {
  std::vector<std::string> names;
  std::string attribute;  ///< of the namespace names[0]; empty: the names themselves
  bool unpack = false;    ///< one value per name
  void assign(Run& run, const Value& value) const;
};

struct For final : Statement {
  using Statement::Statement;
  Flow execute(Run& run) const override;
  ListRef selected(Run& run) const;
  Target target;
  ExpressionPtr iterable, condition;  // `condition` may be null
  Block body, otherwise;
};

struct Set final : Statement {
  using Statement::Statement;
  Flow execute(Run& run) const override;
  Target target;
  ExpressionPtr value;
};

/// {% set x | filters %}…{% endset %}
struct SetBlock final : Statement {
  using Statement::Statement;
  Flow execute(Run& run) const override;
  Target target;
  std::vector<std::unique_ptr<const FilterCall>> filters;
  Block body;
};

/// {% filter x %}…{% endfilter %}, and {% generation %}, which has no filters
struct FilterBlock final : Statement {
  using Statement::Statement;
  Flow execute(Run& run) const override;
  std::vector<std::unique_ptr<const FilterCall>> filters;
  Block body;
};

struct MacroDefinition final : Statement {
  using Statement::Statement;
  Flow execute(Run& run) const override;
  struct Parameter {
    std::string name;
    ExpressionPtr otherwise;  ///< default value; null: undefined
  };
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
};

struct Jump final : Statement {
  Jump(std::size_t place, Flow where) : Statement(place), flow(where) {}
  Flow execute(Run&) const override { return flow; }
  Flow flow;
};

}  // namespace imago::jinja
