#include "models/matrix_names.h"

#include <algorithm>

namespace imago::models {

namespace {

/// Calls visit(tensor, block) for all tensors of a decoder.
template <class Visit>
void for_each_tensor(const Traits& traits, const Naming& naming, Visit&& visit) {
  for (const LayoutTensor& tensor : outer_layout(traits, naming)) visit(tensor, 0);
  for (std::size_t block = 0; block < traits.blocks; ++block) {
    for (const LayoutTensor& tensor : block_layout(traits, naming, block)) visit(tensor, block);
  }
}

bool is_outer(Role role) noexcept { return role < Role::attention_norm || role == Role::rope_factors; }

}  // namespace

std::string matrix_name(const Traits& traits, Role role, std::size_t block) {
  const Naming naming = usual_naming(traits, true);
  const std::vector<LayoutTensor> tensors =
      is_outer(role) ? outer_layout(traits, naming) : block_layout(traits, naming, block);
  const auto found = std::ranges::find_if(
      tensors, [&](const LayoutTensor& tensor) { return std::ranges::find(tensor.roles, role) != tensor.roles.end(); });
  return found == tensors.end() ? std::string() : found->name;
}

NamedMatrices matrices_of(const Traits& traits, const LayoutTensor& tensor, std::size_t block) {
  if (extent_of(traits, tensor.roles.front()).vector) return {};
  // Fused on one side only: the first part stands for all, since they share their inputs.
  return {matrix_name(traits, tensor.roles.front(), block), tensor.first_expert, tensor.experts};
}

std::map<std::string, NamedMatrices> matrix_names(const Traits& traits, const Naming& naming) {
  std::map<std::string, NamedMatrices> names;
  for_each_tensor(traits, naming, [&](const LayoutTensor& tensor, std::size_t block) {
    if (NamedMatrices found = matrices_of(traits, tensor, block); !found.name.empty()) names[tensor.name] = found;
  });
  return names;
}

}  // namespace imago::models
