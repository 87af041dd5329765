// An entity that is accepted is written and read back. The format stores norms as float32, so the first rewrite
// may differ; the second must not.

#include "checkpoint/entity.h"

#include <cstdint>
#include <cstdlib>
#include <string>

#include "imago/error.h"

namespace {

std::string rewrite(std::string_view file) {
  using namespace imago::checkpoint;
  const Entity entity = read_entity(std::as_bytes(std::span(file)), "fuzz");
  StringSink sink;
  write_entity(sink, entity.network, entity.transformer, entity.decoder_blobs);
  return sink.text();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string once;
  try {
    once = rewrite({reinterpret_cast<const char*>(data), size});
  } catch (const imago::Error&) {
    return 0;
  }
  const std::string twice = rewrite(once);
  if (rewrite(twice) != twice) std::abort();
  return 0;
}
