#include <algorithm>
#include <limits>
#include <utility>

#include "base/atomic_file.h"
#include "base/file.h"
#include "files/json.h"
#include "files/json_text.h"
#include "files/json_writer.h"
#include "imago/engine.h"
#include "imago/error.h"

namespace imago {

namespace {

/// For models without a template.
std::string plain_format(std::span<const ChatMessage> messages) {
  std::string text;
  for (const ChatMessage& message : messages) {
    if (message.role == "system") {
      text += message.content + "\n\n";
    } else {
      text += (message.role == "user" ? "User: " : "Assistant: ") + message.content + "\n";
    }
  }
  return text + "Assistant:";
}

std::size_t system_messages(std::span<const ChatMessage> messages) {
  return !messages.empty() && messages.front().role == "system" ? 1 : 0;
}

/// Where the exchange after the one at `first` begins: the next message of the user; the end if there is none.
std::size_t next_exchange(std::span<const ChatMessage> messages, std::size_t first) {
  std::size_t next = first + 1;
  while (next < messages.size() && messages[next].role != "user") ++next;
  return next;
}

/// JSON is UTF-8, and what comes from a terminal or a tokenizer of bytes need not be.
std::string valid_utf8(std::string_view text) {
  std::string valid;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = files::utf8_length(text, at);
    valid += bytes != 0 ? text.substr(at, bytes) : std::string_view("\xef\xbf\xbd");
    at += std::max<std::size_t>(bytes, 1);
  }
  return valid;
}

}  // namespace

ChatSession::ChatSession(Engine& engine, const Options& options) : engine_(engine), options_(options) {
  const std::string& source = engine.model().require_tokenizer().chat_template();
  note_ = "the model has no chat template";
  if (!source.empty()) {
    try {
      ChatTemplate::parse(source);
      note_.clear();
    } catch (const Error& error) {
      note_ = error.what();
    }
  }
  if (!note_.empty()) {
    note_ += "; the conversation is written as 'User: …' and 'Assistant: …'";
    options_.generate.stop.insert(options_.generate.stop.end(), {"\nUser:", "\nAssistant:"});
  }
  set_system(options_.system);
}

std::vector<TokenId> ChatSession::encode(std::span<const ChatMessage> messages, std::size_t first) const {
  std::vector<ChatMessage> kept(messages.begin(),
                                messages.begin() + static_cast<std::ptrdiff_t>(system_messages(messages)));
  kept.insert(kept.end(), messages.begin() + static_cast<std::ptrdiff_t>(first), messages.end());
  const Tokenizer& tokenizer = engine_.model().require_tokenizer();
  return note_.empty() ? encode_messages(tokenizer, kept) : encode_prompt(tokenizer, plain_format(kept));
}

std::vector<TokenId> ChatSession::prompt(std::span<const ChatMessage> messages) {
  const std::size_t context = engine_.context(), last = messages.size() - 1;
  const std::size_t answer = std::min(options_.generate.max_tokens, context / 4);
  std::size_t first = std::clamp(first_, system_messages(messages), last);
  std::vector<TokenId> ids = encode(messages, first);
  // What goes is half of the context at a time: what stays is then computed anew once, and goes on for long.
  if (ids.size() + answer > context) {
    for (std::size_t next = next_exchange(messages, first); ids.size() > context / 2 && next <= last;
         next = next_exchange(messages, first)) {
      first = next;
      ids = encode(messages, first);
    }
  }
  if (ids.empty()) throw UsageError("the conversation has no tokens");
  if (ids.size() >= context) throw ContextError(ids.size(), context);
  first_ = first;
  return ids;
}

bool ChatSession::answer(std::vector<ChatMessage> messages, const std::function<bool(const EngineEvent&)>& on_event) {
  Request request{.prompt = prompt(messages), .generate = options_.generate};
  if (request.generate.sampler.seed != 0) request.generate.sampler.seed += answers_;  // repeatable, but never the same
  ++answers_;
  last_ = engine_.submit(std::move(request)).finish(on_event);
  if (last_.prompt_tokens == 0) return false;
  std::string text = last_.text;
  if (!note_.empty()) text.erase(0, text.find_first_not_of(' '));
  messages.push_back({"assistant", std::move(text)});
  messages_ = std::move(messages);
  return true;
}

bool ChatSession::say(std::string message, const std::function<bool(const EngineEvent&)>& on_event) {
  std::vector<ChatMessage> messages = messages_;
  messages.push_back({"user", std::move(message)});
  return answer(std::move(messages), on_event);
}

bool ChatSession::again(const std::function<bool(const EngineEvent&)>& on_event) {
  if (messages_.empty() || messages_.back().role != "assistant") throw UsageError("there is no answer yet");
  std::vector<ChatMessage> messages = messages_;
  messages.pop_back();
  return answer(std::move(messages), on_event);
}

void ChatSession::set_system(std::string text) {
  messages_.erase(messages_.begin(), messages_.begin() + static_cast<std::ptrdiff_t>(system_messages(messages_)));
  if (!text.empty()) messages_.insert(messages_.begin(), {"system", std::move(text)});
  first_ = 0;
}

void ChatSession::clear() {
  messages_.resize(system_messages(messages_));
  first_ = 0;
}

void ChatSession::save(const std::string& path) const {
  AtomicFile file(path);
  files::FileSink sink(file);
  files::JsonWriter writer(sink, files::JsonStyle::indented);
  writer.begin_object();
  writer.key("messages");
  writer.begin_array();
  for (const ChatMessage& message : messages_) {
    writer.begin_object();
    writer.member("role", std::string_view(message.role));
    writer.member("content", std::string_view(valid_utf8(message.content)));
    writer.end_object();
  }
  writer.end_array();
  writer.end_object();
  sink.write("\n");
  file.commit();
}

void ChatSession::load(const std::string& path) {
  const MappedFile file = MappedFile::open(path, Reading::eager);
  const files::JsonDocument document = files::JsonDocument::parse(file.text(), path);
  std::vector<ChatMessage> messages;
  const files::JsonValue list = document.root().require("messages", "a saved conversation");
  for (const files::JsonMember& message : list.elements("'messages'")) {
    const auto text = [&](std::string_view key) { return message.value.require(key, "a message").string(key); };
    messages.push_back({text("role"), text("content")});
  }
  messages_ = std::move(messages);
  first_ = 0;
}

}  // namespace imago
