#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace imago {

/// The `count` candidates that `text` most likely meant, nearest first, by the letters that would have to change.
std::vector<std::string> near_names(std::string_view text, std::span<const std::string> candidates, std::size_t count);

}  // namespace imago
