// A header that is accepted describes metadata that are found again, and tensors that lie in the file and can all be
// decoded.

#include "files/gguf.h"

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "files/json.h"
#include "imago/error.h"

namespace {

/// Touches all that an array shows.
std::size_t visit(const imago::GgufArray& array) {
  std::size_t seen = array.bytes().size();
  for (const std::string_view text : array.strings())
    seen += text.empty() ? 0 : static_cast<unsigned char>(text.back());
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace imago;
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  try {
    const files::GgufHeader header = files::parse_gguf(file, "fuzz");
    for (const GgufMetadata& entry : header.metadata) {
      if (header.find(entry.key) != &entry.value || !(entry.value == entry.value)) std::abort();
      if (const GgufArray* array = entry.value.array()) visit(*array);
      const std::string json = files::to_json(entry.value);
      files::JsonDocument::parse(json, "fuzz");
    }
    std::size_t covered = 0;
    for (const GgufTensor& tensor : header.tensors) {
      covered += tensor.bytes.size();
      if (tensor.shape.elements() > 8 * tensor.bytes.size()) std::abort();  // at least one bit each
      if (!tensor.type.format) continue;
      std::vector<float> values(tensor.shape.elements());
      files::decode_gguf(tensor, values);
    }
    if (covered > size) std::abort();
    files::read_gguf_split(header, "fuzz");
  } catch (const Error&) {
  }
  return 0;
}
