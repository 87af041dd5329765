// The loop: logits, a token, its text, and again.

#include <algorithm>
#include <chrono>

#include "imago/error.h"
#include "imago/lm.h"
#include "lm/language_model_state.h"
#include "lm/text_stream.h"

namespace imago {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Penalties count the tokens before the generation too.
void tell(Sampler& sampler, std::span<const TokenId> tokens, int penalty_tokens) {
  const std::size_t seen =
      penalty_tokens < 0 ? tokens.size() : std::min(tokens.size(), static_cast<std::size_t>(penalty_tokens));
  for (const TokenId id : tokens.last(seen)) sampler.accept(id);
}

/// The token after a sequence: chosen on the device if the sampler does not need the logits on the host.
class NextToken {
 public:
  NextToken(Sequence& sequence, Sampler& sampler, const GenerateOptions& options)
      : sequence_(sequence),
        sampler_(sampler),
        there_(SequenceAccess::chooses(sequence) && !SamplerAccess::needs_logits(sampler) &&
               options.log_probabilities == 0) {}

  /// False if `go_on` has stopped it.
  bool append(std::span<const TokenId> ids, const std::function<bool(std::size_t done)>& go_on = {}) {
    if (there_) {
      chosen_ = SequenceAccess::append(sequence_, ids, SamplerAccess::next_choice(sampler_), go_on);
      return chosen_ >= 0;
    }
    logits_ = sequence_.append(ids, go_on);
    return !logits_.empty();
  }
  TokenId choose() { return there_ ? chosen_ : sampler_.sample(logits_); }
  /// Empty where the token was chosen elsewhere, which is never if log-probabilities are wanted.
  std::span<const float> logits() const noexcept { return logits_; }

 private:
  Sequence& sequence_;
  Sampler& sampler_;
  bool there_;
  TokenId chosen_ = -1;
  std::span<const float> logits_;
};

}  // namespace

GenerateResult generate(Sequence& sequence, std::span<const TokenId> prompt, const GenerateOptions& options,
                        const std::function<bool(const GeneratedToken&)>& on_token) {
  const Tokenizer* const tokenizer = sequence.tokenizer();
  if (tokenizer == nullptr && !options.stop.empty()) {
    throw UnsupportedError("stop strings need a tokenizer, and the model has none");
  }
  lm::TextStream stream(options.stop);
  Sampler sampler(options.sampler);
  GenerateResult result;
  const auto emit = [&](GeneratedToken token) {
    result.text += token.text;
    return !on_token || on_token(token);
  };

  const Clock::time_point start = Clock::now();
  NextToken next(sequence, sampler, options);
  const bool ran = next.append(prompt, [&](std::size_t done) {
    return !options.prompt_progress || options.prompt_progress(done, prompt.size());
  });
  result.prompt_seconds = seconds_since(start);
  if (!ran) {
    result.end = EndReason::cancelled;
    return result;
  }
  result.prompt_tokens = prompt.size();
  tell(sampler, sequence.tokens(), options.sampler.penalty_tokens);

  const Clock::time_point first = Clock::now();
  while (result.ids.size() < options.max_tokens) {
    GeneratedToken token{next.choose(), {}, {}};
    if (tokenizer != nullptr && tokenizer->is_end(token.id) && !options.ignore_end) {
      result.end = EndReason::end_token;
      token.text = stream.finish();
      if (!token.text.empty()) emit(std::move(token));
      break;
    }
    result.ids.push_back(token.id);
    const bool enough = result.ids.size() == options.max_tokens;
    const bool full = sequence.size() == sequence.capacity();
    if (tokenizer != nullptr) token.text = stream.push(tokenizer->piece(token.id));
    if (enough || full) token.text += stream.finish();
    if (options.log_probabilities > 0) {
      token.top = top_log_probabilities(next.logits(), options.log_probabilities, token.id);
    }
    const TokenId id = token.id;
    if (!emit(std::move(token))) {
      result.end = EndReason::cancelled;
      break;
    }
    if (stream.stopped()) {
      result.end = EndReason::stop_string;
      break;
    }
    if (enough) break;
    if (full) {
      result.end = EndReason::context_full;
      break;
    }
    next.append({&id, 1});
  }
  result.generate_seconds = seconds_since(first);
  result.text += stream.finish();  // when the caller has stopped listening
  return result;
}

}  // namespace imago
