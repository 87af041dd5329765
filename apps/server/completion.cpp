#include "completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>
#include <utility>

namespace imago::server {

namespace {

constexpr std::string_view kOpen = "<think>", kClose = "</think>";
constexpr std::size_t kMostStops = 256, kMostChoices = 128;
constexpr std::chrono::milliseconds kPatience{50};  // between two looks at whether the client is still there

/// How many characters at the end of `text` may be the beginning of `tag`.
std::size_t partial_tag(std::string_view text, std::string_view tag) {
  for (std::size_t length = std::min(text.size(), tag.size() - 1); length > 0; --length) {
    if (text.ends_with(tag.substr(0, length))) return length;
  }
  return 0;
}

std::string_view without_leading_newlines(std::string_view text) {
  const std::size_t first = text.find_first_not_of('\n');
  return first == std::string_view::npos ? std::string_view() : text.substr(first);
}

float read_bias(const Body& value) {
  if (value.is_boolean() && !value.get<bool>()) return -std::numeric_limits<float>::infinity();
  if (!value.is_number()) bad_field("logit_bias", "must have numbers, or false for tokens that are forbidden");
  return static_cast<float>(value.get<double>());
}

/// {"15043": -100} as OpenAI has it, or [[15043, -100], ["Hello", false]] as llama-server; a text means its tokens.
std::vector<std::pair<TokenId, float>> read_biases(const Body& body, const ServedModel& model) {
  const Body* const given = find(body, "logit_bias");
  std::vector<std::pair<TokenId, float>> biases;
  if (given == nullptr) return biases;
  const auto most = static_cast<std::int64_t>(model.model().vocabulary()) - 1;
  const auto add_text = [&](const std::string& text, float bias) {
    for (const TokenId id : model.tokenizer().encode(text)) biases.emplace_back(id, bias);
  };
  if (given->is_object()) {
    for (const auto& [key, value] : given->items()) {
      std::int64_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      const float bias = read_bias(value);
      if (error != std::errc() || end != key.data() + key.size()) {
        add_text(key, bias);
      } else if (id >= 0 && id <= most) {
        biases.emplace_back(static_cast<TokenId>(id), bias);
      } else {
        bad_field("logit_bias", fmt::format("has the key '{}'; token ids are 0 to {}", key, most));
      }
    }
    return biases;
  }
  if (!given->is_array()) bad_field("logit_bias", "must be an object or an array of pairs");
  for (const Body& pair : *given) {
    if (!pair.is_array() || pair.size() != 2) bad_field("logit_bias", "must have pairs of a token and a number");
    const float bias = read_bias(pair[1]);
    if (pair[0].is_string()) {
      add_text(pair[0].get<std::string>(), bias);
    } else {
      biases.emplace_back(static_cast<TokenId>(as_integer(pair[0], "logit_bias", 0, most)), bias);
    }
  }
  return biases;
}

}  // namespace

// ---- reasoning

ReasoningFilter::Parts ReasoningFilter::push(std::string_view text) {
  Parts parts;
  held_ += text;
  if (state_ == State::undecided) {
    const std::string_view seen = without_leading_newlines(held_);
    if (seen.starts_with(kOpen)) {
      state_ = State::thinking;
      held_ = seen.substr(kOpen.size());
    } else if (!kOpen.starts_with(seen)) {
      state_ = State::answer;
    }
  }
  if (state_ == State::thinking) {
    const std::size_t close = held_.find(kClose);
    const std::size_t end = close != std::string::npos ? close : held_.size() - partial_tag(held_, kClose);
    parts.reasoning = held_.substr(0, end);
    held_.erase(0, close != std::string::npos ? close + kClose.size() : end);
    if (close != std::string::npos) state_ = State::after;
  }
  if (state_ == State::after) {
    held_ = without_leading_newlines(held_);
    if (!held_.empty()) state_ = State::answer;
  }
  if (state_ == State::answer) parts.content = std::exchange(held_, {});
  return parts;
}

ReasoningFilter::Parts ReasoningFilter::finish() {
  Parts parts;
  (state_ == State::thinking ? parts.reasoning : parts.content) = std::exchange(held_, {});
  return parts;
}

// ---- what is asked for

CompletionOptions read_completion_options(const Body& body, const ServedModel& model, const GenerateOptions& defaults,
                                          const char* stop) {
  CompletionOptions options{.generate = defaults};
  SamplerOptions& sampler = options.generate.sampler;
  const auto number = [&](const char* name, float& target, double least, double most) {
    target = static_cast<float>(read_number(body, name, static_cast<double>(target), least, most));
  };
  number("temperature", sampler.temperature, 0, 1000);
  number("top_p", sampler.top_p, 0, 1);
  number("min_p", sampler.min_p, 0, 1);
  number("typical_p", sampler.typical_p, 0, 1);
  number("repeat_penalty", sampler.repeat_penalty, 1e-3, 1000);
  number("presence_penalty", sampler.presence_penalty, -100, 100);
  number("frequency_penalty", sampler.frequency_penalty, -100, 100);
  constexpr std::int64_t kMostInt = std::numeric_limits<int>::max();
  // llama-server's "all" is any number up to 0.
  sampler.top_k =
      static_cast<int>(std::max<std::int64_t>(0, read_integer(body, "top_k", sampler.top_k, -kMostInt, kMostInt)));
  sampler.penalty_tokens = static_cast<int>(read_integer(body, "repeat_last_n", sampler.penalty_tokens, -1, kMostInt));
  sampler.bias = read_biases(body, model);
  constexpr std::int64_t kDefault = -1;
  const std::int64_t seed = read_integer(body, "seed", kDefault, std::numeric_limits<std::int64_t>::min(),
                                         std::numeric_limits<std::int64_t>::max());
  if (seed == 0) {
    sampler.seed = std::uint64_t{1} << 63;  // the sampler's 0 means the clock
  } else if (seed != kDefault) {
    sampler.seed = static_cast<std::uint64_t>(seed);
  }
  const std::vector<std::string> stops = read_strings(body, stop);
  options.generate.stop.insert(options.generate.stop.end(), stops.begin(), stops.end());
  if (options.generate.stop.size() > kMostStops) bad_field(stop, fmt::format("has more than {} texts", kMostStops));
  if (std::ranges::any_of(options.generate.stop, [](const std::string& text) { return text.empty(); })) {
    bad_field(stop, "has an empty text");
  }
  options.generate.ignore_end = read_bool(body, "ignore_eos", defaults.ignore_end);
  options.choices = static_cast<std::size_t>(read_integer(body, "n", 1, 1, kMostChoices));
  options.reuse_prefix = read_bool(body, "cache_prompt", true);
  return options;
}

// ---- answers

Completion::Completion(std::shared_ptr<ServedModel> model, std::vector<std::vector<TokenId>> prompts,
                       CompletionOptions options)
    : model_(std::move(model)), options_(std::move(options)), prompts_(std::move(prompts)) {
  for (const std::vector<TokenId>& prompt : prompts_) {
    for (std::size_t i = 0; i < options_.choices; ++i) {
      Request request{.prompt = prompt, .generate = options_.generate, .reuse_prefix = options_.reuse_prefix};
      if (request.generate.sampler.seed != 0) request.generate.sampler.seed += i;
      choices_.push_back({model_->engine().submit(std::move(request)),
                          ReasoningFilter(options_.separates_reasoning, options_.starts_in_reasoning)});
    }
  }
}

std::optional<Completion::Event> Completion::next(const std::function<bool()>& is_alive,
                                                  std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    const auto open = std::ranges::count_if(choices_, [](const Choice& choice) { return !choice.ended; });
    if (open == 0) return std::nullopt;
    const auto now = std::chrono::steady_clock::now();
    if (now - looked_ > kPatience) {
      looked_ = now;
      if (!is_alive()) throw ClientGone();
      if (now > deadline) throw ApiError(504, "timeout_error", "the answer took longer than the server allows");
    }
    // Choices run side by side, so each is asked in turn: when one has nothing yet, the others hardly have more.
    while (choices_[next_].ended) next_ = (next_ + 1) % choices_.size();
    Choice& choice = choices_[next_];
    Event event{.choice = next_};
    next_ = (next_ + 1) % choices_.size();
    const auto [told, more] =
        choice.generation.next_within(std::chrono::duration<double>(kPatience).count() / static_cast<double>(open));
    ReasoningFilter::Parts parts;
    if (told) {
      event.prompt_cached = told->prompt_cached;
      event.prompt_done = told->prompt_done;
      event.prompt_total = told->prompt_total;
      if (told->token) parts = choice.filter.push(told->token->text);
      if (!parts.reasoning.empty()) ++choice.reasoning_tokens;
      event.token = told->token;
    } else if (!more) {
      parts = choice.filter.finish();
      event.is_end = choice.ended = true;
    } else {
      continue;
    }
    choice.text.reasoning += parts.reasoning;
    choice.text.content += parts.content;
    event.reasoning = std::move(parts.reasoning);
    event.content = std::move(parts.content);
    return event;
  }
}

