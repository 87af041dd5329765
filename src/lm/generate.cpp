// The loop: logits, a token, its text, and again.

#include <chrono>

#include "imago/lm.h"
#include "lm/answer.h"
#include "lm/language_model_state.h"

namespace imago {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

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
  lm::Answer answer(sequence.tokenizer(), options);
  Sampler sampler(options.sampler);
  GenerateResult& result = answer.result();

  const Clock::time_point start = Clock::now();
  NextToken next(sequence, sampler, options);
  const bool ran = next.append(prompt, [&](std::size_t done) {
    return !options.prompt_progress || options.prompt_progress(done, prompt.size());
  });
  result.prompt_seconds = seconds_since(start);
  if (!ran) {
    answer.cancel();
    return std::move(result);
  }
  result.prompt_tokens = prompt.size();
  lm::tell_prompt(sampler, sequence.tokens(), options.sampler.penalty_tokens);

  const Clock::time_point first = Clock::now();
  while (!answer.enough() && !answer.end()) {
    const TokenId id = next.choose();
    const bool full = sequence.size() == sequence.capacity();
    const std::optional<GeneratedToken> token = answer.take(id, full, next.logits());
    if (token && on_token && !on_token(*token)) answer.cancel();
    if (!answer.end()) next.append({&id, 1});
  }
  result.generate_seconds = seconds_since(first);
  return std::move(result);
}

}  // namespace imago
