#include "lm/matrix_swap.h"

#include <fmt/format.h>

#include <utility>

#include "imago/error.h"
#include "lm/decoder_weights.h"
#include "lm/language_model_state.h"

namespace imago::lm {

namespace {

using models::MatrixKey;
using models::Role;

/// The place of a matrix; null for an embedding that is no output.
std::optional<kernels::RunMatrix>* place_of(DecoderWeights& weights, const MatrixKey& key) {
  if (key.role == Role::output) return &weights.output.matrix;
  if (key.role == Role::token_embedding) return weights.traits.tied_output ? &weights.output.matrix : nullptr;
  Block& block = weights.blocks.at(key.block);
  if (key.role == Role::query) return &block.query.matrix;
  if (key.role == Role::key) return &block.key.matrix;
  if (key.role == Role::value) return &block.value.matrix;
  if (key.role == Role::attention_output) return &block.attention_output.matrix;
  FeedForward& layer = block.feed_forwards.at(key.expert);
  if (key.role == Role::gate) return &layer.gate.matrix;
  if (key.role == Role::up) return &layer.up.matrix;
  if (key.role == Role::down) return &layer.down.matrix;
  throw UsageError("only weight matrices of a decoder can be swapped");
}

}  // namespace

void MatrixSwap::put(const MatrixKey& key, EncodedWeights weights) {
  LanguageModelAccess::loaded(model_).require_host("swapping matrices");
  DecoderWeights& decoder = LanguageModelAccess::editable(model_).weights;
  std::optional<kernels::RunMatrix>* place = place_of(decoder, key);
  const models::RoleExtent extent = models::extent_of(decoder.traits, key.role);
  Kept kept{.key = key, .matrix = std::nullopt, .embedding = std::nullopt};
  if (place != nullptr) {
    kept.matrix.emplace(kernels::PackedMatrix{.format = weights.format,
                                              .rows = extent.rows,
                                              .cols = extent.cols,
                                              .packed = std::as_const(weights.packed).host(),
                                              .scales = weights.view_scales()},
                        kernels::Arithmetic::exact);
  }
  if (key.role == Role::token_embedding) kept.embedding.emplace(extent.rows, extent.cols, std::move(weights));
  kept_.push_back(std::move(kept));
  if (place != nullptr) std::swap(*place, kept_.back().matrix);
  if (kept_.back().embedding) std::swap(decoder.embedding, *kept_.back().embedding);
}

MatrixSwap::~MatrixSwap() {
  DecoderWeights& decoder = LanguageModelAccess::editable(model_).weights;
  for (; !kept_.empty(); kept_.pop_back()) {
    if (auto* place = place_of(decoder, kept_.back().key)) std::swap(*place, kept_.back().matrix);
    if (kept_.back().embedding) std::swap(decoder.embedding, *kept_.back().embedding);
  }
}

}  // namespace imago::lm
