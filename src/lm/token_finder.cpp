#include "lm/token_finder.h"

#include <fmt/format.h>

#include "imago/error.h"
#include "lm/unicode_text.h"
#include "lm/utf8.h"

namespace imago::lm {

namespace {

constexpr std::size_t kMaxBytes = 2048;

/// The character that ends at text[end - 1]. REQUIRES: end > 0.
Character character_before(std::string_view text, std::size_t end) noexcept {
  for (std::size_t back = 1; back <= 4 && back <= end; ++back) {
    if ((static_cast<unsigned char>(text[end - back]) & 0xc0) == 0x80) continue;
    const Character character = character_at(text, end - back);
    if (character.valid && character.bytes == back) return character;
    break;
  }
  return {0xfffd, 1, false};
}

}  // namespace

void TokenFinder::add(std::string_view text, TokenId id, const models::Token& token) {
  if (text.empty()) return;
  if (text.size() > kMaxBytes) {
    throw UnsupportedError(
        fmt::format("the special token {} has {} bytes: at most {} are supported", id, text.size(), kMaxBytes));
  }
  trie_.insert(text, static_cast<std::int32_t>(habits_.size()));
  habits_.push_back({id, token.lstrip, token.rstrip, token.single_word});
}

std::optional<TokenFinder::Found> TokenFinder::find(std::string_view text, std::size_t from) const noexcept {
  for (std::size_t at = from; at < text.size(); ++at) {
    if (trie_.step(ByteTrie::kRoot, static_cast<unsigned char>(text[at])) == ByteTrie::kNone) continue;
    const std::optional<ByteTrie::Match> match = trie_.longest(text.substr(at));
    if (!match) continue;
    const Habits& habits = habits_[static_cast<std::size_t>(match->value)];
    Found found{at, at + match->bytes, habits.id};
    if (habits.single_word) {
      const bool before = found.begin > 0 && is_word(character_before(text, found.begin).code);
      const bool behind = found.end < text.size() && is_word(character_at(text, found.end).code);
      if (before || behind) continue;
    }
    while (habits.lstrip && found.begin > from) {
      const Character character = character_before(text, found.begin);
      if (!character.valid || !is_space(character.code) || character.bytes > found.begin - from) break;
      found.begin -= character.bytes;
    }
    while (habits.rstrip && found.end < text.size()) {
      const Character character = character_at(text, found.end);
      if (!character.valid || !is_space(character.code)) break;
      found.end += character.bytes;
    }
    return found;
  }
  return std::nullopt;
}

}  // namespace imago::lm
