#pragma once

// Operators on values, as Python defines them.

#include "jinja/ast.h"

namespace imago::jinja {

Value calculate(Run& run, Operator operation, const Value& a, const Value& b);
bool holds(Run& run, Operator comparison, const Value& a, const Value& b);
/// value[from:to:step]; none stands for an absent bound.
Value slice(Run& run, const Value& value, const Value& from, const Value& to, const Value& step);
/// pairs[key] = value. Fails for a key that may change.
void insert(Run& run, Pairs& pairs, Value key, Value value);

}  // namespace imago::jinja
