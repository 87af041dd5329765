#pragma once

#include <string_view>

namespace imago::server {

/// The page at "/": one HTML document with its styles and scripts.
std::string_view page();

}  // namespace imago::server
