#include "lm/sentence_text.h"

#include <algorithm>

#include "lm/unicode_text.h"
#include "models/vocabulary_parts.h"

namespace imago::lm {

namespace {

using models::kSpaceMark;
using models::Token;
using models::TokenType;
using models::Vocabulary;

bool is_spellable(const Token& token) noexcept {
  return token.type == TokenType::normal || token.type == TokenType::user_defined || token.type == TokenType::unused;
}

/// Whether a mark follows something else in it: then a token may reach into the next word.
bool reaches_over(std::string_view text) noexcept {
  for (std::size_t mark = text.find(kSpaceMark); mark != std::string_view::npos;
       mark = text.find(kSpaceMark, mark + kSpaceMark.size())) {
    if (mark > 0 && !text.substr(0, mark).ends_with(kSpaceMark)) return true;
  }
  return false;
}

std::string without_extra_spaces(std::string_view text) {
  std::string out;
  for (const char letter : text) {
    if (letter == ' ' && (out.empty() || out.back() == ' ')) continue;
    out += letter;
  }
  if (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

}  // namespace

SentenceText::SentenceText(const Vocabulary& vocabulary)
    : map_(models::CharacterMap::parse(vocabulary.normalizer_map, "tokenizer", "the precompiled map")),
      normal_forms_(vocabulary.normal_forms),
      prefix_(vocabulary.add_space_prefix),
      once_(vocabulary.space_prefix_once),
      unless_there_(vocabulary.space_prefix_unless_there),
      remove_extra_spaces_(vocabulary.remove_extra_spaces),
      cut_at_marks_(vocabulary.split_words),
      cut_at_words_(std::ranges::none_of(
          vocabulary.tokens, [](const Token& token) { return is_spellable(token) && reaches_over(token.text); })) {}

std::string SentenceText::normalize(std::string_view text) const {
  std::string out;
  if (map_.empty()) {
    out = text;
  } else {
    for (std::size_t at = 0; at < text.size();) {
      if (const auto match = map_.longest(text.substr(at))) {
        out += match->replacement;
        at += match->length;
      } else {
        const std::size_t bytes = character_at(text, at).bytes;
        out += text.substr(at, bytes);
        at += bytes;
      }
    }
  }
  for (const std::string& form : normal_forms_) out = normal_form(out, form);
  return remove_extra_spaces_ ? without_extra_spaces(out) : out;
}

std::string SentenceText::marked(std::string_view text, TextEncoder::Place place) const {
  std::string out;
  if (text.empty()) return out;
  out.reserve(text.size() + text.size() / 2);
  const bool there = unless_there_ && (text.front() == ' ' || text.starts_with(kSpaceMark));
  if (prefix_ && !there && (place == TextEncoder::Place::start || !once_)) out += kSpaceMark;
  for (const char letter : text) {
    if (letter == ' ') {
      out += kSpaceMark;
    } else {
      out += letter;
    }
  }
  return out;
}

void SentenceText::for_each_word(std::string_view marked, const std::function<void(std::string_view)>& word) const {
  if (!cut_at_marks_ && !cut_at_words_) {
    if (!marked.empty()) word(marked);
    return;
  }
  std::size_t begin = 0;
  while (begin < marked.size()) {
    std::size_t end = begin;
    if (!cut_at_marks_) {
      while (marked.substr(end).starts_with(kSpaceMark)) end += kSpaceMark.size();
    }
    // From 1 on, so that the mark at the start is not found again.
    end = marked.find(kSpaceMark, std::max(end, begin + 1));
    if (end == std::string_view::npos) end = marked.size();
    word(marked.substr(begin, end - begin));
    begin = end;
  }
}

std::unordered_map<std::string_view, TokenId> spellable_tokens(const Vocabulary& vocabulary) {
  std::unordered_map<std::string_view, TokenId> ids;
  ids.reserve(vocabulary.tokens.size());
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const Token& token = vocabulary.tokens[id];
    if (is_spellable(token)) ids.emplace(token.text, static_cast<TokenId>(id));
  }
  return ids;
}

Fallback::Fallback(const Vocabulary& vocabulary)
    : has_bytes_(vocabulary.byte_fallback && models::has_all_bytes(vocabulary)),
      unknown_(vocabulary.unknown.value_or(-1)) {
  bytes_.fill(-1);
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const int byte =
        vocabulary.tokens[id].type == TokenType::byte ? models::named_byte(vocabulary.tokens[id].text) : -1;
    if (byte >= 0) bytes_[static_cast<std::size_t>(byte)] = static_cast<TokenId>(id);
  }
}

void Fallback::append(std::string_view character, std::size_t first, std::vector<TokenId>& ids) const {
  if (has_bytes_) {
    for (const char value : character) ids.push_back(byte(value));
  } else if (unknown_ >= 0 && (ids.size() == first || ids.back() != unknown_)) {
    ids.push_back(unknown_);
  }
}

}  // namespace imago::lm
