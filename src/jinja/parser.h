#pragma once

#include "jinja/ast.h"

namespace imago::jinja {

/// Throws FormatError for what is no Jinja, UnsupportedError for tags outside the subset.
Block parse_template(const Source& source);

}  // namespace imago::jinja
