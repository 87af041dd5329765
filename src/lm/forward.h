#pragma once

// A batch through a whole model, wherever its blocks are.

#include <cstddef>
#include <span>

#include "lm/accelerator.h"
#include "lm/decoder.h"
#include "lm/language_model_state.h"

namespace imago::lm {

/// What a batch is run for.
struct Wanted {
  std::size_t first_row = 0, rows = 0;  ///< tokens of the batch whose logits are wanted
  std::span<float> logits = {};         ///< [rows][vocabulary]; empty with a choice: they stay where they are
  const TokenChoice* choice = nullptr;  ///< from the last of the rows; only with an accelerator
  bool output_rows = false;             ///< `model_logits` will be asked
};

/// Runs `ids` through all blocks, filling the caches behind `past`. Returns the chosen token, -1 without a choice or if
/// no token can follow. REQUIRES: as run_blocks; no position is `positions` or beyond. Throws DeviceError.
TokenId run_model(const LoadedModel& model, std::span<const TokenId> ids, std::span<const Segment> segments,
                  std::size_t positions, Workspace& work, const Wanted& wanted);

/// Logits of rows first … first + rows - 1 of the batch that ran last, for its output_rows: [rows][vocabulary].
void model_logits(const LoadedModel& model, Workspace& work, std::size_t first, std::size_t rows,
                  std::span<float> logits);

}  // namespace imago::lm
