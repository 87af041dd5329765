// Ollama's endpoints.

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <string>
#include <utility>

#include "endpoints.h"
#include "prompt.h"

namespace imago::server {

namespace {

/// The version of Ollama whose API this is: clients look at it before they ask for more.
constexpr const char* kApiVersion = "0.12.0";

using Clock = std::chrono::steady_clock;

std::int64_t nanoseconds(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// "2026-11-19T15:22:13Z"
std::string time_text(std::int64_t seconds) { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(seconds)); }

/// What a chat or a text asks for, besides its words.
struct Asked {
  Clock::time_point start = Clock::now();
  std::string model_name;  ///< as the client has it
  std::shared_ptr<ServedModel> model;
  double load_seconds = 0;
  CompletionOptions options;
  bool stream = true;
};

Asked read_asked(Call& call) {
  const Body& body = call.body;
  refuse_unsupported(body);
  for (const char* const name : {"format", "suffix", "images", "context", "template"}) {
    if (is_given(body, name)) unsupported_field(name, "is not supported by this server");
  }
  if (read_bool(body, "logprobs", false)) {
    unsupported_field("logprobs", "is not supported here; /v1/chat/completions has it");
  }
  Asked asked;
  asked.stream = read_bool(body, "stream", true);
  asked.model = model_of(call);
  asked.model_name = read_string(body, "model", asked.model->name());
  asked.load_seconds = seconds_since(asked.start);
  const Body* const options = find(body, "options");
  if (options != nullptr && !options->is_object()) bad_field("options", "must be an object");
  const Body& settings = options != nullptr ? *options : Body::object();
  asked.options = read_completion_options(settings, *asked.model, call.service.options().defaults);
  asked.options.choices = 1;
  read_max_tokens(settings, {"num_predict"}, asked.options.generate);
  return asked;
}

/// "think": whether, or how much.
void read_think(const Body& body, Conversation& conversation) {
  const Body* const think = find(body, "think");
  if (think == nullptr) return;
  if (think->is_string()) return read_effort(body, "think", conversation);
  if (!think->is_boolean()) bad_field("think", "must be true, false or a text");
  conversation.variables.emplace_back("enable_thinking", think->get<bool>() ? "true" : "false");
}

/// `say` makes the member that holds a piece of the answer.
using Say = Json (*)(const ReasoningFilter::Parts& piece);

Json chat_piece(const ReasoningFilter::Parts& piece) {
  Json message = {{"role", "assistant"}, {"content", piece.content}};
  if (!piece.reasoning.empty()) message["thinking"] = piece.reasoning;
  return {{"message", std::move(message)}};
}

Json generated_piece(const ReasoningFilter::Parts& piece) {
  Json member = {{"response", piece.content}};
  if (!piece.reasoning.empty()) member["thinking"] = piece.reasoning;
  return member;
}

Json line_of(const Asked& asked, Say say, const ReasoningFilter::Parts& piece, bool done) {
  Json line = {{"model", asked.model_name}, {"created_at", time_text(unix_time())}};
  line.update(say(piece));
  line["done"] = done;
  return line;
}

Json last_line(const Asked& asked, Say say, const ReasoningFilter::Parts& piece, const Completion& completion) {
  const RequestResult& result = completion.result(0);
  Json line = line_of(asked, say, piece, true);
  line.update({{"done_reason", completion.finish_reason(0)},
               {"total_duration", nanoseconds(seconds_since(asked.start))},
               {"load_duration", nanoseconds(asked.load_seconds)},
               {"prompt_eval_count", completion.prompt_of(0).size()},
               {"prompt_eval_duration", nanoseconds(result.prompt_seconds)},
               {"eval_count", result.ids.size()},
               {"eval_duration", nanoseconds(result.generate_seconds)}});
  return line;
}

HttpReply answer(Call& call, const Asked& asked, Say say, const std::shared_ptr<Completion>& completion) {
  if (!asked.stream) {
    completion->finish(call.is_alive, call.deadline);
    return json_reply(last_line(asked, say, completion->text(0), *completion));
  }
  return stream_reply(StreamFormat::lines, Dialect::ollama,
                      [=, is_alive = call.is_alive, deadline = call.deadline](const SendEvent& send) {
                        while (const auto event = completion->next(is_alive, deadline)) {
                          if (event->content.empty() && event->reasoning.empty()) continue;
                          send(line_of(asked, say, {event->reasoning, event->content}, false), {});
                        }
                        send(last_line(asked, say, {}, *completion), {});
                      });
}

/// The reply to a request without a prompt: Ollama's clients load and unload models that way. This one is loaded.
HttpReply loaded(const Asked& asked, Say say) {
  Json line = line_of(asked, say, {}, true);
  line["done_reason"] = "load";
  if (!asked.stream) return json_reply(line);
  return stream_reply(StreamFormat::lines, Dialect::ollama, [line](const SendEvent& send) { send(line, {}); });
}

/// "7.2B"
std::string short_count(std::uint64_t count) {
  const auto number = static_cast<double>(count);
  if (number >= 1e9) return fmt::format("{:.1f}B", number / 1e9);
  if (number >= 1e6) return fmt::format("{:.1f}M", number / 1e6);
  return fmt::format("{:.0f}K", number / 1e3);
}

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char letter) { return static_cast<char>(std::toupper(letter)); });
  return text;
}

