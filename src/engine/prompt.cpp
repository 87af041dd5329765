// Texts and conversations as ids.

#include <optional>
#include <string>
#include <utility>

#include "imago/engine.h"
#include "imago/error.h"

namespace imago {

namespace {

std::string spelled(const Tokenizer& tokenizer, std::optional<TokenId> id) {
  return id ? tokenizer.piece(*id, true) : std::string();
}

}  // namespace

std::vector<TokenId> encode_whole(const Tokenizer& tokenizer, std::string_view text) {
  // Templates write the BOS themselves; the tokenizer must not add another.
  const std::string bos = spelled(tokenizer, tokenizer.bos());
  const bool doubled = tokenizer.adds_bos() && !bos.empty() && text.starts_with(bos);
  return tokenizer.encode(doubled ? text.substr(bos.size()) : text, true);
}

std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenId> ids = encode_whole(tokenizer, text);
  const std::string eos = spelled(tokenizer, tokenizer.eos());
  const bool asked = !eos.empty() && text.ends_with(eos);
  if (ids.size() > 1 && ids.back() == tokenizer.eos() && !asked) ids.pop_back();
  return ids;
}

TextPair encode_pair(const Tokenizer& tokenizer, std::string_view first, std::string_view second) {
  TextPair pair{.ids = encode_whole(tokenizer, first)};
  pair.second = pair.ids.size();
  const std::vector<TokenId> more = encode_whole(tokenizer, second);
  const bool begins = tokenizer.adds_bos() && !more.empty() && more.front() == tokenizer.bos();
  pair.ids.insert(pair.ids.end(), more.begin() + (begins ? 1 : 0), more.end());
  return pair;
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
