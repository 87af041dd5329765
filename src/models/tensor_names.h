#pragma once

// What the tensors of a decoder are called in folders and in GGUF files.

#include <cstddef>
#include <string>
#include <string_view>

#include "models/traits.h"

namespace imago::models {

/// The name of a tensor that has one role, inside its block; empty where the convention has no such tensor.
std::string tensor_name(const Traits& traits, bool gguf, backend::Role role);

/// `name` with what comes before it in a file.
std::string name_in_block(const Traits& traits, bool gguf, std::size_t block, std::string_view name);

/// "gate", "up" or "down"; for biases too.
std::string_view feed_forward_name(backend::Role role) noexcept;

/// One expert's matrix in a folder.
std::string expert_name(const Traits& traits, backend::Role role, std::size_t expert);

}  // namespace imago::models
