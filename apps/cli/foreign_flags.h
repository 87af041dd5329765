#pragma once

// Flags that people bring along from llama.cpp and that mean nothing here.

#include <optional>
#include <string>
#include <string_view>

namespace imago::cli {

/// What to say about `flag`, "-ngl" for one; none if it is no such flag.
std::optional<std::string> explain_foreign_flag(std::string_view flag);

}  // namespace imago::cli
