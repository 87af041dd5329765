#include "prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "imago/engine.h"
#include "imago/error.h"

namespace imago::server {

namespace {

constexpr std::size_t kMostMessages = 100'000, kMostPrompts = 2048;

std::string read_role(const Body& message, const std::string& name) {
  std::string role = read_string(message, "role");
  if (role == "developer") return "system";
  constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};
  if (std::ranges::find(kRoles, role) == kRoles.end()) {
    bad_field(name + ".role", fmt::format("is '{}'; it can be system, developer, user, assistant or tool", role));
  }
  return role;
}

}  // namespace

std::string read_content(const Body& content, const std::string& name) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) bad_field(name, "must be a string or an array of parts");
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const Body& part = content[i];
    const std::string part_name = fmt::format("{}[{}]", name, i);
    if (!part.is_object()) bad_field(part_name, "must be an object");
    const std::string type = read_string(part, "type");
    if (type == "thinking" || type == "redacted_thinking") continue;
    if (type != "text" && type != "input_text" && type != "output_text") {
      unsupported_field(part_name + ".type", fmt::format("is '{}'; this server reads text only", type));
    }
    if (find(part, "text") == nullptr) bad_field(part_name + ".text", "is missing");
    if (!text.empty()) text += "\n\n";
    text += read_string(part, "text");
  }
  return text;
}

std::vector<ChatMessage> read_messages(const Body& messages, const std::string& name) {
  if (!messages.is_array()) bad_field(name, "must be an array");
  if (messages.size() > kMostMessages) bad_field(name, fmt::format("has more than {} messages", kMostMessages));
  std::vector<ChatMessage> read;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Body& message = messages[i];
    const std::string one = fmt::format("{}[{}]", name, i);
    if (!message.is_object()) bad_field(one, "must be an object");
    const std::string type = read_string(message, "type", "message");
    if (type == "reasoning") continue;
    if (type != "message")
      unsupported_field(one + ".type", fmt::format("is '{}'; this server reads messages only", type));
    for (const char* const field : {"tool_calls", "function_call", "images"}) {
      if (is_given(message, field))
        unsupported_field(fmt::format("{}.{}", one, field), "is not supported by this server");
    }
    const Body* const content = find(message, "content");
    if (content == nullptr) bad_field(one + ".content", "is missing");
    read.push_back({read_role(message, one), read_content(*content, one + ".content")});
  }
  if (read.empty()) bad_field(name, "is empty");
  return read;
}

void read_template_variables(const Body& body, Conversation& conversation) {
  const Body* const variables = find(body, "chat_template_kwargs");
  if (variables == nullptr) return;
  if (!variables->is_object()) bad_field("chat_template_kwargs", "must be an object");
  for (const auto& [name, value] : variables->items()) conversation.variables.emplace_back(name, value.dump());
}

void read_effort(const Body& body, std::string_view name, Conversation& conversation) {
  const std::string effort = read_string(body, name);
  if (effort.empty()) return;
  conversation.variables.emplace_back("reasoning_effort", dump(effort));
  conversation.variables.emplace_back("enable_thinking", effort == "none" ? "false" : "true");
}

Conversation read_conversation(const Body& body) {
  const Body* const messages = find(body, "messages");
  if (messages == nullptr) bad_field("messages", "is missing");
  Conversation conversation{.messages = read_messages(*messages, "messages")};
  const auto is_answer = [](const ChatMessage& message) { return message.role == "assistant"; };
  const bool ends_with_answer = is_answer(conversation.messages.back());
  const bool begins_answer = read_bool(body, "add_generation_prompt", false);
  conversation.continues_last = read_bool(body, "continue_final_message", ends_with_answer && !begins_answer);
  if (conversation.continues_last && begins_answer) {
    bad_field("continue_final_message", "contradicts 'add_generation_prompt'");
  }
  if (conversation.continues_last && !ends_with_answer) {
    bad_field("continue_final_message", "needs a last message of the assistant");
  }
  const std::size_t count = conversation.messages.size();
  if (ends_with_answer && count > 1 && is_answer(conversation.messages[count - 2])) {
    bad_field("messages", "ends with two messages of the assistant");
  }
  read_effort(body, "reasoning_effort", conversation);
  read_template_variables(body, conversation);
  return conversation;
}

