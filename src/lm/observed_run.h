#pragma once

#include <memory>
#include <span>

#include "backend/workspace.h"
#include "imago/lm.h"

namespace imago::lm {

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
