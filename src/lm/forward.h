#pragma once

// Keys and values of a sequence, and batches through a whole model, on whichever devices its blocks are.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/runner.h"
#include "backend/workspace.h"
#include "imago/lm.h"
#include "kernels/attention.h"
#include "lm/language_model_state.h"

namespace imago::lm {

struct KvCache {
  KvCache() = default;
  /// Each runner has the pages of its blocks, of `rows` tokens each, and slots of states; without runners there are
  /// sizes only. Throws UsageError if the heads of the model do not fit the kind, std::bad_alloc, DeviceError.
  KvCache(const backend::Program& program, CacheKind kind, std::size_t rows,
          std::span<const std::unique_ptr<backend::Runner>> runners = {}, std::size_t pages = 1,
          std::size_t states = 1);

  std::size_t page_rows = 0;                           ///< tokens of a page
  std::vector<kernels::CacheShape> shapes;             ///< the shape of a page, one per block
  std::vector<std::size_t> state_values;               ///< values of a sequence, one per block
  std::vector<std::unique_ptr<backend::Cache>> parts;  ///< one per runner
  std::vector<std::size_t> part_ends;                  ///< the block after the last of each part

  /// The part that has a block.
  backend::Cache& part_of(std::size_t block) const;
  /// Bytes of one token in all blocks.
  std::size_t token_bytes() const;
  /// Bytes of the states of a sequence; 0: the model has none.
  std::size_t state_bytes() const noexcept;
};

/// Consecutive tokens of one sequence in a batch.
struct Segment {
  const KvCache* cache = nullptr;
  std::size_t past = 0;    ///< tokens in the pages before them
  std::size_t tokens = 0;  ///< in the batch, after those of the segments before
  std::span<const std::uint32_t> pages = kernels::kOnePage;
  std::uint32_t state = 0;  ///< as in backend::Segment
  std::size_t kept_tokens = 0;
  std::uint32_t kept_state = 0;
  std::size_t second_text = backend::kNoSecondText;  ///< the position where the second text of a pair begins
};

/// Runs the ids of a batch through all blocks and fills the caches after `past`; segments and ropes of the batch are
/// set here. REQUIRES: as backend::Batch; every position is below `positions`. Throws DeviceError.
void run_model(const LoadedModel& model, std::span<const Segment> segments, std::size_t positions,
               backend::Batch batch);

/// 0 … count - 1: the rows of a batch whose logits are all wanted.
std::vector<std::uint32_t> all_rows(std::size_t count);

/// Runs windows of tokens through a model, each from its start, and shows an observer what the matrices see. Logits are
/// not computed; the input of the output matrix is shown all the same. The model must outlive it. Not thread-safe.
class ObservedRun {
 public:
  /// Windows have at most `context` tokens. Throws as Sequence.
  ObservedRun(const LanguageModel& model, std::size_t context);
  /// Throws UsageError for no tokens, too many of them and ids outside the vocabulary.
  void run(std::span<const TokenId> window, backend::InputObserver& observer);

 private:
  const LoadedModel& model_;
  backend::CpuRunner& runner_;
  KvCache cache_;
  backend::Workspace work_;
};

}  // namespace imago::lm
