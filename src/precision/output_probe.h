#pragma once

// How much the output of a model moves when some of its matrices do.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "imago/lm.h"

namespace imago::precision {

struct ProbeOptions {
  std::size_t context = 512;
  bool keep_inputs = true;  ///< of all blocks; without them only measure(0) has a meaning
  /// Where the positions that are compared begin in each window; none: in the middle, as `measure_divergence` does.
  /// REQUIRES: less than context - 1.
  std::optional<std::size_t> first_position = std::nullopt;
  /// There are fewer positions, spread over the rest of the window, where the vocabulary is so large that their logits
  /// would take more than this.
  std::size_t logit_bytes = std::size_t{256} << 20;
};

/// Remembers what a model says about some windows of tokens, and what goes into each of its blocks, so that a change
/// in a late block need not run the early ones again. Memory: the inputs of all blocks, and logits of some positions.
class OutputProbe {
 public:
  /// Runs the windows, one behind the other in `ids`, once through the model as it is. The model must outlive it.
  /// Throws UsageError for ids outside the vocabulary.
  OutputProbe(const LanguageModel& model, std::span<const TokenId> ids, const ProbeOptions& options);
  ~OutputProbe();

  struct Outcome {
    double divergence = 0;  ///< mean KL(before || now) in nats
    double surprise = 0;    ///< mean -log of the probability of the token that follows
  };
  /// Of the model as it is now. REQUIRES: blocks before `first_block`, and the embedding if that is not 0, are as they
  /// were when this probe was made or `rebase` was called last.
  Outcome measure(std::size_t first_block) const;
  /// Remembers what goes into the blocks of the model as it is now; outcomes stay compared with what it said first.
  void rebase();

  double surprise_before() const noexcept;
  std::size_t windows() const noexcept;
  std::size_t positions() const noexcept;
  /// Tokens that a call of measure(0) runs through every block.
  std::size_t tokens() const noexcept;
  std::uint64_t bytes() const noexcept;  ///< of memory

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace imago::precision
