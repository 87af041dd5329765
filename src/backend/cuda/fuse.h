#pragma once

// The steps of a program as the CUDA backend runs them: runs of steps that one launch or a fixed few do together. Found
// once, when a model is loaded. Plain host code: builds without CUDA test it.

#include <cstddef>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "backend/program.h"
#include "backend/runner.h"

namespace imago::backend::cuda {

/// Products of the stream, through a norm where there is one. A sum that the branch before has left, the norm and the
/// rounding to int8 are one launch; the products are another.
struct StreamProducts {
  std::optional<Norm> norm = {};
  std::vector<Product> products;
};

/// Norms of heads, rotation, cache and attention. Results are rounded to int8 along the way if `reader`, which
/// multiplies them next, takes int8.
struct PlaceAndAttend {
  std::optional<NormValues> value_norm = {};
  std::optional<NormHeads> query_norm = {}, key_norm = {};
  Attend attend;
  WeightKey reader;
};

/// The product that ends a branch: it adds to the stream itself, or with a norm after it leaves the sum to the launch
/// that reads the stream next.
struct FinishBranch {
  Slot in = Slot::query;
  Product product;
  std::optional<Norm> post_norm = {};
  float factor = 1;
};

/// A mixture of experts, whose sum is always left to the next launch.
struct ExpertsBranch {
  std::optional<Norm> norm = {};
  Experts experts;
  std::optional<Norm> post_norm = {};
  float factor = 1;
};

/// Queries of latent attention, from a row that is narrower than they are, through its norm.
struct SpreadQueries {
  Norm norm;
  Product product;
};

/// Norms among them are of the stream in place: what the branch before has left is added along the way.
using FusedStep = std::variant<StreamProducts, PlaceAndAttend, FinishBranch, ExpertsBranch, SpreadQueries, Norm,
                               LatentAttend, TakeLayerInput, ScaleStream>;

/// Whether a token's results depend on those before it.
bool passes_tokens(const FusedStep& step) noexcept;

struct FusedBlock {
  Sizes sizes;
  std::vector<FusedStep> steps;
};

struct FusedProgram {
  std::vector<FusedBlock> blocks;  ///< those of the runner
  std::vector<Sizes> sizes;        ///< that they have, each once
  StreamProducts output;           ///< one product
  AdjustLogits adjust;
  std::vector<Step> head;  ///< products and norms in place, run as they are
};

/// Throws UnsupportedError, with the step, for a sequence of steps that this backend does not run.
FusedProgram fuse(const Program& program, BlockRange blocks);

/// What is fused, in a line: the steps with " | " between them.
std::string text(const FusedStep& step);

}  // namespace imago::backend::cuda
