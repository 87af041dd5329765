#include "lm/matrix_encoder.h"

#include <utility>

#include "imago/error.h"
#include "lm/language_model_state.h"

namespace imago::lm {

using models::MatrixKey;
using models::Role;

void MatrixSwap::put(const MatrixKey& key, EncodedWeights weights) {
  const LoadedModel& loaded = LanguageModelAccess::loaded(model_);
  const backend::CpuRunner& runner = loaded.host("swapping matrices");
  const models::RoleExtent extent = models::extent_of(loaded.weights.traits, key.role);
  if (extent.vector || key.role == Role::router) throw UsageError("only weight matrices of a decoder can be swapped");
  Kept kept{.key = key, .matrix = std::nullopt, .table = std::nullopt};
  if (runner.weights().matrix(key) != nullptr) {
    kept.matrix.emplace(weights.view(extent.rows, extent.cols), kernels::Arithmetic::exact);
  }
  if (key.role == Role::token_embedding) kept.table.emplace(table_of(extent.rows, extent.cols, std::move(weights)));
  kept_.push_back(std::move(kept));
  swap(kept_.back());
}

void MatrixSwap::swap(Kept& kept) {
  backend::CpuRunner& runner = LanguageModelAccess::editable(model_).host("swapping matrices");
  if (kept.matrix) std::swap(runner.weights().place(kept.key), kept.matrix);
  if (kept.table) std::swap(runner.table(), *kept.table);
}

MatrixSwap::~MatrixSwap() {
  for (; !kept_.empty(); kept_.pop_back()) swap(kept_.back());
}

}  // namespace imago::lm
