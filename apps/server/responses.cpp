// OpenAI's Responses: an answer as a list of items, and as events that say of which item they tell.

#include <fmt/format.h>

#include <string>
#include <utility>

#include "endpoints.h"
#include "prompt.h"

namespace imago::server {

namespace {

/// What asks for answers that were kept, or for what runs on OpenAI's side.
void refuse_unsupported_response(const Body& body) {
  refuse_unsupported(body);
  for (const char* const name : {"previous_response_id", "conversation", "prompt", "context_management"}) {
    if (is_given(body, name)) unsupported_field(name, "is not supported: this server keeps no answers");
  }
  if (read_bool(body, "background", false)) unsupported_field("background", "is not supported by this server");
  const Body* const text = find(body, "text");
  if (text == nullptr) return;
  if (!text->is_object()) bad_field("text", "must be an object");
  const Body* const format = find(*text, "format");
  if (format == nullptr) return;
  if (!format->is_object()) bad_field("text.format", "must be an object");
  const std::string type = read_string(*format, "type", "text");
  if (type != "text") unsupported_field("text.format", fmt::format("'{}' is not supported by this server", type));
}

Conversation read_input(const Body& body) {
  Conversation conversation;
  if (find(body, "instructions") != nullptr) {
    conversation.messages.push_back({"system", read_string(body, "instructions")});
  }
  const Body* const input = find(body, "input");
  if (input == nullptr) bad_field("input", "is missing");
  if (input->is_string()) {
    conversation.messages.push_back({"user", input->get<std::string>()});
  } else {
    for (ChatMessage& message : read_messages(*input, "input")) conversation.messages.push_back(std::move(message));
  }
  if (const Body* const reasoning = find(body, "reasoning")) {
    if (!reasoning->is_object()) bad_field("reasoning", "must be an object");
    read_effort(*reasoning, "effort", conversation);
  }
  read_template_variables(body, conversation);
  return conversation;
}

/// The parts of a response that are known before its text.
struct Envelope {
  std::string id = random_id("resp_"), message_id = random_id("msg_"), reasoning_id = random_id("rs_");
  std::int64_t created = unix_time();
  Json request;  ///< what it repeats of the request

  Json with(const char* status, Json output) const {
    Json response = {{"id", id},
                     {"object", "response"},
                     {"created_at", created},
                     {"status", status},
                     {"background", false},
                     {"error", nullptr},
                     {"incomplete_details", nullptr},
                     {"output", std::move(output)},
                     {"parallel_tool_calls", true},
                     {"previous_response_id", nullptr},
                     {"store", false},
                     {"text", {{"format", {{"type", "text"}}}}},
                     {"tool_choice", "auto"},
                     {"tools", Json::array()},
                     {"truncation", "disabled"},
                     {"usage", nullptr}};
    response.update(request);
    return response;
  }

