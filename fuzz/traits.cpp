// A config that is accepted describes a model of sizes that can be computed with, and the config that imago would write
// for it describes the same one.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "imago/error.h"
#include "models/recipe_parts.h"
#include "models/traits_reading.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace imago;
  using namespace imago::models;
  if (size > 4096) return 0;  // a config is small; the JSON reader has a target of its own
  Traits traits;
  try {
    std::string text(reinterpret_cast<const char*>(data), size);
    traits = config_traits(files::JsonFile::parse(std::move(text), "fuzz"));
  } catch (const Error&) {
    return 0;
  }
  if (traits.blocks == 0 || traits.rotary % 2 != 0) std::abort();
  if (attends(traits) && traits.heads % traits.kv_heads != 0) std::abort();
  if (traits.block.size() != traits.blocks) std::abort();
  for (const float scale :
       {traits.attention_scale, traits.embedding_scale, traits.residual_scale, traits.logit_scale}) {
    if (!std::isfinite(scale) || scale == 0) std::abort();
  }
  ConfigExtras extras;
  extras.dense_feed_forward = std::max<std::size_t>(1, dense_feed_forward(traits));
  if (!(config_traits(files::JsonFile::parse(config_text(traits, extras), "written")) == traits)) std::abort();
  try {
    gguf_losses(traits, "fuzz");
    traits_metadata(traits, 1);
  } catch (const UnsupportedError&) {
  }
  return 0;
}