void Completion::finish(const std::function<bool()>& is_alive, std::chrono::steady_clock::time_point deadline) {
  while (next(is_alive, deadline)) {
  }
}

std::string Completion::stop_string(std::size_t choice) const {
  const RequestResult& whole = result(choice);
  if (whole.end != EndReason::stop_string) return {};
  Utf8Stream characters;
  std::string text;
  for (const TokenId id : whole.ids) text += characters.push(model_->tokenizer().piece(id));
  text += characters.finish();
  const auto first =
      std::ranges::min_element(options_.generate.stop, {}, [&](const std::string& stop) { return text.find(stop); });
  return *first;
}

const char* Completion::finish_reason(std::size_t choice) const noexcept {
  switch (result(choice).end) {
    case EndReason::max_tokens:
    case EndReason::context_full: return "length";
    case EndReason::end_token:
    case EndReason::stop_string:
    case EndReason::cancelled: break;
  }
  return "stop";
}

Json Completion::usage() const {
  std::size_t prompt = 0, cached = 0, generated = 0, reasoning = 0;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    generated += result(i).ids.size();
    reasoning += reasoning_tokens(i);
    if (i % options_.choices != 0) continue;
    prompt += prompt_of(i).size();
    cached += result(i).cached_tokens;
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", generated},
          {"total_tokens", prompt + generated},
          {"prompt_tokens_details", {{"cached_tokens", cached}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning}}}};
}

