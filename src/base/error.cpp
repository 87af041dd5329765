#include "imago/error.h"

#include <fmt/format.h>

#include "base/checked.h"

namespace imago {

IoError::IoError(std::string_view path, std::string_view problem)
    : Error(ErrorKind::io, fmt::format("{}: {}", path, problem)) {}

FormatError::FormatError(std::string_view file, std::uint64_t offset, std::string_view problem)
    : Error(ErrorKind::format, fmt::format("{}: at byte {}: {}", file, offset, problem)), offset_(offset) {}

void throw_overflow(std::string_view what) { throw ShapeError(fmt::format("{} is too large", what)); }

DivergedError::DivergedError(std::string_view what, std::uint64_t steps)
    : Error(ErrorKind::diverged, fmt::format("training has lost its way: {} not finite after {} steps", what, steps)) {}

}  // namespace imago
