#pragma once

// GGUF metadata as JSON text, for people and programs that look into files.

#include <string>

#include "imago/data.h"

namespace imago::files {

/// One value as JSON. Strings keep their text, but what is no UTF-8 becomes U+FFFD; numbers that are not finite become
/// strings ("nan"). Arrays of more than 16 elements become {"type": "string", "count": 32000, "first": […]}.
std::string to_json(const GgufValue& value);

}  // namespace imago::files
