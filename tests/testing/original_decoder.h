#pragma once

// Decoders in `.entity` files as the original writes them.

#include <string>
#include <utility>
#include <vector>

#include "checkpoint/entity.h"
#include "imago/network.h"

namespace imago::testing {

/// Writes `model`, a decoder as import_network makes it: four layers for each block, the ends as blobs; no head if it
/// is `tied`.
inline void write_original_decoder(const std::string& path, Network model, bool tied) {
  const std::size_t blocks = model.layers().size() - 3;
  Network flat(1, 1, 1, static_cast<int>(4 * blocks));
  for (std::size_t block = 0; block < blocks; ++block) {
    for (std::size_t i = 0; i < 4; ++i) {
      flat.layers()[4 * block + i] = std::move(model.layers()[block + 1].sub_layers[i / 2 * 2].sub_layers[i % 2]);
    }
  }
  const auto blob = [&](const char* name, std::size_t layer) {
    return checkpoint::EntityBlob{name, "float32", 0, false, std::as_bytes(model.layers()[layer].weights->master())};
  };
  std::vector<checkpoint::EntityBlob> blobs = {blob("transformer.embeddings", 0),
                                               blob("transformer.final_norm", blocks + 1)};
  if (!tied) blobs.push_back(blob("transformer.lm_head", blocks + 2));
  checkpoint::save_entity(path, flat, R"({"architecture":"llama_style_decoder","weight_dtype":"float32"})", blobs);
}

}  // namespace imago::testing
