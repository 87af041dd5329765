#pragma once

// Measures how much the output of a model changes when some of its matrices do.

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
  bool keep_inputs = true;  ///< of all blocks; without them only measure(0) is allowed
  /// The first compared position of each window; none: the middle, like `measure_divergence`.
  /// REQUIRES: less than context - 1.
  std::optional<std::size_t> first_position = std::nullopt;
  /// Memory for logits; with a large vocabulary, fewer positions of each window are compared.
  std::size_t logit_bytes = std::size_t{256} << 20;
};

/// Stores the logits of a model for some windows of tokens and the inputs of each block, so that after a change in a
/// late block the early ones need not run again. Memory: the inputs of all blocks, and logits of some positions.
class OutputProbe {
 public:
  /// Runs the windows, concatenated in `ids`, through the model as it is. The model must outlive the probe.
  /// Throws UsageError for ids outside the vocabulary.
  OutputProbe(const LanguageModel& model, std::span<const TokenId> ids, const ProbeOptions& options);
  ~OutputProbe();

  struct Outcome {
    double divergence = 0;  ///< mean KL(before || now) in nats
    double surprise = 0;    ///< mean -log probability of the next token
  };
  /// Measures the model as it is now. REQUIRES: blocks before `first_block`, and the embedding unless that is 0, have
  /// not changed since construction or the last `rebase`.
  Outcome measure(std::size_t first_block) const;
  /// Stores the block inputs of the model as it is now; outcomes are still compared with the original logits.
  void rebase();

  double surprise_before() const noexcept;
  std::size_t windows() const noexcept;
  std::size_t positions() const noexcept;
  /// Tokens that measure(0) runs through every block.
  std::size_t tokens() const noexcept;
  std::uint64_t bytes() const noexcept;  ///< memory in use

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace imago::precision