/// What is known of a model that may not be loaded.
Json details(const ServedModel* model) {
  const std::string family = model != nullptr ? std::string(model->model().architecture()) : "";
  return {{"parent_model", ""},
          {"format", "gguf"},
          {"family", family},
          {"families", family.empty() ? Json::array() : Json::array({family})},
          {"parameter_size", model != nullptr ? short_count(model->model().parameters()) : ""},
          {"quantization_level", model != nullptr ? upper(model->facts().type) : ""}};
}

Json describe(const Models::Listed& listed) {
  const std::string name = listed.name + ":latest";
  return {{"name", name},
          {"model", name},
          {"modified_at", time_text(listed.modified)},
          {"size", listed.loaded ? listed.loaded->facts().bytes : listed.file_bytes},
          {"digest", ""},
          {"details", details(listed.loaded.get())}};
}

}  // namespace

HttpReply ollama_chat(Call& call) {
  const Asked asked = read_asked(call);
  const Body* const messages = find(call.body, "messages");
  if (messages == nullptr || (messages->is_array() && messages->empty())) return loaded(asked, chat_piece);
  Conversation conversation = read_conversation(call.body);
  read_think(call.body, conversation);
  return answer(call, asked, chat_piece,
                converse(asked.model, render(*asked.model, conversation), asked.options, true));
}

HttpReply ollama_generate(Call& call) {
  const Asked asked = read_asked(call);
  const std::string prompt = read_string(call.body, "prompt");
  const bool raw = read_bool(call.body, "raw", false);
  if (prompt.empty()) return loaded(asked, generated_piece);
  if (raw) return answer(call, asked, generated_piece, converse(asked.model, prompt, asked.options, false));
  Conversation conversation;
  const std::string system = read_string(call.body, "system");
  if (!system.empty()) conversation.messages.push_back({"system", system});
  conversation.messages.push_back({"user", prompt});
  read_think(call.body, conversation);
  return answer(call, asked, generated_piece,
                converse(asked.model, render(*asked.model, conversation), asked.options, true));
}

HttpReply ollama_tags(Call& call) {
  Json models = Json::array();
  for (const Models::Listed& listed : call.service.models().list()) models.push_back(describe(listed));
  return json_reply({{"models", std::move(models)}});
}

HttpReply ollama_running(Call& call) {
  Json models = Json::array();
  for (const Models::Listed& listed : call.service.models().list()) {
    if (!listed.loaded) continue;
    Json model = describe(listed);
    model.erase("modified_at");
    model.update({{"expires_at", "9999-12-31T23:59:59Z"},  // time unloads none
                  {"size_vram", 0},
                  {"context_length", listed.loaded->engine().context()}});
    models.push_back(std::move(model));
  }
  return json_reply({{"models", std::move(models)}});
}

HttpReply ollama_show(Call& call) {
  const auto served = model_of(call);
  const LanguageModel& model = served->model();
  const std::string architecture(model.architecture());
  std::int64_t modified = 0;
  for (const Models::Listed& listed : call.service.models().list()) {
    if (listed.loaded == served) modified = listed.modified;
  }
  return json_reply({{"modelfile", ""},
                     {"parameters", ""},
                     {"template", served->template_source()},
                     {"license", ""},
                     {"details", details(served.get())},
                     {"model_info",
                      {{"general.architecture", architecture},
                       {"general.parameter_count", model.parameters()},
                       {architecture + ".context_length", served->engine().context()},
                       {architecture + ".vocab_size", model.vocabulary()}}},
                     {"capabilities", {"completion", "embedding"}},
                     {"modified_at", time_text(modified)}});
}

HttpReply ollama_version(Call& /*call*/) { return json_reply({{"version", kApiVersion}}); }

}  // namespace imago::server