std::string render(const ServedModel& model, const Conversation& conversation) {
  const Tokenizer& tokenizer = model.tokenizer();
  const auto spelled = [&](std::optional<TokenId> id) { return id ? tokenizer.piece(*id, true) : std::string(); };
  ChatTemplate::Variables variables{.bos_token = spelled(tokenizer.bos()),
                                    .eos_token = spelled(tokenizer.eos()),
                                    .add_generation_prompt = !conversation.continues_last,
                                    .date = {},
                                    .more = conversation.variables};
  std::string text;
  try {
    text = model.chat_template().render(conversation.messages, variables);
  } catch (const FormatError& error) {  // a bound of templates: the conversation is too long for it
    throw ApiError(400, "invalid_request_error", error.what(), "messages");
  }
  if (!conversation.continues_last) return text;
  // The template closes the last message: the prompt ends where its text does. Many templates trim it.
  const std::string& content = conversation.messages.back().content;
  const std::size_t last = content.find_last_not_of(" \t\r\n"), first = content.find_first_not_of(" \t\r\n");
  if (last == std::string::npos) bad_field("continue_final_message", "needs a last message with text");
  const std::string trimmed = content.substr(first, last + 1 - first);
  const std::size_t at = text.rfind(trimmed);
  if (at == std::string::npos) {
    bad_field("continue_final_message", "cannot be done: the chat template changes the text of the last message");
  }
  const std::string closing = content.substr(last + 1);
  const std::size_t end = at + trimmed.size();
  const bool keeps_closing = text.compare(end, closing.size(), closing) == 0;
  text.erase(end + (keeps_closing ? closing.size() : 0));
  return text;
}

std::vector<TokenId> read_ids(const Body& ids, const std::string& name, std::size_t vocabulary) {
  std::vector<TokenId> read;
  read.reserve(ids.size());
  for (const Body& id : ids) {
    read.push_back(static_cast<TokenId>(
        as_integer(id, fmt::format("{}[{}]", name, read.size()), 0, static_cast<std::int64_t>(vocabulary) - 1)));
  }
  return read;
}

namespace {

/// Text and token ids in turn; special tokens are read as such in the first text only.
std::vector<TokenId> read_mixed(const Body& parts, const std::string& name, const ServedModel& model) {
  const Tokenizer& tokenizer = model.tokenizer();
  std::vector<TokenId> ids;
  for (const Body& part : parts) {
    if (part.is_string()) {
      const std::string text = part.get<std::string>();
      const std::vector<TokenId> more = ids.empty() ? encode_prompt(tokenizer, text) : tokenizer.encode(text);
      ids.insert(ids.end(), more.begin(), more.end());
    } else {
      const std::vector<TokenId> one = read_ids(Body::array({part}), name, model.model().vocabulary());
      ids.push_back(one.front());
    }
  }
  return ids;
}

std::vector<TokenId> read_prompt(const Body& prompt, const std::string& name, const ServedModel& model, bool whole) {
  std::vector<TokenId> ids;
  const auto encode = whole ? encode_whole : encode_prompt;
  if (prompt.is_string()) {
    ids = encode(model.tokenizer(), prompt.get<std::string>());
  } else if (prompt.is_object() && find(prompt, "prompt_string") != nullptr) {
    if (find(prompt, "multimodal_data") != nullptr) unsupported_field("multimodal_data", "is not supported");
    ids = encode(model.tokenizer(), read_string(prompt, "prompt_string"));
  } else if (!prompt.is_array()) {
    bad_field(name, "must be a string or an array of token ids");
  } else if (std::ranges::all_of(prompt, [](const Body& part) { return part.is_number(); })) {
    ids = read_ids(prompt, name, model.model().vocabulary());
  } else {
    ids = read_mixed(prompt, name, model);
  }
  if (!ids.empty()) return ids;
  const Tokenizer* const tokenizer = model.model().tokenizer();
  const std::optional<TokenId> start = tokenizer == nullptr ? std::nullopt
                                       : tokenizer->bos()   ? tokenizer->bos()
                                                            : tokenizer->eos();
  if (!start) bad_field(name, "has no tokens");
  return {*start};
}

}  // namespace

std::vector<std::vector<TokenId>> read_prompts(const Body& prompt, const std::string& name, const ServedModel& model,
                                               bool whole) {
  const bool several = prompt.is_array() && !prompt.empty() &&
                       std::ranges::none_of(prompt, [](const Body& part) { return part.is_number(); });
  if (!several) return {read_prompt(prompt, name, model, whole)};
  if (prompt.size() > kMostPrompts) bad_field(name, fmt::format("has more than {} prompts", kMostPrompts));
  std::vector<std::vector<TokenId>> prompts;
  for (const Body& one : prompt) {
    prompts.push_back(read_prompt(one, fmt::format("{}[{}]", name, prompts.size()), model, whole));
  }
  return prompts;
}

}  // namespace imago::server
