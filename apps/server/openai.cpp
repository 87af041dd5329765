// OpenAI's endpoints.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "endpoints.h"
#include "imago/error.h"
#include "imago/system.h"
#include "prompt.h"

namespace imago::server {

namespace {

constexpr std::int64_t kMostLogprobs = 20;

std::string fingerprint() { return fmt::format("b-imago-{}", version()); }

/// What all chunks and replies of one request begin with.
struct Envelope {
  std::string id, object, model;
  std::int64_t created = unix_time();

  Json with(Json choices) const {
    return {{"id", id},
            {"object", object},
            {"created", created},
            {"model", model},
            {"system_fingerprint", fingerprint()},
            {"choices", std::move(choices)}};
  }
};

struct StreamOptions {
  bool stream = false, usage = false, progress = false, timings_per_token = false;
};

StreamOptions read_stream_options(const Body& body) {
  StreamOptions options{.stream = read_bool(body, "stream", false),
                        .progress = read_bool(body, "return_progress", false),
                        .timings_per_token = read_bool(body, "timings_per_token", false)};
  if (const Body* const given = find(body, "stream_options")) {
    if (!options.stream) bad_field("stream_options", "needs 'stream'");
    if (!given->is_object()) bad_field("stream_options", "must be an object");
    options.usage = read_bool(*given, "include_usage", false);
  }
  return options;
}

/// Sends the chunks of a stream that both kinds of completions have in common. `delta_of` makes the choice of an event.
template <class ChoiceOf>
void send_chunks(Completion& completion, const Envelope& envelope, const StreamOptions& stream,
                 const std::function<bool()>& is_alive, std::chrono::steady_clock::time_point deadline,
                 const SendEvent& send, ChoiceOf choice_of) {
  PromptProgress prompt;
  while (const auto event = completion.next(is_alive, deadline)) {
    if (!event->token && !event->is_end) {
      if (!stream.progress || event->choice != 0) continue;
      prompt.tell(*event, [&](Json progress, Json timings) {
        Json chunk = envelope.with(Json::array());
        chunk["prompt_progress"] = std::move(progress);
        if (stream.timings_per_token) chunk["timings"] = std::move(timings);
        send(chunk, {});
      });
      continue;
    }
    for (Json& choice : choice_of(*event)) {
      Json chunk = envelope.with(Json::array({std::move(choice)}));
      if (stream.timings_per_token && event->is_end) chunk["timings"] = completion.timings(event->choice);
      send(chunk, {});
    }
  }
  Json last = envelope.with(Json::array());
  last["usage"] = completion.usage();
  last["timings"] = completion.timings(0);
  if (stream.usage) send(last, {});
}

Json logprobs_of(const Completion& completion, const Completion::Event& event, std::size_t count) {
  return {{"content", Json::array({log_probability(completion.model().tokenizer(), *event.token, count)})}};
}

std::size_t read_top_logprobs(const Body& body, bool wanted) {
  if (const Body* const given = find(body, "top_logprobs"); given != nullptr && !wanted) {
    bad_field("top_logprobs", "needs 'logprobs'");
  }
  return static_cast<std::size_t>(read_integer(body, "top_logprobs", 0, 0, kMostLogprobs));
}

Json describe(const Models::Listed& listed) {
  Json meta = {{"loaded", listed.loaded != nullptr}};
  if (listed.loaded) {
    const LanguageModel& model = listed.loaded->model();
    const ModelFacts facts = listed.loaded->facts();
    meta.update({{"type", facts.type},
                 {"bytes", facts.bytes},
                 {"parameters", model.parameters()},
                 {"context", listed.loaded->engine().context()},
                 {"trained_context", model.context()},
                 {"vocabulary", model.vocabulary()},
                 {"architecture", std::string(model.architecture())},
                 {"chat", listed.loaded->template_problem().empty()}});
  } else {
    meta["bytes"] = listed.file_bytes;
  }
  return {{"id", listed.name},
          {"object", "model"},
          {"created", listed.modified},
          {"owned_by", "imago"},
          {"meta", std::move(meta)}};
}

}  // namespace

void read_max_tokens(const Body& body, std::initializer_list<std::string_view> names, GenerateOptions& options) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  for (const std::string_view name : names) {
    if (find(body, name) == nullptr) continue;
    const std::int64_t tokens = read_integer(body, name, -1, -2, kMost);
    if (tokens >= 0) options.max_tokens = static_cast<std::size_t>(tokens);
    return;
  }
}

