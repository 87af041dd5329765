// A saved sequence that is accepted has ids of the vocabulary and exactly the rows of its cache.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "imago/error.h"
#include "lm/fingerprint.h"
#include "lm/sequence_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace imago;
  backend::Program program;
  program.blocks.assign(2, {.sizes = {.kv_heads = 2, .head_values = 4}, .steps = {}, .state = 0});
  const lm::KvCache cache(program, CacheKind::float16, 8);
  const lm::SequenceOwner owner{1, CacheKind::float16, 100};
  const auto try_bytes = [&](std::span<const std::byte> bytes) {
    try {
      const lm::SequenceView view = lm::parse_sequence(bytes, "fuzz", owner, cache, 8);
      if (view.tokens.size() > 8 || view.rows.size() != view.tokens.size() * cache.token_bytes() ||
          view.states.size() != (view.tokens.empty() ? 0 : cache.state_bytes())) {
        std::abort();
      }
      for (const TokenId id : view.tokens) {
        if (id < 0 || id >= 100) std::abort();
      }
    } catch (const Error&) {
    }
  };
  std::vector<std::byte> bytes(size);
  if (size != 0) std::memcpy(bytes.data(), data, size);
  try_bytes(bytes);
  // A matching checksum lets the reader get to the rest.
  lm::Fingerprint sum;
  sum.add(bytes);
  const std::uint64_t value = sum.value();
  bytes.resize(size + sizeof value);
  std::memcpy(bytes.data() + size, &value, sizeof value);
  try_bytes(bytes);
  return 0;
}
