#include "lm/matrix_encoder.h"

#include <algorithm>
#include <utility>

#include "imago/error.h"
#include "lm/language_model_state.h"

namespace imago::lm {

MatrixSwap::MatrixSwap(LanguageModel& model) : model_(model) {}

void MatrixSwap::put(const models::MatrixKey& key, EncodedWeights encoded) {
  const DecoderWeights& weights = LanguageModelAccess::loaded(model_).weights;
  const auto has_key = [&](const MatrixGroup& group) { return std::ranges::find(group.keys, key) != group.keys.end(); };
  const auto found = std::ranges::find_if(weights.groups, has_key);
  if (found == weights.groups.end()) throw UsageError("only weight matrices of a decoder can be swapped");
  MatrixGroup group = *found;
  group.keys = {key};
  const models::RoleExtent extent = models::extent_of(weights.traits, key.role, key.block);
  std::vector<PreparedMatrix> prepared(1);
  prepared.front() = {.slice = {.rows = extent.rows, .cols = extent.cols}, .encoded = std::move(encoded)};
  LaidOutGroup laid = weights.lay_out(group, std::move(prepared));
  kept_.emplace_back(std::move(group), std::move(laid));
  weights.exchange(kept_.back().first, kept_.back().second);
}

MatrixSwap::~MatrixSwap() {
  const DecoderWeights& weights = LanguageModelAccess::loaded(model_).weights;
  for (; !kept_.empty(); kept_.pop_back()) weights.exchange(kept_.back().first, kept_.back().second);
}

}  // namespace imago::lm
