// Anthropic's endpoints.

#include <fmt/format.h>

#include <string>
#include <utility>

#include "endpoints.h"
#include "prompt.h"

namespace imago::server {

namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;

/// Whether thoughts are wanted; templates of models that can think look at it.
void read_thinking(const Body& body, Conversation& conversation) {
  const Body* const thinking = find(body, "thinking");
  if (thinking == nullptr) return;
  if (!thinking->is_object()) bad_field("thinking", "must be an object");
  const std::string type = read_string(*thinking, "type");
  if (type != "enabled" && type != "adaptive" && type != "disabled") {
    bad_field("thinking.type", fmt::format("is '{}'; it can be enabled, adaptive or disabled", type));
  }
  read_integer(*thinking, "budget_tokens", 0, 0, kMostTokens);
  conversation.variables.emplace_back("enable_thinking", type == "disabled" ? "false" : "true");
}

Conversation read_messages_request(const Body& body) {
  refuse_unsupported(body);
  for (const char* const name : {"mcp_servers", "container"}) {
    if (is_given(body, name)) unsupported_field(name, "is not supported by this server");
  }
  Conversation conversation;
  if (const Body* const system = find(body, "system")) {
    conversation.messages.push_back({"system", read_content(*system, "system")});
  }
  const Body* const given = find(body, "messages");
  if (given == nullptr) bad_field("messages", "is missing");
  for (ChatMessage& message : read_messages(*given, "messages")) {
    // Many templates want turns to alternate, which this API does not ask for.
    if (!conversation.messages.empty() && conversation.messages.back().role == message.role) {
      conversation.messages.back().content += "\n\n" + message.content;
    } else {
      conversation.messages.push_back(std::move(message));
    }
  }
  conversation.continues_last = conversation.messages.back().role == "assistant";
  read_thinking(body, conversation);
  read_template_variables(body, conversation);
  return conversation;
}

const char* stop_reason(const Completion& completion) {
  switch (completion.result(0).end) {
    case EndReason::max_tokens:
    case EndReason::context_full: return "max_tokens";
    case EndReason::stop_string: return "stop_sequence";
    case EndReason::end_token:
    case EndReason::cancelled: break;
  }
  return "end_turn";
}

Json stop_sequence(const Completion& completion) {
  const std::string text = completion.stop_string(0);
  return text.empty() ? Json() : Json(text);
}

/// Tokens from the cache are not among the input tokens here.
Json usage_of(const Completion& completion) {
  const std::size_t cached = completion.result(0).cached_tokens;
  return {{"input_tokens", completion.prompt_of(0).size() - cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", cached},
          {"output_tokens", completion.result(0).ids.size()}};
}

Json text_block(const std::string& text) { return {{"type", "text"}, {"text", text}}; }
/// Signatures tell Anthropic's servers that thoughts are theirs; here nobody checks them.
Json thinking_block(const std::string& text) { return {{"type", "thinking"}, {"thinking", text}, {"signature", ""}}; }

Json message_of(const std::string& id, const Completion& completion) {
  return {{"id", id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", completion.model().name()},
          {"content", Json::array()},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr},
          {"usage", usage_of(completion)}};
}

void stream_message(Completion& completion, const std::string& id, const std::function<bool()>& is_alive,
                    std::chrono::steady_clock::time_point deadline, const SendEvent& send) {
  const auto tell = [&](const char* type, Json fields) {
    Json event = {{"type", type}};
    event.update(fields);
    send(event, type);
  };
  tell("message_start", {{"message", message_of(id, completion)}});
  tell("ping", Json::object());
  int index = 0;
  tell_parts(completion, is_alive, deadline,
             {.open =
                  [&](bool is_reasoning) {
                    tell("content_block_start",
                         {{"index", index}, {"content_block", is_reasoning ? thinking_block("") : text_block("")}});
                  },
              .close =
                  [&](bool) {
                    tell("content_block_stop", {{"index", index++}});
                  },
              .add =
                  [&](bool is_reasoning, const std::string& text) {
                    Json delta = is_reasoning ? Json{{"type", "thinking_delta"}, {"thinking", text}}
                                              : Json{{"type", "text_delta"}, {"text", text}};
                    tell("content_block_delta", {{"index", index}, {"delta", std::move(delta)}});
                  },
              .wait = [&] { tell("ping", Json::object()); }});
  tell("message_delta",
       {{"delta", {{"stop_reason", stop_reason(completion)}, {"stop_sequence", stop_sequence(completion)}}},
        {"usage", usage_of(completion)}});
  tell("message_stop", Json::object());
}

}  // namespace

HttpReply messages(Call& call) {
  const Body& body = call.body;
  const Conversation conversation = read_messages_request(body);
  const bool stream = read_bool(body, "stream", false);
  if (find(body, "max_tokens") == nullptr) bad_field("max_tokens", "is missing");
  const std::int64_t most = read_integer(body, "max_tokens", 0, 1, kMostTokens);
  const auto model = model_of(call);
  CompletionOptions options = read_completion_options(body, *model, call.service.options().defaults, "stop_sequences");
  options.generate.max_tokens = static_cast<std::size_t>(most);
  options.choices = 1;
  const auto completion = converse(model, render(*model, conversation), std::move(options), true);
  const std::string id = random_id("msg_");
  if (stream) {
    return stream_reply(StreamFormat::events, Dialect::anthropic,
                        [=, is_alive = call.is_alive, deadline = call.deadline](const SendEvent& send) {
                          stream_message(*completion, id, is_alive, deadline, send);
                        });
  }
  completion->finish(call.is_alive, call.deadline);
  Json message = message_of(id, *completion);
  const ReasoningFilter::Parts& text = completion->text(0);
  if (!text.reasoning.empty()) message["content"].push_back(thinking_block(text.reasoning));
  message["content"].push_back(text_block(text.content));
  message["stop_reason"] = stop_reason(*completion);
  message["stop_sequence"] = stop_sequence(*completion);
  return json_reply(message);
}

HttpReply count_message_tokens(Call& call) {
  const Conversation conversation = read_messages_request(call.body);
  const auto model = model_of(call);
  return json_reply({{"input_tokens", encode_prompt(model->tokenizer(), render(*model, conversation)).size()}});
}

}  // namespace imago::server