namespace {

Json speeds(std::size_t cached, std::size_t prompt, double prompt_seconds, std::size_t predicted,
            double predicted_seconds) {
  // The first token comes with the prompt.
  const std::size_t steps = predicted == 0 ? 0 : predicted - 1;
  const auto speed = [](std::size_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  const auto each = [](std::size_t tokens, double seconds) {
    return tokens > 0 ? 1e3 * seconds / static_cast<double>(tokens) : 0.0;
  };
  return {{"cache_n", cached},
          {"prompt_n", prompt},
          {"prompt_ms", 1e3 * prompt_seconds},
          {"prompt_per_token_ms", each(prompt, prompt_seconds)},
          {"prompt_per_second", speed(prompt, prompt_seconds)},
          {"predicted_n", predicted},
          {"predicted_ms", 1e3 * predicted_seconds},
          {"predicted_per_token_ms", each(steps, predicted_seconds)},
          {"predicted_per_second", speed(steps, predicted_seconds)}};
}

}  // namespace

Json Completion::timings(std::size_t choice) const {
  const RequestResult& whole = result(choice);
  return speeds(whole.cached_tokens, whole.prompt_tokens, whole.prompt_seconds, whole.ids.size(),
                whole.generate_seconds);
}

void PromptProgress::tell(const Completion::Event& event,
                          const std::function<void(Json progress, Json timings)>& send) {
  const auto report = [&](std::size_t done, double seconds) {
    send({{"total", event.prompt_total},
          {"cache", event.prompt_cached},
          {"processed", done},
          {"time_ms", 1e3 * seconds}},
         speeds(event.prompt_cached, done - event.prompt_cached, seconds, 0, 0));
  };
  if (!std::exchange(has_begun_, true)) report(event.prompt_cached, 0);
  if (event.prompt_done == event.prompt_cached) return;
  report(event.prompt_done, std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
}

void tell_parts(Completion& completion, const std::function<bool()>& is_alive,
                std::chrono::steady_clock::time_point deadline, const PartTeller& teller) {
  std::optional<bool> open;
  const auto turn_to = [&](bool is_reasoning) {
    if (open == is_reasoning) return;
    if (open) teller.close(*open);
    teller.open(is_reasoning);
    open = is_reasoning;
  };
  const auto add = [&](bool is_reasoning, const std::string& text) {
    if (text.empty()) return;
    turn_to(is_reasoning);
    teller.add(is_reasoning, text);
  };
  while (const auto event = completion.next(is_alive, deadline)) {
    if (!event->token && !event->is_end) teller.wait();
    add(true, event->reasoning);
    add(false, event->content);
  }
  turn_to(false);
  teller.close(false);
}

Json log_probability(const Tokenizer& tokenizer, const GeneratedToken& token, std::size_t count) {
  const auto describe = [&](const TokenProbability& one) -> Json {
    const std::string piece = tokenizer.piece(one.id, true);
    Json bytes = Json::array();
    for (const char byte : piece) bytes.push_back(static_cast<unsigned char>(byte));
    // JSON has no infinity.
    const float logprob = std::max(one.log_probability, std::numeric_limits<float>::lowest());
    return {{"id", one.id}, {"token", piece}, {"bytes", bytes}, {"logprob", logprob}};
  };
  Json entry;
  for (const TokenProbability& one : token.top) {
    if (one.id == token.id) entry = describe(one);
  }
  entry["top_logprobs"] = Json::array();
  for (std::size_t i = 0; i < std::min(count, token.top.size()); ++i) {
    entry["top_logprobs"].push_back(describe(token.top[i]));
  }
  return entry;
}

}  // namespace imago::server
