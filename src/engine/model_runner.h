#pragma once

// Steps on a language model, over one pool of cache pages.

#include <cstddef>
#include <memory>
#include <vector>

#include "backend/workspace.h"
#include "engine/step_runner.h"
#include "imago/engine.h"
#include "lm/forward.h"
#include "lm/language_model_state.h"
#include "lm/sequence_file.h"

namespace imago::engine {

/// Tokens of a page: a multiple of the tiles of keys, so that results do not depend on where pages are.
inline constexpr std::size_t kPageTokens = 64;
/// That so many tokens need.
constexpr std::size_t pages_of(std::size_t tokens) noexcept { return (tokens + kPageTokens - 1) / kPageTokens; }

/// Consecutive tokens of a text to embed, after `past` others.
struct TextPiece {
  std::span<const Page> pages;
  std::size_t past = 0, tokens = 0;
  std::size_t second = backend::kNoSecondText;  ///< where the second text of a pair begins
};

class ModelRunner final : public StepRunner {
 public:
  /// Requests of up to `context` tokens. The model must outlive it. Throws as the constructor of Engine.
  ModelRunner(const LanguageModel& model, const EngineOptions& options);

  std::size_t context() const noexcept { return context_; }
  std::size_t pages() const noexcept { return pages_; }
  /// Slots of states for requests and cached prefixes; 0: the model has none. One more is for add_hidden.
  std::size_t states() const noexcept { return states_; }
  /// Prompt tokens of a step unless the caller says otherwise.
  std::size_t usual_prompt_tokens() const noexcept;

  /// Whether each token of a text sees all others, so that the text cannot be run in pieces.
  bool sees_all() const noexcept { return !model_.weights.traits.causal; }
  /// Whether a step can have several texts: there is one slot for their states.
  bool embeds_together() const noexcept { return states_ == 0; }
  std::size_t width() const noexcept { return model_.weights.traits.width; }
  std::size_t vocabulary() const override { return model_.weights.traits.vocabulary; }
  bool chooses() const override { return model_.chooses(); }
  void run(const Step& step) override;
  void copy(Page from, Page to, std::size_t tokens) override;
  void copy_state(Page from, Page to) override;
  /// Runs pieces of texts, whose ids follow each other, and returns what `hidden_states` gives of each token; valid
  /// until the next call. Throws DeviceError.
  std::span<const float> hidden(std::span<const TokenId> ids, std::span<const TextPiece> pieces);
  /// Whether the model has a head for scores, or one for embeddings.
  bool has_head(bool scores) const noexcept {
    const models::Head& head = model_.weights.traits.head;
    return head.results != 0 && head.scores == scores;
  }
  /// What the head makes of a pooled row.
  std::vector<float> apply_head(std::span<const float> pooled);

  const lm::KvCache& cache() const noexcept { return cache_; }
  lm::KvCache& cache() noexcept { return cache_; }
  lm::SequenceOwner owner() const noexcept;

 private:
  const lm::LoadedModel& model_;
  CacheKind kind_;
  std::size_t context_, pages_, states_;
  lm::KvCache cache_;
  backend::Workspace work_;
  std::vector<lm::Segment> segments_;
  std::vector<float> hidden_;
};

}  // namespace imago::engine
