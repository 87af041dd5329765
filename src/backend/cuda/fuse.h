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
  std::optional<Scale> scale = {};  ///< of what the norm makes, in a launch of its own
  std::vector<Product> products = {};
};

/// Products of what a step of the block has left in a slot, which others read.
struct SlotProducts {
  Slot in = Slot::channels;
  std::vector<Product> products;
};

/// Norms of heads, rotation, cache, attention and its gate. Results are rounded to int8 along the way if `reader`,
/// which multiplies them next, takes int8.
struct PlaceAndAttend {
  std::optional<NormValues> value_norm = {};
  std::optional<NormHeads> query_norm = {}, key_norm = {};
  Attend attend;
  std::optional<Gate> gate = {};
  WeightKey reader;
};

/// A short convolution, with the gates of what goes in and of what comes out.
struct Convolve {
  std::optional<Gate> in_gate = {};
  ShortConv conv;
  std::optional<Gate> out_gate = {};
};

/// A scan from raw sizes of steps, and in a second launch what follows in place.
struct Scan {
  std::variant<LinearScan, ChannelScan> scan;
  std::optional<NormHeads> norm = {};
  std::optional<Gate> gate = {};
  bool gate_first = false;
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

/// Norms among them work in place; that of the stream adds what the branch before has left along the way.
using FusedStep = std::variant<StreamProducts, SlotProducts, PlaceAndAttend, Convolve, Scan, FinishBranch,
                               ExpertsBranch, Norm, LatentAttend, TakeLayerInput, ScaleStream, Scale>;

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
