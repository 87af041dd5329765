#pragma once

#include <string>

namespace imago::bench {

/// Spirals, scanned digits from `digits_path` (a gzip of lines of 64 pixels from 0 to 16 and the class; left out where
/// there is none) and drawn digits: learned in float32, rounded to narrow types, and learned through that rounding.
/// Prints a table. True if all is as promised.
bool learn_classes(const std::string& digits_path);

}  // namespace imago::bench
