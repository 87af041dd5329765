#pragma once

// What is fixed about an architecture, whatever a file says: one row each. Adding one starts here
// (docs/formats/models.md).

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "models/traits.h"

namespace imago::models {

struct ArchitectureFacts {
  Architecture architecture;
  std::string_view model_type;  ///< of config.json
  std::string_view class_name;  ///< in `architectures` of config.json
  std::string_view gguf;        ///< `general.architecture`; mistral and mixtral are "llama" there

  NormKind norm = NormKind::rms;
  bool pre_norms = true, post_norms = false;
  QueryNorm query_norm = QueryNorm::none;
  kernels::Activation activation = kernels::Activation::silu;
  bool gated = true;
  bool experts = false;
  bool adjacent_in_gguf = false;  ///< GGUF has the rows of q and k reordered so that neighbours turn together
  bool tied_by_default = false;   ///< what a config.json without `tie_word_embeddings` means
  double rope_base = 1e4;         ///< of a config.json without `rope_theta`; 0: learned positions
};

std::span<const ArchitectureFacts> architectures() noexcept;
const ArchitectureFacts& facts(Architecture architecture) noexcept;

/// By `model_type`; null if imago does not know it.
const ArchitectureFacts* find_model_type(std::string_view model_type) noexcept;
/// By `general.architecture`: llama for mistral and mixtral too.
const ArchitectureFacts* find_gguf_architecture(std::string_view name) noexcept;

/// "llama, mistral, …", for messages.
std::string known_model_types();
std::string known_gguf_architectures();

/// Traits with all that the architecture alone decides.
Traits traits_of(Architecture architecture);

}  // namespace imago::models
