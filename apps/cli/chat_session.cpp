#include "chat_session.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "model_options.h"

namespace imago::cli {

namespace {

/// For models without a template.
std::string plain_format(const std::vector<ChatMessage>& messages) {
  std::string text;
  for (const ChatMessage& message : messages) {
    if (message.role == "system") {
      text += message.content + "\n\n";
    } else {
      text += fmt::format("{}: {}\n", message.role == "user" ? "User" : "Assistant", message.content);
    }
  }
  return text + "Assistant:";
}

}  // namespace

ChatSession::ChatSession(const LanguageModel& model, const SequenceOptions& sequence, GenerateOptions generation,
                         const std::function<void(const std::string&)>& note)
    : model_(model), generation_(std::move(generation)), sequence_(model, sequence) {
  const std::string& source = model.require_tokenizer().chat_template();
  std::string reason = "the model has no chat template";
  if (!source.empty()) {
    try {
      template_ = ChatTemplate::parse(source);
    } catch (const Error& error) {
      reason = error.what();
    }
  }
  if (template_) return;
  note(reason + "; the conversation is written as 'User: …' and 'Assistant: …'");
  generation_.stop.insert(generation_.stop.end(), {"\nUser:", "\nAssistant:"});
}

std::vector<TokenId> ChatSession::prompt(const std::vector<ChatMessage>& messages) const {
  const Tokenizer& tokenizer = model_.require_tokenizer();
  if (!template_) return encode_prompt(tokenizer, plain_format(messages));
  ChatTemplate::Variables variables;
  if (tokenizer.bos()) variables.bos_token = tokenizer.piece(*tokenizer.bos(), true);
  if (tokenizer.eos()) variables.eos_token = tokenizer.piece(*tokenizer.eos(), true);
  return encode_prompt(tokenizer, template_->render(messages, variables));
}

bool ChatSession::answer(std::vector<ChatMessage> messages,
                         const std::function<bool(const GeneratedToken&)>& on_token) {
  const std::vector<TokenId> ids = prompt(messages);
  if (ids.empty()) throw UsageError("the conversation has no tokens");
  if (ids.size() >= sequence_.capacity()) {
    throw UsageError(
        fmt::format("the conversation has {} tokens, but the context has room for {}; /clear starts over, "
                    "and -c gives more room",
                    ids.size(), sequence_.capacity()));
  }
  // Only tokens that differ from the last turn are evaluated, and at least one, for its logits.
  const std::size_t kept = std::min(common_prefix(sequence_.tokens(), ids), ids.size() - 1);
  sequence_.truncate(kept);
  GenerateOptions options = generation_;
  if (options.sampler.seed != 0) options.sampler.seed += answers_;  // different answers each time, but repeatable
  ++answers_;
  last_ = generate(sequence_, std::span(ids).subspan(kept), options, on_token);
  if (last_.prompt_tokens == 0) return false;
  std::string text = last_.text;
  if (!template_) text.erase(0, text.find_first_not_of(' '));
  messages.push_back({"assistant", std::move(text)});
  messages_ = std::move(messages);
  return true;
}

bool ChatSession::say(std::string content, const std::function<bool(const GeneratedToken&)>& on_token) {
  std::vector<ChatMessage> messages = messages_;
  messages.push_back({"user", std::move(content)});
  return answer(std::move(messages), on_token);
}

bool ChatSession::again(const std::function<bool(const GeneratedToken&)>& on_token) {
  if (messages_.empty() || messages_.back().role != "assistant") throw UsageError("there is no answer yet");
  std::vector<ChatMessage> messages = messages_;
  messages.pop_back();
  return answer(std::move(messages), on_token);
}

void ChatSession::set_system(std::string text) {
  if (!messages_.empty() && messages_.front().role == "system") messages_.erase(messages_.begin());
  if (!text.empty()) messages_.insert(messages_.begin(), {"system", std::move(text)});
}

void ChatSession::clear() {
  const bool system = !messages_.empty() && messages_.front().role == "system";
  messages_.resize(system ? 1 : 0);
}

void ChatSession::save(const std::string& path) const {
  Json list = Json::array();
  for (const ChatMessage& message : messages_) list.push_back({{"role", message.role}, {"content", message.content}});
  const Json object = {{"messages", list}};
  const std::string beside = path + ".part";  // the old file stays until the new one is complete
  std::ofstream file(beside, std::ios::binary | std::ios::trunc);
  file << object.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(beside, path, error);
  if (!file || error) {
    const std::string reason = error ? error.message() : std::generic_category().message(errno);
    std::filesystem::remove(beside, error);
    throw IoError(path, fmt::format("cannot write: {}", reason));
  }
}

void ChatSession::load(const std::string& path) {
  const nlohmann::json object = nlohmann::json::parse(read_text(path), nullptr, false);
  const auto fail = [&](std::string_view problem) { throw FormatError(path, 0, problem); };
  if (!object.is_object() || !object.contains("messages") || !object["messages"].is_array()) {
    fail("expected an object with a list of 'messages', as /save writes it");
  }
  std::vector<ChatMessage> messages;
  for (const nlohmann::json& entry : object["messages"]) {
    const auto text = [&](const char* key) {
      if (!entry.is_object() || !entry.contains(key) || !entry[key].is_string()) {
        fail(fmt::format("message {} has no text '{}'", messages.size() + 1, key));
      }
      return entry[key].get<std::string>();
    };
    messages.push_back({text("role"), text("content")});
  }
  messages_ = std::move(messages);
}

}  // namespace imago::cli
