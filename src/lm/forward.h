#pragma once

// A batch through a whole model, on whichever devices its blocks are.

#include <cstddef>
#include <span>

#include "backend/runner.h"
#include "lm/kv_cache.h"
#include "lm/language_model_state.h"

namespace imago::lm {

/// What a batch is run for.
struct BatchRequest {
  std::size_t first_row = 0, rows = 0;           ///< tokens of the batch whose logits are computed
  std::span<float> logits = {};                  ///< [rows][vocabulary]; empty with a choice: they stay on the device
  const backend::TokenChoice* choice = nullptr;  ///< from the last of the rows; only if LoadedModel::chooses
  bool all_rows = false;                         ///< model_logits follows
};

/// Runs `ids` through all blocks and fills the caches after `past`. Returns the chosen token, -1 without a choice or if
/// no token can follow. REQUIRES: as backend::Batch; every position is below `positions`. Throws DeviceError.
TokenId run_model(const LoadedModel& model, std::span<const TokenId> ids, std::span<const Segment> segments,
                  std::size_t positions, backend::Workspace& work, const BatchRequest& request);

/// Logits of rows first … first + rows - 1 of the batch that ran last, with all_rows: [rows][vocabulary].
void model_logits(const LoadedModel& model, backend::Workspace& work, std::size_t first, std::size_t rows,
                  std::span<float> logits);

}  // namespace imago::lm
