#pragma once

// Keys and values of a sequence, and batches through a whole model, on whichever devices its blocks are.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backend/runner.h"
#include "backend/workspace.h"
#include "imago/lm.h"
#include "kernels/attention.h"
#include "lm/language_model_state.h"
#include "models/traits.h"

namespace imago::lm {

struct KvCache {
  KvCache() = default;
  /// Each runner has the cache of its blocks; without runners there are sizes only. Throws UsageError if the heads of
  /// the model do not fit the kind, std::bad_alloc, DeviceError.
  KvCache(const models::Traits& traits, CacheKind kind, std::size_t rows,
          std::span<const std::unique_ptr<backend::Runner>> runners = {});

  kernels::CacheShape shape;
  std::size_t blocks = 0;
  std::vector<std::unique_ptr<backend::Cache>> parts;  ///< one per runner
  std::vector<std::size_t> part_ends;                  ///< the block after the last of each part

  /// The part that has a block.
  backend::Cache& part_of(std::size_t block) const;
  /// Bytes of one token in all blocks.
  std::size_t token_bytes() const { return 2 * blocks * shape.heads * shape.row_bytes(); }
};

/// Consecutive tokens of one sequence in a batch.
struct Segment {
  const KvCache* cache = nullptr;
  std::size_t past = 0;    ///< tokens in the cache before them
  std::size_t tokens = 0;  ///< in the batch, after those of the segments before
};

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

/// Runs windows of tokens through a model, each from its start, and shows an observer what the matrices see. Logits are
/// not computed; the input of the output matrix is shown all the same. The model must outlive it. Not thread-safe.
class ObservedRun {
 public:
  /// Windows have at most `context` tokens. Throws as Sequence.
  ObservedRun(const LanguageModel& model, std::size_t context);
  ~ObservedRun();
  /// Throws UsageError for no tokens, too many of them and ids outside the vocabulary.
  void run(std::span<const TokenId> window, backend::InputObserver& observer);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace imago::lm
