#include "jinja/source.h"

#include <fmt/format.h>

#include <algorithm>

#include "imago/error.h"

namespace imago::jinja {

std::size_t Source::line_of(std::size_t offset) const noexcept {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(offset, text.size()));
  return 1 + static_cast<std::size_t>(std::count(text.begin(), end, '\n'));
}

void Source::fail(std::size_t offset, std::string_view problem) const {
  throw FormatError("chat template", offset, fmt::format("line {}: {}", line_of(offset), problem));
}

void Source::refuse(std::size_t offset, std::string_view problem) const {
  throw UnsupportedError(fmt::format("chat template: line {}: {}", line_of(offset), problem));
}

}  // namespace imago::jinja
