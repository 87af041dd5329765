#include "lm/answer.h"

#include <algorithm>

#include "imago/error.h"

namespace imago::lm {

Answer::Answer(const Tokenizer* tokenizer, const GenerateOptions& options)
    : tokenizer_(tokenizer),
      max_tokens_(options.max_tokens),
      log_probabilities_(options.log_probabilities),
      ignore_end_(options.ignore_end),
      stream_(options.stop) {
  if (tokenizer == nullptr && !options.stop.empty()) {
    throw UnsupportedError("stop strings need a tokenizer, and the model has none");
  }
}

std::optional<GeneratedToken> Answer::take(TokenId id, bool full, std::span<const float> logits) {
  GeneratedToken token{id, {}, {}};
  if (tokenizer_ != nullptr && tokenizer_->is_end(id) && !ignore_end_) {
    end_ = result_.end = EndReason::end_token;
    token.text = stream_.finish();
    result_.text += token.text;
    return token.text.empty() ? std::nullopt : std::optional(std::move(token));
  }
  result_.ids.push_back(id);
  // Models may have rows beyond the tokens that there are, to fill up their vocabulary: those spell nothing.
  const bool spelled = tokenizer_ != nullptr && static_cast<std::size_t>(id) < tokenizer_->size();
  if (spelled) token.text = stream_.push(tokenizer_->piece(id));
  if (enough() || full) token.text += stream_.finish();
  if (log_probabilities_ > 0) token.top = top_log_probabilities(logits, log_probabilities_, id);
  if (stream_.stopped()) {
    end_ = EndReason::stop_string;
  } else if (enough()) {
    end_ = EndReason::max_tokens;
  } else if (full) {
    end_ = EndReason::context_full;
  }
  result_.end = end_.value_or(EndReason::max_tokens);
  result_.text += token.text;
  return token;
}

void Answer::cancel() {
  if (end_ == EndReason::end_token) return;
  end_ = result_.end = EndReason::cancelled;
  result_.text += stream_.finish();
}

void tell_prompt(Sampler& sampler, std::span<const TokenId> tokens, int penalty_tokens) {
  const std::size_t seen =
      penalty_tokens < 0 ? tokens.size() : std::min(tokens.size(), static_cast<std::size_t>(penalty_tokens));
  for (const TokenId id : tokens.last(seen)) sampler.accept(id);
}

}  // namespace imago::lm
