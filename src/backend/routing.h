#pragma once

// Which tokens go to which experts.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/program.h"

namespace imago::backend {

/// The experts of some tokens. A row is one token at one of its experts; the rows of an expert follow each other.
struct Routing {
  std::vector<float> weights;        ///< [tokens][used]
  std::vector<std::size_t> chosen;   ///< [tokens][used]: the expert
  std::vector<std::size_t> row_of;   ///< [tokens][used]: the row
  std::vector<std::size_t> firsts;   ///< first row of each expert, and one more: the number of rows
  std::vector<std::size_t> singles;  ///< rows of each expert, its first ones, that are of the first tokens

  /// Everything, from what the router made, [tokens][experts] with its bias, which is overwritten by the scores.
  /// `choice_bias`, `expert_scale`: one per expert, or empty.
  void route(const Experts& experts, std::span<float> scores, std::span<const float> choice_bias, std::size_t tokens,
             std::span<const float> expert_scale = {});
  /// The rows, from `chosen`.
  void arrange(const Experts& experts, std::size_t tokens);
  /// Fills `singles` for that many first tokens.
  void count_singles(const Experts& experts, std::size_t tokens);

 private:
  std::vector<float> rank_, groups_;  // scores that decide, of the experts and of their groups
};

}  // namespace imago::backend