  Json item(bool is_reasoning, const char* status, Json content) const {
    if (is_reasoning) {
      return {{"id", reasoning_id},
              {"type", "reasoning"},
              {"status", status},
              {"summary", Json::array()},
              {"content", std::move(content)}};
    }
    return {{"id", message_id},
            {"type", "message"},
            {"status", status},
            {"role", "assistant"},
            {"content", std::move(content)}};
  }
};

Json part(bool is_reasoning, const std::string& text) {
  if (is_reasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
}

bool is_cut(const Completion& completion) { return completion.finish_reason(0) == std::string_view("length"); }

/// The whole, once it has ended.
Json response_of(const Envelope& envelope, const Completion& completion) {
  const bool cut = is_cut(completion);
  const ReasoningFilter::Parts& text = completion.text(0);
  Json output = Json::array();
  if (!text.reasoning.empty()) {
    output.push_back(envelope.item(true, "completed", Json::array({part(true, text.reasoning)})));
  }
  output.push_back(envelope.item(false, cut ? "incomplete" : "completed", Json::array({part(false, text.content)})));
  Json response = envelope.with(cut ? "incomplete" : "completed", std::move(output));
  if (cut) response["incomplete_details"] = {{"reason", "max_output_tokens"}};
  const std::size_t prompt = completion.prompt_of(0).size(), generated = completion.result(0).ids.size();
  response["usage"] = {{"input_tokens", prompt},
                       {"input_tokens_details", {{"cached_tokens", completion.result(0).cached_tokens}}},
                       {"output_tokens", generated},
                       {"output_tokens_details", {{"reasoning_tokens", completion.reasoning_tokens(0)}}},
                       {"total_tokens", prompt + generated}};
  return response;
}

void stream_response(Completion& completion, const Envelope& envelope, const std::function<bool()>& is_alive,
                     std::chrono::steady_clock::time_point deadline, const SendEvent& send) {
  int sequence = 0, output_index = 0;
  const auto tell = [&](const std::string& type, Json fields) {
    Json event = {{"type", type}, {"sequence_number", sequence++}};
    event.update(fields);
    send(event, type);
  };
  const auto item_id = [&](bool is_reasoning) { return is_reasoning ? envelope.reasoning_id : envelope.message_id; };
  /// Sends an event about one part of an item.
  const auto tell_part = [&](const std::string& type, bool is_reasoning, Json fields) {
    Json event = {{"item_id", item_id(is_reasoning)}, {"output_index", output_index}, {"content_index", 0}};
    event.update(fields);
    tell(type, std::move(event));
  };
  const auto text_type = [](bool is_reasoning) -> std::string {
    return is_reasoning ? "response.reasoning_text" : "response.output_text";
  };
  tell("response.created", {{"response", envelope.with("in_progress", Json::array())}});
  tell("response.in_progress", {{"response", envelope.with("in_progress", Json::array())}});
  tell_parts(completion, is_alive, deadline,
             {.open =
                  [&](bool is_reasoning) {
                    tell("response.output_item.added",
                         {{"output_index", output_index},
                          {"item", envelope.item(is_reasoning, "in_progress", Json::array())}});
                    tell_part("response.content_part.added", is_reasoning, {{"part", part(is_reasoning, "")}});
                  },
              .close =
                  [&](bool is_reasoning) {
                    const ReasoningFilter::Parts& whole = completion.text(0);
                    const std::string& text = is_reasoning ? whole.reasoning : whole.content;
                    Json done = {{"text", text}};
                    if (!is_reasoning) done["logprobs"] = Json::array();
                    tell_part(text_type(is_reasoning) + ".done", is_reasoning, std::move(done));
                    tell_part("response.content_part.done", is_reasoning, {{"part", part(is_reasoning, text)}});
                    const char* const status = !is_reasoning && is_cut(completion) ? "incomplete" : "completed";
                    tell("response.output_item.done",
                         {{"output_index", output_index},
                          {"item", envelope.item(is_reasoning, status, Json::array({part(is_reasoning, text)}))}});
                    ++output_index;
                  },
              .add =
                  [&](bool is_reasoning, const std::string& text) {
                    Json delta = {{"delta", text}};
                    if (!is_reasoning) delta["logprobs"] = Json::array();
                    tell_part(text_type(is_reasoning) + ".delta", is_reasoning, std::move(delta));
                  }});
  tell(is_cut(completion) ? "response.incomplete" : "response.completed",
       {{"response", response_of(envelope, completion)}});
}

}  // namespace

HttpReply responses(Call& call) {
  const Body& body = call.body;
  refuse_unsupported_response(body);
  const Conversation conversation = read_input(body);
  const bool stream = read_bool(body, "stream", false);
  const std::int64_t logprobs = read_integer(body, "top_logprobs", 0, 0, 20);
  if (logprobs > 0) unsupported_field("top_logprobs", "is not supported here; /v1/chat/completions has it");
  const auto model = model_of(call);
  CompletionOptions options = read_completion_options(body, *model, call.service.options().defaults);
  read_max_tokens(body, {"max_output_tokens"}, options.generate);
  options.choices = 1;

  Envelope envelope;
  envelope.request = {{"model", model->name()},
                      {"temperature", options.generate.sampler.temperature},
                      {"top_p", options.generate.sampler.top_p}};
  for (const char* const name : {"instructions", "max_output_tokens", "metadata", "reasoning", "user"}) {
    const Body* const given = find(body, name);
    envelope.request[name] = given == nullptr ? Json() : Json(*given);
  }
  const auto completion = converse(model, render(*model, conversation), std::move(options), true);
  if (stream) {
    return stream_reply(StreamFormat::events, Dialect::openai,
                        [=, is_alive = call.is_alive, deadline = call.deadline](const SendEvent& send) {
                          stream_response(*completion, envelope, is_alive, deadline, send);
                        });
  }
  completion->finish(call.is_alive, call.deadline);
  return json_reply(response_of(envelope, *completion));
}

}  // namespace imago::server
