#include "models/recipe_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "imago/error.h"
#include "models/architectures.h"

namespace imago::models {

namespace {

using files::StoredTensor;

bool is_norm_weight(Role role) {
  constexpr std::array kNorms = {Role::output_norm,       Role::attention_norm,         Role::attention_post_norm,
                                 Role::feed_forward_norm, Role::feed_forward_post_norm, Role::query_norm,
                                 Role::key_norm};
  return std::find(kNorms.begin(), kNorms.end(), role) != kNorms.end();
}

bool turns(Role role) {
  return role == Role::query || role == Role::query_bias || role == Role::key || role == Role::key_bias;
}

/// Appends a slice; rows that continue those before become one part with them.
void append(std::vector<SourceRows>& parts, const WeightSlice& slice) {
  const StoredTensor& tensor = *slice.tensor;
  const bool vector = tensor.shape.rank() < 2;
  if (!parts.empty() && parts.back().tensor == slice.tensor) {
    if (vector || slice.transposed) return;  // these come as a whole
    if (parts.back().first_row + parts.back().rows == slice.first_row) {
      parts.back().rows += slice.rows;
      return;
    }
  }
  if (vector || slice.transposed) {
    parts.push_back({&tensor, 0, tensor.rows()});
  } else {
    parts.push_back({&tensor, slice.first_row, slice.rows});
  }
}

class Cook {
 public:
  Cook(const Traits& traits, const DecoderTensors& tensors, const Naming& target)
      : traits_(traits), tensors_(tensors), target_(target) {}

  /// None: an optional tensor that the source does not have.
  std::optional<TensorRecipe> cook(const LayoutTensor& wanted, std::size_t block) const {
    TensorRecipe recipe;
    recipe.name = wanted.name;
    recipe.shape = wanted.shape;
    recipe.use = use_of(wanted.roles);
    recipe.block = block;
    recipe.blocks = traits_.blocks;
    recipe.matrices = matrices_of(traits_, wanted, block);
    bool transposed = false;
    for (std::size_t expert = 0; expert < wanted.experts; ++expert) {
      for (const Role role : wanted.roles) {
        const std::optional<WeightSlice> slice = tensors_.find(role, block, wanted.first_expert + expert);
        if (!slice && wanted.optional && recipe.parts.empty()) return std::nullopt;
        if (!slice) tensors_.require(role, block, wanted.first_expert + expert);  // throws
        transposed = slice->transposed;
        append(recipe.parts, *slice);
      }
    }
    check_whole(recipe, wanted);
    recipe.rework = rework_of(wanted, transposed);
    if (recipe.rework == Rework::to_adjacent || recipe.rework == Rework::to_halves) {
      const bool query = wanted.roles[0] == Role::query || wanted.roles[0] == Role::query_bias;
      recipe.heads = query ? traits_.heads : traits_.kv_heads;
    }
    const bool wide = recipe.use == TensorUse::vector || recipe.use == TensorUse::router ||
                      wanted.roles[0] == Role::position_embedding;
    if (target_.gguf && wide) recipe.preferred = DType::float32;
    return recipe;
  }

 private:
  /// Vectors and transposed matrices come as a whole, so what is made of them must be one.
  void check_whole(const TensorRecipe& recipe, const LayoutTensor& wanted) const {
    std::size_t elements = 0;
    for (const SourceRows& part : recipe.parts) elements += part.rows * part.tensor->cols();
    if (elements != wanted.shape.elements()) {
      throw UnsupportedError(fmt::format("{}: tensor '{}' would be a part of '{}', which cannot be cut",
                                         recipe.parts[0].tensor->file, wanted.name, recipe.parts[0].tensor->name));
    }
  }

  Rework rework_of(const LayoutTensor& wanted, bool source_transposed) const {
    const Role role = wanted.roles[0];
    if (source_transposed != wanted.transposed) return Rework::transpose;
    if (turns(role) && facts(traits_.architecture).adjacent_in_gguf) {
      return target_.gguf ? Rework::to_adjacent : Rework::to_halves;
    }
    if (is_norm_weight(role) && traits_.architecture == Architecture::gemma2) {
      return target_.gguf ? Rework::add_one : Rework::subtract_one;
    }
    return Rework::none;
  }

  const Traits& traits_;
  const DecoderTensors& tensors_;
  const Naming& target_;
};

}  // namespace

TensorUse use_of(std::span<const Role> roles) noexcept {
  if (roles.size() > 1) {
    return roles[0] == Role::query_bias ? TensorUse::vector : TensorUse::matrix;
  }
  switch (roles[0]) {
    case Role::token_embedding: return TensorUse::embedding;
    case Role::output: return TensorUse::output;
    case Role::value: return TensorUse::attention_value;
    case Role::down: return TensorUse::down;
    case Role::router: return TensorUse::router;
    case Role::position_embedding:
    case Role::query:
    case Role::key:
    case Role::attention_output:
    case Role::gate:
    case Role::up: return TensorUse::matrix;
    case Role::output_norm:
    case Role::output_norm_bias:
    case Role::attention_norm:
    case Role::attention_norm_bias:
    case Role::attention_post_norm:
    case Role::query_bias:
    case Role::key_bias:
    case Role::value_bias:
    case Role::query_norm:
    case Role::key_norm:
    case Role::attention_output_bias:
    case Role::feed_forward_norm:
    case Role::feed_forward_norm_bias:
    case Role::feed_forward_post_norm:
    case Role::up_bias:
    case Role::down_bias:
    case Role::rope_factors: return TensorUse::vector;
  }
  return TensorUse::matrix;
}

std::vector<TensorRecipe> decoder_recipes(const Traits& traits, const DecoderTensors& tensors, const Naming& target) {
  const Cook cook(traits, tensors, target);
  std::vector<TensorRecipe> recipes;
  const auto add = [&](const std::vector<LayoutTensor>& layout, std::size_t block) {
    for (const LayoutTensor& wanted : layout) {
      if (wanted.roles[0] == Role::rope_factors) continue;
      if (std::optional<TensorRecipe> recipe = cook.cook(wanted, block)) recipes.push_back(std::move(*recipe));
    }
  };
  add(outer_layout(traits, target), 0);
  for (std::size_t block = 0; block < traits.blocks; ++block) add(block_layout(traits, target, block), block);
  return recipes;
}

TensorRecipe kept_tensor(const StoredTensor& tensor) {
  TensorRecipe recipe;
  recipe.name = tensor.name;
  recipe.shape = tensor.shape;
  recipe.parts = {{&tensor, 0, tensor.rows()}};
  recipe.use = tensor.shape.rank() < 2 ? TensorUse::vector : TensorUse::matrix;
  return recipe;
}

std::optional<DType> main_type(const files::TensorFile& file) {
  std::map<std::string_view, std::pair<std::size_t, const StoredTensor*>> weights;
  for (const StoredTensor& tensor : file.tensors()) {
    auto& entry = weights[tensor.type];
    entry.first += tensor.shape.elements();
    entry.second = &tensor;
  }
  const auto most = std::max_element(weights.begin(), weights.end(),
                                     [](const auto& a, const auto& b) { return a.second.first < b.second.first; });
  if (most == weights.end()) return std::nullopt;
  const std::optional<Format> format = most->second.second->format;
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    if (format == Format(dtype)) return dtype;
  }
  return std::nullopt;
}

}  // namespace imago::models
