// A header that is accepted describes tensors that lie in the file and can all be decoded.

#include "files/safetensors.h"

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "files/packed_safetensors.h"
#include "imago/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace imago;
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  try {
    const files::SafetensorsHeader header = files::parse_safetensors(file, "fuzz");
    std::size_t covered = 0;
    for (const SafetensorsTensor& tensor : header.tensors) {
      covered += tensor.bytes.size();
      if (tensor.shape.elements() > 2 * tensor.bytes.size()) std::abort();  // at least four bits each
      std::vector<float> values(tensor.shape.elements());
      files::decode_safetensors(tensor, "fuzz", values);
    }
    if (covered > size) std::abort();
    for (const files::StoredTensor& tensor : files::list_safetensors(header.tensors, header.metadata, "fuzz")) {
      if (tensor.shape.elements() > 8 * tensor.bytes.size()) std::abort();  // at least one bit each
      std::vector<float> values(tensor.shape.elements());
      files::decode_tensor(tensor, 0, values);
      files::check_values(tensor);
    }
  } catch (const Error&) {
  }
  return 0;
}
