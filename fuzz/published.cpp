// Published weights in a safetensors file: whatever shapes and types claim, what is accepted decodes within its bytes,
// and a type of ours holds the same values.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "files/packed_safetensors.h"
#include "files/published.h"
#include "files/safetensors.h"
#include "imago/codec.h"
#include "imago/error.h"

namespace imago::files {
namespace {

constexpr std::size_t kMostWeights = 1 << 16;
constexpr const char* kConfigs[] = {
    R"({"quantization_config": {"quant_method": "gptq"}})",
    R"({"quantization_config": {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}})",
    R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 32]}})",
    R"({"quantization_config": {"quant_method": "compressed-tensors"}})"};

void compare(const PublishedWeights& weights, Format own, const std::vector<float>& decoded) {
  std::vector<std::byte> packed(packed_bytes(own, decoded.size()));
  const OwnWeights taken = weights.take(0, weights.rows(), packed);
  std::vector<float> back(decoded.size());
  decode(own, packed, {taken.scales, taken.scale_group, taken.zero_points}, back);
  for (std::size_t i = 0; i < back.size(); ++i) {
    const float apart = back[i] - decoded[i];
    if (apart > 1e-20f || apart < -1e-20f) std::abort();  // a scale of 0 is nearly that
  }
}

void run(std::span<const std::byte> file, const char* config_text) {
  try {
    const SafetensorsHeader header = parse_safetensors(file, "fuzz");
    const JsonDocument config = JsonDocument::parse(config_text, "config.json");
    for (const StoredTensor& tensor :
         find_published(list_safetensors(header.tensors, header.metadata, "fuzz"), config.root())) {
      if (!tensor.published || tensor.shape.elements() > kMostWeights) continue;
      try {
        check_values(tensor);
        std::vector<float> decoded(tensor.shape.elements());
        decode_tensor(tensor, 0, decoded);
        const std::optional<Format> own = tensor.published->own_type();
        if (own) compare(*tensor.published, *own, decoded);
      } catch (const Error&) {
      }
    }
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace imago::files

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  imago::files::run(std::as_bytes(std::span(data + 1, size - 1)), imago::files::kConfigs[data[0] % 4]);
  return 0;
}
