// What holds for every vocabulary, whatever file it comes from.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "files/json_text.h"
#include "imago/error.h"
#include "models/vocabulary_parts.h"

namespace imago::models {

namespace {

constexpr std::uint32_t kValueBit = std::uint32_t{1} << 31;

std::uint32_t offset_of(std::uint32_t unit) noexcept { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }
bool has_value(std::uint32_t unit) noexcept { return ((unit >> 8) & 1) != 0; }
std::uint32_t label_of(std::uint32_t unit) noexcept { return unit & (kValueBit | 0xff); }

}  // namespace

CharacterMap CharacterMap::parse(std::string_view bytes, std::string_view file, std::string_view field) {
  CharacterMap map;
  if (bytes.empty()) return map;
  std::uint32_t trie_bytes = 0;
  if (bytes.size() < sizeof trie_bytes) {
    throw FormatError(file, 0, fmt::format("{} has {} bytes: its size alone takes 4", field, bytes.size()));
  }
  std::memcpy(&trie_bytes, bytes.data(), sizeof trie_bytes);
  bytes.remove_prefix(sizeof trie_bytes);
  if (trie_bytes > bytes.size()) {
    throw FormatError(file, 0,
                      fmt::format("{} says that its trie has {} bytes, but only {} follow: it may be cut off", field,
                                  trie_bytes, bytes.size()));
  }
  if (trie_bytes == 0 || trie_bytes % sizeof(std::uint32_t) != 0) {
    throw FormatError(
        file, 0,
        fmt::format("{} says that its trie has {} bytes: it must be a multiple of 4 above 0", field, trie_bytes));
  }
  map.units_.resize(trie_bytes / sizeof(std::uint32_t));
  std::memcpy(map.units_.data(), bytes.data(), trie_bytes);
  map.replacements_ = bytes.substr(trie_bytes);
  if (!map.replacements_.empty() && map.replacements_.back() != '\0') {
    throw FormatError(file, 0, fmt::format("the last replacement of {} is not ended by a zero byte", field));
  }
  for (const std::uint32_t unit : map.units_) {
    // A value unit is reached through a unit that says so, but a map that holds none out of range needs no trust.
    if ((unit & kValueBit) != 0 && (unit & ~kValueBit) >= map.replacements_.size()) {
      throw FormatError(file, 0,
                        fmt::format("{} has a replacement at {}, after the {} bytes of replacements", field,
                                    unit & ~kValueBit, map.replacements_.size()));
    }
  }
  return map;
}

std::optional<CharacterMap::Match> CharacterMap::longest(std::string_view text) const noexcept {
  if (units_.empty()) return std::nullopt;
  std::optional<Match> best;
  std::uint32_t at = offset_of(units_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    at ^= byte;
    if (byte == 0 || at >= units_.size() || label_of(units_[at]) != byte) break;
    const bool leaf = has_value(units_[at]);
    at ^= offset_of(units_[at]);
    if (at >= units_.size()) break;
    if (!leaf) continue;
    const std::uint32_t start = units_[at] & ~kValueBit;
    if (start >= replacements_.size()) break;
    best = {i + 1, std::string_view(replacements_.c_str() + start)};
  }
  return best;
}

namespace {

using Index = std::unordered_map<std::string_view, std::size_t>;

/// A token as messages show it: whole characters, control characters and stray bytes as escapes, some 40 bytes.
std::string shown(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = files::utf8_length(text, at);
    const auto byte = static_cast<unsigned char>(text[at]);
    if (out.size() >= 40) return out + "…";
    if (length == 0 || byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
      ++at;
    } else {
      out += text.substr(at, length);
      at += length;
    }
  }
  return out;
}

Index check_tokens(const Vocabulary& vocabulary, const VocabularyPlace& place) {
  const auto fail = [&](const std::string& problem) { throw FormatError(place.file, 0, problem); };
  const std::vector<Token>& tokens = vocabulary.tokens;
  if (tokens.empty()) fail(fmt::format("{} is empty: a tokenizer needs tokens", place.tokens));
  if (tokens.size() > kMaxTokens) {
    fail(fmt::format("{} has {} tokens: at most {} are allowed", place.tokens, tokens.size(), kMaxTokens));
  }
  Index index;
  index.reserve(tokens.size());
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    const std::string& text = tokens[id].text;
    if (text.size() > kMaxTokenBytes) {
      fail(fmt::format("token {} of {} has {} bytes: at most {} are allowed", id, place.tokens, text.size(),
                       kMaxTokenBytes));
    }
    if (!std::isfinite(tokens[id].score)) {
      fail(fmt::format("the score of token {} '{}' is {}: it must be a number", id, shown(text), tokens[id].score));
    }
    if (vocabulary.kind == TokenizerKind::byte_bpe) {
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t length = files::utf8_length(text, at);
        if (length == 0) {
          fail(fmt::format("token {} of {}, '{}', is not UTF-8: byte-level tokens spell bytes as letters", id,
                           place.tokens, shown(text)));
        }
        at += length;
      }
    }
    const auto [before, fresh] = index.emplace(text, id);
    if (!fresh)
      fail(fmt::format("tokens {} and {} of {} are both '{}'", before->second, id, place.tokens, shown(text)));
  }
  return index;
}

