#pragma once

// A text in windows of tokens, and what models predict in the second half of each.

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "imago/lm.h"

namespace imago::lm {

/// The tokens of whole windows, BOS before each where the tokenizer asks for it. Throws UsageError for a text that
/// does not fill one.
std::vector<TokenId> window_tokens(std::string_view text, const Tokenizer& tokenizer, std::size_t context);

/// Some neighbouring positions of a window.
struct ScoredPiece {
  std::span<const std::span<float>> logits;  ///< one per model, [targets][vocabulary]; free to be overwritten
  std::span<const TokenId> targets;          ///< the token that follows each position
};

/// Cuts the text as `measure_perplexity` promises, with the tokenizer of the first model, and runs all models over one
/// window after the other. `on_piece` sees the scored positions in order, `on_window` each window that is done.
/// Throws UsageError for windows that a model cannot have or the text does not fill and for tokens outside the
/// vocabulary, UnsupportedError without a tokenizer. REQUIRES: there is a model, and all have as many logits.
void for_each_scored_piece(std::span<const LanguageModel* const> models, std::string_view text, std::size_t context,
                           CacheKind cache, const std::function<void(const ScoredPiece&)>& on_piece,
                           const std::function<void(std::size_t done, std::size_t total)>& on_window);

}  // namespace imago::lm
