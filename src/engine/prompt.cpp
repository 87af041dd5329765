// Texts and conversations as ids.

#include <optional>
#include <string>
#include <utility>

#include "imago/engine.h"
#include "imago/error.h"

namespace imago {

std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, std::string_view text) {
  const auto spelled = [&](std::optional<TokenId> id) { return id ? tokenizer.piece(*id, true) : std::string(); };
  // Templates write the BOS themselves; the tokenizer must not add another.
  const std::string bos = spelled(tokenizer.bos()), eos = spelled(tokenizer.eos());
  const bool doubled = tokenizer.adds_bos() && !bos.empty() && text.starts_with(bos);
  std::vector<TokenId> ids = tokenizer.encode(doubled ? text.substr(bos.size()) : text, true);
  const bool asked = !eos.empty() && text.ends_with(eos);
  if (ids.size() > 1 && ids.back() == tokenizer.eos() && !asked) ids.pop_back();
  return ids;
}

std::vector<TokenId> encode_messages(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                     const ChatTemplate::Variables& variables) {
  if (tokenizer.chat_template().empty()) throw UnsupportedError("the model has no chat template");
  ChatTemplate::Variables filled = variables;
  const auto fill = [&](std::string& text, std::optional<TokenId> id) {
    if (text.empty() && id) text = tokenizer.piece(*id, true);
  };
  fill(filled.bos_token, tokenizer.bos());
  fill(filled.eos_token, tokenizer.eos());
  return encode_prompt(tokenizer, ChatTemplate::parse(tokenizer.chat_template()).render(messages, filled));
}

}  // namespace imago