void refuse_unsupported(const Body& body) {
  for (const char* const name : {"tools", "functions", "grammar", "json_schema", "audio", "lora"}) {
    if (is_given(body, name)) unsupported_field(name, "is not supported by this server");
  }
  if (const Body* const format = find(body, "response_format")) {
    if (!format->is_object()) bad_field("response_format", "must be an object");
    const std::string type = read_string(*format, "type", "text");
    if (type != "text" && type != "json_object" && type != "json_schema") {
      bad_field("response_format.type", fmt::format("is '{}'; it can be text, json_object or json_schema", type));
    }
    if (type != "text") unsupported_field("response_format", fmt::format("'{}' is not supported by this server", type));
  }
}

std::shared_ptr<Completion> converse(const std::shared_ptr<ServedModel>& model, const std::string& prompt,
                                     CompletionOptions options, bool separates_reasoning) {
  options.separates_reasoning = separates_reasoning;
  const std::size_t last = prompt.find_last_not_of(" \n\t");
  options.starts_in_reasoning =
      last != std::string::npos && std::string_view(prompt).substr(0, last + 1).ends_with("<think>");
  std::vector<std::vector<TokenId>> prompts = {{encode_prompt(model->tokenizer(), prompt)}};
  return std::make_shared<Completion>(model, std::move(prompts), std::move(options));
}

HttpReply list_models(Call& call) {
  Json data = Json::array();
  for (const Models::Listed& listed : call.service.models().list()) data.push_back(describe(listed));
  return json_reply({{"object", "list"}, {"data", std::move(data)}});
}

HttpReply one_model(Call& call) {
  const std::string_view name = std::string_view(call.request.path).substr(kModelPath.size());
  for (const Models::Listed& listed : call.service.models().list()) {
    if (listed.name == name) return json_reply(describe(listed));
  }
  refuse_unknown(name);
}

