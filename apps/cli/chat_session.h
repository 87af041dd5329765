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
  /// `model` must outlive it. `note` gets what there is to say about the template.
  ChatSession(const LanguageModel& model, const SequenceOptions& sequence, GenerateOptions generation,
              const std::function<void(const std::string&)>& note);

  const std::vector<ChatMessage>& messages() const noexcept { return messages_; }
  const Sequence& sequence() const noexcept { return sequence_; }
  const GenerateResult& last() const noexcept { return last_; }

  /// Adds a message and the answer to it. If that fails (the template refuses, the context is full), or is stopped
  /// while the message is read, the messages are as before; the latter returns false. Throws UsageError and as
  /// ChatTemplate::render.
  bool say(std::string content, const std::function<bool(const GeneratedToken&)>& on_token);
  /// Gives another answer in place of the last. Returns and throws as `say`, and UsageError if there is none.
  bool again(const std::function<bool(const GeneratedToken&)>& on_token);
  /// An empty text takes the system message away.
  void set_system(std::string text);
  /// Keeps the system message only.
  void clear();

  /// Messages as JSON, and back. Throws IoError; FormatError for a file that holds no messages.
  void save(const std::string& path) const;
  void load(const std::string& path);

 private:
  std::vector<TokenId> prompt() const;
  bool answer(const std::function<bool(const GeneratedToken&)>& on_token);

  const LanguageModel& model_;
  std::optional<ChatTemplate> template_;
  GenerateOptions generation_;
  Sequence sequence_;
  std::vector<ChatMessage> messages_;
  GenerateResult last_;
  std::uint64_t answers_ = 0;
};

}  // namespace imago::cli
