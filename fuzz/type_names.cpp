// Names of types come from users and from files: any text is either a type whose name reads back, or a UsageError.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "imago/error.h"
#include "imago/format.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const imago::Format format = imago::parse_format(text);
    if (imago::find_format(format.name()) != format) std::abort();
  } catch (const imago::UsageError&) {
  }
  return 0;
}
