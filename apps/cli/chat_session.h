#pragma once

// A conversation: its messages, and the tokens that the model has seen of them.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "imago/lm.h"

namespace imago::cli {

class ChatSession {
 public:
  /// `model` must outlive the session. `note` receives a message if the template cannot be used.
  ChatSession(const LanguageModel& model, const SequenceOptions& sequence, GenerateOptions generation,
              const std::function<void(const std::string&)>& note);

  const std::vector<ChatMessage>& messages() const noexcept { return messages_; }
  const Sequence& sequence() const noexcept { return sequence_; }
  const GenerateResult& last() const noexcept { return last_; }

  /// Adds a message and the answer to it. If that fails (the template rejects it, the context is full) or is stopped
  /// while the message is read, the conversation is unchanged; the latter returns false. Throws UsageError, and like
  /// ChatTemplate::render.
  bool say(std::string content, const std::function<bool(const GeneratedToken&)>& on_token);
  /// Replaces the last answer. Returns and throws like `say`, and UsageError if there is no answer.
  bool again(const std::function<bool(const GeneratedToken&)>& on_token);
  /// An empty text removes the system message.
  void set_system(std::string text);
  /// Removes all messages except the system message.
  void clear();

  /// Writes and reads messages as JSON. Throws IoError, and FormatError for a file without messages.
  void save(const std::string& path) const;
  void load(const std::string& path);

 private:
  std::vector<TokenId> prompt(const std::vector<ChatMessage>& messages) const;
  /// Adds the answer to `messages`, which are then the conversation.
  bool answer(std::vector<ChatMessage> messages, const std::function<bool(const GeneratedToken&)>& on_token);

  const LanguageModel& model_;
  std::optional<ChatTemplate> template_;
  GenerateOptions generation_;
  Sequence sequence_;
  std::vector<ChatMessage> messages_;
  GenerateResult last_;
  std::uint64_t answers_ = 0;
};

}  // namespace imago::cli