void check_merges(const Vocabulary& vocabulary, const Index& index, const VocabularyPlace& place) {
  const auto fail = [&](const std::string& problem) { throw FormatError(place.file, 0, problem); };
  if (vocabulary.merges.size() > kMaxMerges) {
    fail(fmt::format("{} has {} merges: at most {} are allowed", place.merges, vocabulary.merges.size(), kMaxMerges));
  }
  std::unordered_set<std::uint64_t> seen;
  seen.reserve(vocabulary.merges.size());
  std::string whole;
  for (std::size_t i = 0; i < vocabulary.merges.size(); ++i) {
    const auto& [left, right] = vocabulary.merges[i];
    const auto id_of = [&](const std::string& text) {
      const auto found = index.find(text);
      if (found == index.end()) {
        fail(fmt::format("merge {} of {} needs '{}', which is not a token", i, place.merges, shown(text)));
      }
      return found->second;
    };
    const std::uint64_t pair = (std::uint64_t{id_of(left)} << 32) | id_of(right);
    whole = left;
    whole += right;
    id_of(whole);
    if (!seen.insert(pair).second) {
      fail(fmt::format("merge {} of {}, '{}' and '{}', comes twice", i, place.merges, shown(left), shown(right)));
    }
  }
}

void check_ids(const Vocabulary& vocabulary, const VocabularyPlace& place) {
  const auto check = [&](std::optional<std::int32_t> id, std::string_view name) {
    if (id && (*id < 0 || static_cast<std::size_t>(*id) >= vocabulary.tokens.size())) {
      throw FormatError(
          place.file, 0,
          fmt::format("the {} token is {}: ids go from 0 to {}", name, *id, vocabulary.tokens.size() - 1));
    }
  };
  for (const SpecialToken& special : kSpecialTokens) check(vocabulary.*special.id, special.name);
  for (const std::int32_t id : vocabulary.ends) check(id, "end");
  if (vocabulary.add_bos && !vocabulary.bos) {
    throw FormatError(place.file, 0, "the tokenizer asks for BOS in front of a text, but names no BOS token");
  }
  if (vocabulary.add_eos && !vocabulary.eos) {
    throw FormatError(place.file, 0, "the tokenizer asks for EOS after a text, but names no EOS token");
  }
}

}  // namespace

void check_vocabulary(const Vocabulary& vocabulary, const VocabularyPlace& place) {
  const Index index = check_tokens(vocabulary, place);
  check_merges(vocabulary, index, place);
  check_ids(vocabulary, place);
  CharacterMap::parse(vocabulary.normalizer_map, place.file, place.map);
}

void complete_ends(Vocabulary& vocabulary) {
  constexpr std::array<std::string_view, 15> kEnds = {
      "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<turn|>",        "<|eom_id|>",
      "<EOT>",      "[EOT]",      "[EOS]",   "<eos>",      "</s>",     "<|endoftext|>", "<|end_of_text|>"};
  std::vector<std::int32_t> ends;
  const auto add = [&](std::int32_t id) {
    if (std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
  };
  if (vocabulary.eos) add(*vocabulary.eos);
  for (const std::int32_t id : vocabulary.ends) add(id);
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const Token& token = vocabulary.tokens[id];
    if (token.type == TokenType::control && std::ranges::find(kEnds, token.text) != kEnds.end()) {
      add(static_cast<std::int32_t>(id));
    }
  }
  vocabulary.ends = std::move(ends);
}

