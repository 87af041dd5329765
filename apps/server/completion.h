#pragma once

// Answers to prompts: what is generated, and how it is told.

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api.h"
#include "imago/engine.h"
#include "models.h"

namespace imago::server {

/// The client has gone; nobody reads a reply.
struct ClientGone {};

/// How thoughts are told apart from the answer: what stands in <think>…</think> at its beginning.
class ReasoningFilter {
 public:
  /// `enabled`: else all is answer. `inside`: the prompt has opened the tag.
  ReasoningFilter(bool enabled, bool inside)
      : state_(!enabled ? State::answer
               : inside ? State::thinking
                        : State::undecided) {}

  struct Parts {
    std::string reasoning = {}, content = {};
  };
  Parts push(std::string_view text);
  /// What was held back, because it may have been a tag.
  Parts finish();

 private:
  enum class State : std::uint8_t { undecided, thinking, after, answer };
  State state_;
  std::string held_;
};

/// How prompts are to be continued.
struct CompletionOptions {
  GenerateOptions generate = {};
  std::size_t choices = 1;  ///< answers to each prompt
  bool reuse_prefix = true;
  bool separates_reasoning = false;
  bool starts_in_reasoning = false;
};

/// Reads the fields that most APIs have: temperature, top_p, top_k, min_p, typical_p, penalties, seed, logit_bias,
/// stop, ignore_eos, n. `stop`: what the dialect calls the texts that end an answer. Throws ApiError.
CompletionOptions read_completion_options(const Body& body, const ServedModel& model, const GenerateOptions& defaults,
                                          const char* stop = "stop");

/// The answers to prompts while they are generated: those of the first prompt, then those of the next. Dropping it
/// cancels them.
class Completion {
 public:
  /// Submits all. Throws as Engine::submit.
  Completion(std::shared_ptr<ServedModel> model, std::vector<std::vector<TokenId>> prompts, CompletionOptions options);

  struct Event {
    std::size_t choice = 0;
    std::optional<GeneratedToken> token = {};  ///< its text is in `content` and `reasoning`
    std::string reasoning = {}, content = {};
    std::size_t prompt_cached = 0, prompt_done = 0, prompt_total = 0;
    bool is_end = false;  ///< of this choice, which may bring text that was held back
  };
  /// The next event of any choice; empty once all have ended. Throws what ended a request, ClientGone once `is_alive`
  /// says no, and ApiError 504 after `deadline`.
  std::optional<Event> next(const std::function<bool()>& is_alive, std::chrono::steady_clock::time_point deadline);

  /// Reads the events that are left. Throws as `next`.
  void finish(const std::function<bool()>& is_alive, std::chrono::steady_clock::time_point deadline);

  const ServedModel& model() const noexcept { return *model_; }
  const CompletionOptions& options() const noexcept { return options_; }
  const std::vector<std::vector<TokenId>>& prompts() const noexcept { return prompts_; }
  const std::vector<TokenId>& prompt_of(std::size_t choice) const noexcept {
    return prompts_[choice / options_.choices];
  }
  std::size_t choices() const noexcept { return choices_.size(); }
  const RequestResult& result(std::size_t choice) const noexcept { return choices_[choice].generation.result(); }
  /// "stop" or "length".
  const char* finish_reason(std::size_t choice) const noexcept;
  /// All text of a choice so far.
  const ReasoningFilter::Parts& text(std::size_t choice) const noexcept { return choices_[choice].text; }

  /// Which of the stop strings ended a choice; empty if none did.
  std::string stop_string(std::size_t choice) const;
  std::size_t reasoning_tokens(std::size_t choice) const noexcept { return choices_[choice].reasoning_tokens; }

  /// {"prompt_tokens", "completion_tokens", "total_tokens", and the details of both}, of all choices together.
  Json usage() const;
  /// Speeds of a choice, as llama-server reports them.
  Json timings(std::size_t choice) const;

 private:
  struct Choice {
    Generation generation;
    ReasoningFilter filter;
    ReasoningFilter::Parts text = {};
    std::size_t reasoning_tokens = 0;
    bool ended = false;
  };

  std::shared_ptr<ServedModel> model_;
  CompletionOptions options_;
  std::vector<std::vector<TokenId>> prompts_;
  std::vector<Choice> choices_;
  std::size_t next_ = 0;
  std::chrono::steady_clock::time_point looked_ = {};  // whether the client is still there
};

/// How far a prompt is, as llama-server reports it: first what was in the cache, then each part.
class PromptProgress {
 public:
  /// `send` is called for an event of the prompt, twice for the first one.
  void tell(const Completion::Event& event, const std::function<void(Json progress, Json timings)>& send);

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool has_begun_ = false;
};

/// Tells an answer in parts: what the model thinks, if it does, then what it says.
struct PartTeller {
  std::function<void(bool is_reasoning)> open, close;
  std::function<void(bool is_reasoning, const std::string& text)> add;
  std::function<void()> wait = [] {};  ///< the prompt is still being read
};
/// Tells the first choice while it is generated. What it says is opened and closed even if it is empty. Throws as
/// Completion::next, and what the functions throw.
void tell_parts(Completion& completion, const std::function<bool()>& is_alive,
                std::chrono::steady_clock::time_point deadline, const PartTeller& teller);

/// {"token", "logprob", "bytes", …} as OpenAI has it, with `count` alternatives.
Json log_probability(const Tokenizer& tokenizer, const GeneratedToken& token, std::size_t count);

}  // namespace imago::server