HttpReply chat_completions(Call& call) {
  const Body& body = call.body;
  refuse_unsupported(body);
  const StreamOptions stream = read_stream_options(body);
  const Conversation conversation = read_conversation(body);
  const bool logprobs = read_bool(body, "logprobs", false);
  const std::size_t top = read_top_logprobs(body, logprobs);
  const bool reasoning = read_string(body, "reasoning_format", "auto") != "none";
  const auto model = model_of(call);
  CompletionOptions options = read_completion_options(body, *model, call.service.options().defaults);
  read_max_tokens(body, {"max_completion_tokens", "max_tokens", "n_predict"}, options.generate);
  if (logprobs) options.generate.log_probabilities = std::max<std::size_t>(top, 1);
  const std::string prompt = render(*model, conversation);
  const auto completion = converse(model, prompt, std::move(options), reasoning);

  Envelope envelope{random_id("chatcmpl-"), stream.stream ? "chat.completion.chunk" : "chat.completion", model->name()};
  if (stream.stream) {
    return stream_reply(
        StreamFormat::events_until_done, Dialect::openai,
        [=, is_alive = call.is_alive, deadline = call.deadline](const SendEvent& send) {
          const auto chunk = [](std::size_t index, Json delta) -> Json {
            return {{"index", index}, {"delta", std::move(delta)}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
          };
          for (std::size_t i = 0; i < completion->choices(); ++i) {
            send(envelope.with(Json::array({chunk(i, {{"role", "assistant"}, {"content", nullptr}})})), {});
          }
          send_chunks(*completion, envelope, stream, is_alive, deadline, send, [&](const Completion::Event& event) {
            std::vector<Json> choices;
            if (!event.reasoning.empty()) {
              choices.push_back(chunk(event.choice, {{"reasoning_content", event.reasoning}}));
            }
            if (!event.content.empty() || (logprobs && event.token && event.reasoning.empty())) {
              choices.push_back(chunk(event.choice, {{"content", event.content}}));
            }
            if (logprobs && event.token) choices.back()["logprobs"] = logprobs_of(*completion, event, top);
            if (event.is_end) {
              choices.push_back(chunk(event.choice, Json::object()));
              choices.back()["finish_reason"] = completion->finish_reason(event.choice);
            }
            return choices;
          });
        });
  }

  std::vector<Json> logprob_lists(completion->choices(), Json::array());
  while (const auto event = completion->next(call.is_alive, call.deadline)) {
    if (!logprobs || !event->token) continue;
    logprob_lists[event->choice].push_back(log_probability(model->tokenizer(), *event->token, top));
  }
  Json choices = Json::array();
  for (std::size_t i = 0; i < completion->choices(); ++i) {
    Json message = {{"role", "assistant"}, {"content", completion->text(i).content}};
    if (!completion->text(i).reasoning.empty()) message["reasoning_content"] = completion->text(i).reasoning;
    choices.push_back({{"index", i},
                       {"message", std::move(message)},
                       {"logprobs", logprobs ? Json{{"content", std::move(logprob_lists[i])}} : Json()},
                       {"finish_reason", completion->finish_reason(i)}});
  }
  Json reply = envelope.with(std::move(choices));
  reply["usage"] = completion->usage();
  reply["timings"] = completion->timings(0);
  if (read_bool(body, "verbose", call.service.options().verbose)) reply["__verbose"] = {{"prompt", prompt}};
  return json_reply(reply);
}

HttpReply count_chat_tokens(Call& call) {
  const Conversation conversation = read_conversation(call.body);
  const auto model = model_of(call);
  const std::vector<TokenId> ids = encode_prompt(model->tokenizer(), render(*model, conversation));
  return json_reply({{"object", "response.input_tokens"}, {"input_tokens", ids.size()}});
}

HttpReply completions(Call& call) {
  const Body& body = call.body;
  refuse_unsupported(body);
  if (is_given(body, "suffix")) unsupported_field("suffix", "is not supported by this server");
  const StreamOptions stream = read_stream_options(body);
  const bool echo = read_bool(body, "echo", false);
  const Body* const prompt = find(body, "prompt");
  if (prompt == nullptr) bad_field("prompt", "is missing");
  const Body* const logprobs_given = find(body, "logprobs");
  const bool logprobs = logprobs_given != nullptr && !(logprobs_given->is_boolean() && !logprobs_given->get<bool>());
  const std::size_t top = !logprobs || logprobs_given->is_boolean()
                              ? 0
                              : static_cast<std::size_t>(as_integer(*logprobs_given, "logprobs", 0, kMostLogprobs));
  const auto model = model_of(call);
  CompletionOptions options = read_completion_options(body, *model, call.service.options().defaults);
  read_max_tokens(body, {"max_tokens", "n_predict"}, options.generate);
  if (logprobs) options.generate.log_probabilities = std::max<std::size_t>(top, 1);
  const auto completion =
      std::make_shared<Completion>(model, read_prompts(*prompt, "prompt", *model), std::move(options));
  const auto echoed = [=](std::size_t choice) {
    return echo ? model->tokenizer().decode(completion->prompt_of(choice)) : std::string();
  };

  const Envelope envelope{random_id("cmpl-"), "text_completion", model->name()};
  if (stream.stream) {
    return stream_reply(
        StreamFormat::events_until_done, Dialect::openai,
        [=, is_alive = call.is_alive, deadline = call.deadline](const SendEvent& send) {
          std::vector<bool> begun(completion->choices(), false);
          send_chunks(*completion, envelope, stream, is_alive, deadline, send, [&](const Completion::Event& event) {
            std::vector<Json> choices;
            const auto add = [&](std::string text, Json reason) {
              if (!begun[event.choice]) text.insert(0, echoed(event.choice));
              begun[event.choice] = true;
              choices.push_back({{"index", event.choice},
                                 {"text", std::move(text)},
                                 {"logprobs", logprobs && event.token ? logprobs_of(*completion, event, top) : Json()},
                                 {"finish_reason", std::move(reason)}});
            };
            if (!event.content.empty() || (logprobs && event.token)) add(event.content, nullptr);
            if (event.is_end) add("", completion->finish_reason(event.choice));
            return choices;
          });
        });
  }

  std::vector<Json> logprob_lists(completion->choices(), Json::array());
  while (const auto event = completion->next(call.is_alive, call.deadline)) {
    if (!logprobs || !event->token) continue;
    logprob_lists[event->choice].push_back(log_probability(model->tokenizer(), *event->token, top));
  }
  Json choices = Json::array();
  for (std::size_t i = 0; i < completion->choices(); ++i) {
    choices.push_back({{"index", i},
                       {"text", echoed(i) + completion->text(i).content},
                       {"logprobs", logprobs ? Json{{"content", std::move(logprob_lists[i])}} : Json()},
                       {"finish_reason", completion->finish_reason(i)}});
  }
  Json reply = envelope.with(std::move(choices));
  reply["usage"] = completion->usage();
  reply["timings"] = completion->timings(0);
  return json_reply(reply);
}

}  // namespace imago::server