bool is_spellable(const Token& token) noexcept {
  return token.type == TokenType::normal || token.type == TokenType::user_defined || token.type == TokenType::unused;
}

int named_byte(std::string_view text) noexcept {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  int value = 0;
  for (const char digit : text.substr(3, 2)) {
    value *= 16;
    if (digit >= '0' && digit <= '9') {
      value += digit - '0';
    } else if (digit >= 'A' && digit <= 'F') {
      value += digit - 'A' + 10;
    } else {
      return -1;
    }
  }
  return value;
}

std::array<std::int32_t, 256> byte_tokens(const Vocabulary& vocabulary) {
  std::array<std::int32_t, 256> ids{};
  ids.fill(-1);
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const Token& token = vocabulary.tokens[id];
    const int byte = token.type == TokenType::byte ? named_byte(token.text) : -1;
    if (byte >= 0) ids[static_cast<std::size_t>(byte)] = static_cast<std::int32_t>(id);
  }
  return ids;
}

std::string spelled(const Vocabulary& vocabulary, const Token& token, std::string_view word_prefix) {
  const bool bracketed = token.text.starts_with('[') && token.text.ends_with(']');
  const bool respelled = vocabulary.kind == TokenizerKind::word_piece && vocabulary.word_prefix != word_prefix &&
                         token.type == TokenType::normal && !bracketed;
  if (!respelled) return token.text;
  if (token.text.starts_with(vocabulary.word_prefix)) return token.text.substr(vocabulary.word_prefix.size());
  return std::string(word_prefix) + token.text;
}

std::optional<std::pair<std::string, std::string>> split_merge(std::string_view text) {
  const std::size_t space = text.find(' ', 1);  // a half may itself start with a space, as in Gemma
  if (text.empty() || space == std::string_view::npos || space + 1 == text.size()) return std::nullopt;
  return std::pair{std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
}

std::vector<std::pair<std::string, std::string>> merges_of_scores(const Vocabulary& vocabulary) {
  struct Merge {
    std::size_t whole, left, right;
  };
  Index index;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (is_spellable(vocabulary.tokens[id])) index.emplace(vocabulary.tokens[id].text, id);
  }
  std::vector<Merge> merges;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string_view text = vocabulary.tokens[id].text;
    if (!is_spellable(vocabulary.tokens[id]) || text.size() > kMaxTokenBytes / 64) continue;
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = index.find(text.substr(0, cut));
      if (left == index.end()) continue;
      const auto right = index.find(text.substr(cut));
      if (right != index.end()) merges.push_back({id, left->second, right->second});
    }
  }
  const auto score = [&](const Merge& merge) { return vocabulary.tokens[merge.whole].score; };
  std::ranges::sort(merges, [&](const Merge& a, const Merge& b) {
    if (score(a) != score(b)) return score(a) > score(b);
    return std::tie(a.whole, a.left, a.right) < std::tie(b.whole, b.left, b.right);
  });
  std::vector<std::pair<std::string, std::string>> out;
  out.reserve(merges.size());
  for (const Merge& merge : merges) {
    out.emplace_back(vocabulary.tokens[merge.left].text, vocabulary.tokens[merge.right].text);
  }
  return out;
}

std::vector<float> scores_of_merges(const Vocabulary& vocabulary) {
  std::vector<float> scores(vocabulary.tokens.size());
  Index index;
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    scores[id] = vocabulary.tokens[id].score;
    index.emplace(vocabulary.tokens[id].text, id);
  }
  std::vector<bool> made(scores.size(), false);
  for (std::size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const auto found = index.find(vocabulary.merges[rank].first + vocabulary.merges[rank].second);
    if (found == index.end() || made[found->second]) continue;
    made[found->second] = true;
    scores[found->second] = -static_cast<float>(rank);
  }
  return scores;
}

}  // namespace imago::models
