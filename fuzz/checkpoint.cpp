// A checkpoint that is accepted is written and read back to the same text.

#include <cstdint>
#include <cstdlib>
#include <string>

#include "imago/error.h"
#include "imago/files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace imago;
  std::string text;
  try {
    text = serialize_network(deserialize_network({reinterpret_cast<const char*>(data), size}));
  } catch (const Error&) {  // also settings that a network may hold and a file may not, such as a group of 33
    return 0;
  }
  if (serialize_network(deserialize_network(text)) != text) std::abort();
  return 0;
}
