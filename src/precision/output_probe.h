#pragma once

// Measures how much the output of a model changes when some of its matrices do.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/workspace.h"
#include "imago/lm.h"
#include "lm/forward.h"
#include "lm/language_model_state.h"

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
  OutputProbe(const OutputProbe&) = delete;
  OutputProbe& operator=(const OutputProbe&) = delete;

  struct Outcome {
    double divergence = 0;  ///< mean KL(before || now) in nats
    double surprise = 0;    ///< mean -log probability of the next token
  };
  /// Measures the model as it is now. REQUIRES: blocks before `first_block`, and the embedding unless that is 0, have
  /// not changed since construction or the last `rebase`.
  Outcome measure(std::size_t first_block);
  /// Stores the block inputs of the model as it is now; outcomes are still compared with the original logits.
  void rebase();

  double surprise_before() const noexcept { return surprise_; }
  std::size_t windows() const noexcept { return windows_; }
  /// Memory in use.
  std::uint64_t bytes() const noexcept {
    return (logits_.size() + inputs_.size() + some_logits_.size()) * sizeof(float);
  }

 private:
  std::size_t vocabulary() const { return model_.weights.traits.vocabulary; }
  std::size_t blocks() const { return model_.weights.traits.blocks; }
  std::size_t window_values() const { return context_ * model_.weights.traits.width; }
  std::span<float> input(std::size_t window, std::size_t block) {
    return std::span(inputs_).subspan((window * blocks() + block) * window_values(), window_values());
  }
  /// The original logits of a compared row; rows are numbered through all windows.
  std::span<float> reference(std::size_t place) {
    return std::span(logits_).subspan(place * vocabulary(), vocabulary());
  }
  void embed(std::size_t window);
  void run_blocks(backend::BlockRange range);
  void run_and_remember(std::size_t window);
  template <class Visit>
  void for_each_row(std::size_t window, Visit&& visit);

  const lm::LoadedModel& model_;
  backend::CpuRunner& runner_;
  std::vector<TokenId> ids_;
  std::size_t context_, windows_;
  std::vector<std::size_t> rows_;  ///< positions of a window that are compared
  std::vector<float> logits_;      ///< [windows][rows][vocabulary]
  std::vector<float> inputs_;      ///< [windows][blocks][context][width], or empty
  lm::KvCache cache_;
  lm::SharedRopes ropes_;
  backend::Workspace work_;
  std::vector<float> some_logits_;
  double surprise_ = 0;
};

}  // namespace imago::precision
