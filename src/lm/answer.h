#pragma once

// From tokens to an answer: their text, and where it ends.

#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "imago/lm.h"
#include "lm/text_stream.h"

namespace imago::lm {

/// Takes the tokens that follow a prompt one by one. Its result has text, ids and end; the rest is the caller's.
class Answer {
 public:
  /// Throws UsageError for an empty stop string, UnsupportedError for stop strings without a tokenizer. The tokenizer
  /// must outlive it.
  Answer(const Tokenizer* tokenizer, const GenerateOptions& options);

  /// Whether as many tokens are there as were asked for: none if none were.
  bool enough() const noexcept { return result_.ids.size() >= max_tokens_; }
  /// Takes a token, and its log-probabilities from the logits it was chosen from, where they are wanted. `full`: there
  /// is no room for another one. Returns what the listener sees: all but an end token that sets no text free.
  std::optional<GeneratedToken> take(TokenId id, bool full, std::span<const float> logits);
  /// Why no token follows; empty while one may.
  std::optional<EndReason> end() const noexcept { return end_; }
  /// Nobody listens any more. What was held back belongs to the text; an end token stays the reason.
  void cancel();

  const GenerateResult& result() const noexcept { return result_; }
  GenerateResult& result() noexcept { return result_; }

 private:
  const Tokenizer* tokenizer_;
  std::size_t max_tokens_, log_probabilities_;
  bool ignore_end_;
  TextStream stream_;
  std::optional<EndReason> end_;
  GenerateResult result_;
};

/// Tells a sampler of the tokens before an answer, as many as its penalties look back.
void tell_prompt(Sampler& sampler, std::span<const TokenId> tokens, int penalty_tokens);

}  // namespace imago::lm
