#include "files/byte_reader.h"

#include <fmt/format.h>

namespace imago::files {

void ByteReader::throw_end(std::uint64_t count, std::string_view what) const {
  fail(fmt::format("{} needs {} bytes, but the file ends after {}: it may be cut off", what, count, left()));
}

}  // namespace imago::files
