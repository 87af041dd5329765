#pragma once

// Which experts tokens go to, and what becomes of their results. All pointers are device memory.

#include <cstddef>
#include <cstdint>

#include "backend/program.h"
#include "device/cuda/stream.h"
#include "kernels/cuda/expert_products.h"

namespace imago::backend::cuda {

/// Chooses the experts of each token as backend::Experts says.
struct ChooseArgs {
  const float* products;     ///< [tokens][experts.count]: the router's, with its bias
  const float* choice_bias;  ///< [experts.count]; null: none
  std::int32_t* chosen;      ///< [tokens][experts.used]
  float* weights;            ///< likewise
  std::size_t tokens;
};
void choose_experts(const Experts& experts, const ChooseArgs& args, imago::cuda::Stream& stream);

/// Puts the rows of each expert together, a row being one token at one of its experts, and cuts them into tiles.
struct ArrangeArgs {
  const std::int32_t* chosen;  ///< [tokens][used]
  std::size_t rows, used, experts;
  kernels::cuda::ExpertTiles tiles;
  kernels::cuda::ExpertTile* list;  ///< [tiles.most]
  std::int32_t* tokens;             ///< [tiles.most · tiles.rows]: the token of each row of a tile; -1: there is none
  std::int32_t* places;             ///< likewise: its place among the rows in the order of their experts
  std::int32_t* row_of;             ///< [tokens][used]: this place
};
void arrange_experts(const ArrangeArgs& args, imago::cuda::Stream& stream);

/// What the experts of each token have made, weighted: out[t] = Σ weights[t][i] · results[row_of[t][i]] over the `used`
/// experts of a token, + shared[t], times sigmoid(shared_products[t]) where given. Rows of `width`. With `add`, out[t]
/// += factor · that.
struct CombineArgs {
  const float* results;
  const std::int32_t* row_of;  ///< null: t · used + i
  const float* weights;
  const float* shared = nullptr;  ///< [tokens][width]; null: no expert is shared
  const float* shared_products = nullptr;
  float* out;
  bool add = false;
  float factor = 1;
  std::size_t tokens, used, width;
};
void combine_experts(const CombineArgs& args, imago::cuda::Stream& stream);

}  // namespace imago::backend::cuda
