// SentencePiece: replacements, spaces as U+2581, words; in these, characters merged into tokens, the best score first
// or, where tokenizer.json lists merges, the first of these; or, for unigram vocabularies, of all ways to cut a word
// into tokens the one whose scores add up to most.

#include <algorithm>
#include <array>
#include <limits>

#include "lm/bpe_merger.h"
#include "lm/token_finder.h"
#include "lm/tokenizer.h"
#include "lm/unicode_text.h"
#include "models/vocabulary_parts.h"

namespace imago::lm {

namespace {

using models::is_spellable;
using models::kSpaceMark;
using models::Token;
using models::TokenType;
using models::Vocabulary;

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

/// What all kinds do to a text before they look for tokens, and with characters that no token covers.
class SentenceEncoder : public TextEncoder {
 public:
  explicit SentenceEncoder(const Vocabulary& vocabulary)
      : map_(models::CharacterMap::parse(vocabulary.normalizer_map, "tokenizer", "the precompiled map")),
        normal_forms_(vocabulary.normal_forms),
        bytes_(models::byte_tokens(vocabulary)),
        unknown_(vocabulary.unknown.value_or(-1)),
        has_bytes_(vocabulary.byte_fallback && std::ranges::count(bytes_, -1) == 0),
        prefix_(vocabulary.add_space_prefix),
        once_(vocabulary.space_prefix_once),
        unless_there_(vocabulary.space_prefix_unless_there),
        remove_extra_spaces_(vocabulary.remove_extra_spaces),
        cut_at_marks_(vocabulary.split_words),
        cut_at_words_(std::ranges::none_of(
            vocabulary.tokens, [](const Token& token) { return is_spellable(token) && reaches_over(token.text); })) {}

  bool normalizes() const noexcept override { return !map_.empty() || !normal_forms_.empty() || remove_extra_spaces_; }

  std::string normalize(std::string_view text) const override {
    std::string out;
    if (map_.empty()) out = text;
    for (std::size_t at = out.size(); at < text.size();) {
      if (const auto match = map_.longest(text.substr(at))) {
        out += match->replacement;
        at += match->length;
      } else {
        const std::size_t bytes = character_at(text, at).bytes;
        out += text.substr(at, bytes);
        at += bytes;
      }
    }
    for (const std::string& form : normal_forms_) out = normal_form(out, form);
    return remove_extra_spaces_ ? without_extra_spaces(out) : out;
  }

 protected:
  /// Calls encode(word), which appends to `ids`, for pieces that no token reaches over, so that each can be encoded
  /// alone. Bounded by marks. Words of long texts that came before are not encoded again.
  template <class Encode>
  void for_each_new_word(std::string_view text, Place place, std::vector<TokenId>& ids, Encode&& encode) const {
    const std::string marked = with_marks(text, place);
    WordCache cache(marked.size());
    for (std::size_t begin = 0; begin < marked.size();) {
      const std::size_t end = end_of_word(marked, begin);
      const std::string_view word = std::string_view(marked).substr(begin, end - begin);
      cache.take(word, ids, [&] { encode(word); });
      begin = end;
    }
  }

  /// Appends the ids of a character's bytes, else the unknown token, once for several in a row of the word that starts
  /// at ids[first].
  void append_unknown(std::string_view character, std::size_t first, std::vector<TokenId>& ids) const {
    if (has_bytes_) {
      for (const char byte : character) ids.push_back(bytes_[static_cast<unsigned char>(byte)]);
    } else if (unknown_ >= 0 && (ids.size() == first || ids.back() != unknown_)) {
      ids.push_back(unknown_);
    }
  }

 private:
  /// With spaces as U+2581, and one before the text where the model expects it.
  std::string with_marks(std::string_view text, Place place) const {
    if (text.empty()) return {};
    const bool there = unless_there_ && (text.front() == ' ' || text.starts_with(kSpaceMark));
    const bool prefixed = prefix_ && !there && (place == Place::start || !once_);
    return std::string(prefixed ? kSpaceMark : "") + replaced(text, " ", kSpaceMark);
  }

  std::size_t end_of_word(std::string_view marked, std::size_t begin) const {
    if (!cut_at_marks_ && !cut_at_words_) return marked.size();
    std::size_t end = begin;
    if (!cut_at_marks_) {
      while (marked.substr(end).starts_with(kSpaceMark)) end += kSpaceMark.size();
    }
    // From 1 on, so that the mark at the start is not found again.
    return std::min(marked.find(kSpaceMark, std::max(end, begin + 1)), marked.size());
  }

  models::CharacterMap map_;
  std::vector<std::string> normal_forms_;
  std::array<TokenId, 256> bytes_;
  TokenId unknown_;
  bool has_bytes_;
  bool prefix_, once_, unless_there_, remove_extra_spaces_;
  bool cut_at_marks_;  // before every mark
  bool cut_at_words_;  // before marks that follow something else
};

/// A word as a list of pieces of it, for merging by scores.
struct Pieces {
  struct Piece {
    std::uint32_t begin, bytes;  // no bytes: merged into the one before
    std::int32_t previous, next;
  };
  struct Candidate {
    float score;
    std::int32_t left;
    std::uint32_t bytes;  // of both; else one of them has changed since
  };
  std::vector<Piece> pieces;
  std::vector<Candidate> heap;
};

/// Whether `a` comes after `b`: the best score first, then from the left.
bool is_later(const Pieces::Candidate& a, const Pieces::Candidate& b) noexcept {
  return a.score != b.score ? a.score < b.score : a.left > b.left;
}

class ByScores final : public SentenceEncoder {
 public:
  explicit ByScores(const Vocabulary& vocabulary)
      : SentenceEncoder(vocabulary), tokens_(ids_of(vocabulary, is_spellable)), vocabulary_(vocabulary) {
    for (const auto& [text, id] : tokens_) longest_ = std::max(longest_, text.size());
  }

  void encode(std::string_view text, Place place, std::vector<TokenId>& ids) const override {
    Pieces work;
    for_each_new_word(text, place, ids, [&](std::string_view word) { encode_word(word, work, ids); });
  }

 private:
  void encode_word(std::string_view word, Pieces& work, std::vector<TokenId>& ids) const {
    work.pieces.clear();
    work.heap.clear();
    for (std::size_t at = 0; at < word.size();) {
      const auto index = static_cast<std::int32_t>(work.pieces.size());
      const std::size_t bytes = character_at(word, at).bytes;
      work.pieces.push_back({static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(bytes), index - 1, index + 1});
      at += bytes;
    }
    work.pieces.back().next = -1;
    for (std::size_t i = 0; i + 1 < work.pieces.size(); ++i) consider(word, static_cast<std::int32_t>(i), work);
    std::ranges::make_heap(work.heap, is_later);
    const auto push = [&](std::int32_t left) {
      if (consider(word, left, work)) std::ranges::push_heap(work.heap, is_later);
    };
    while (!work.heap.empty()) {
      std::ranges::pop_heap(work.heap, is_later);
      const Pieces::Candidate best = work.heap.back();
      work.heap.pop_back();
      Pieces::Piece& left = work.pieces[static_cast<std::size_t>(best.left)];
      if (left.bytes == 0 || left.next < 0) continue;
      Pieces::Piece& right = work.pieces[static_cast<std::size_t>(left.next)];
      if (left.bytes + right.bytes != best.bytes) continue;
      left.bytes = best.bytes;
      right.bytes = 0;
      left.next = right.next;
      if (right.next >= 0) work.pieces[static_cast<std::size_t>(right.next)].previous = best.left;
      if (left.previous >= 0) push(left.previous);
      push(best.left);
    }
    const std::size_t first = ids.size();
    for (std::int32_t i = 0; i >= 0; i = work.pieces[static_cast<std::size_t>(i)].next) {
      const Pieces::Piece& piece = work.pieces[static_cast<std::size_t>(i)];
      const std::string_view text = word.substr(piece.begin, piece.bytes);
      const auto token = tokens_.find(text);
      token == tokens_.end() ? append_unknown(text, first, ids) : ids.push_back(token->second);
    }
  }

  /// Adds what `left` and its neighbour make, if it is a token.
  bool consider(std::string_view word, std::int32_t left, Pieces& work) const {
    const Pieces::Piece& piece = work.pieces[static_cast<std::size_t>(left)];
    if (piece.next < 0) return false;
    const std::uint32_t bytes = piece.bytes + work.pieces[static_cast<std::size_t>(piece.next)].bytes;
    if (bytes > longest_) return false;
    const auto token = tokens_.find(word.substr(piece.begin, bytes));
    if (token == tokens_.end()) return false;
    work.heap.push_back({vocabulary_.tokens[static_cast<std::size_t>(token->second)].score, left, bytes});
    return true;
  }

  TokenMap tokens_;
  const Vocabulary& vocabulary_;
  std::size_t longest_ = 0;
};

class ByMerges final : public SentenceEncoder {
 public:
  explicit ByMerges(const Vocabulary& vocabulary)
      : SentenceEncoder(vocabulary),
        tokens_(ids_of(vocabulary, is_spellable)),
        merger_(vocabulary, tokens_),
        ignore_merges_(vocabulary.ignore_merges) {}

  void encode(std::string_view text, Place place, std::vector<TokenId>& ids) const override {
    BpeMerger::Workspace workspace;
    std::vector<TokenId> symbols;
    for_each_new_word(text, place, ids, [&](std::string_view word) {
      if (const auto whole = ignore_merges_ ? tokens_.find(word) : tokens_.end(); whole != tokens_.end()) {
        ids.push_back(whole->second);
        return;
      }
      symbols.clear();
      for (std::size_t at = 0; at < word.size();) {
        const std::string_view character = word.substr(at, character_at(word, at).bytes);
        const auto token = tokens_.find(character);
        token == tokens_.end() ? append_unknown(character, 0, symbols) : symbols.push_back(token->second);
        at += character.size();
      }
      merger_.merge(symbols, workspace);
      ids.insert(ids.end(), symbols.begin(), symbols.end());
    });
  }

 private:
  TokenMap tokens_;
  BpeMerger merger_;
  bool ignore_merges_;
};

// SentencePiece makes pieces of at most 16 characters by default; this bounds the time for vocabularies of strangers.
constexpr std::size_t kMaxPieceBytes = 1024;
// How much worse than the worst token an unknown character is, as SentencePiece has it.
constexpr double kUnknownPenalty = 10;

class Unigram final : public SentenceEncoder {
 public:
  explicit Unigram(const Vocabulary& vocabulary) : SentenceEncoder(vocabulary) {
    double worst = 0;
    bool any = false;
    scores_.resize(vocabulary.tokens.size());
    for (const auto& [text, id] : ids_of(vocabulary, is_spellable)) {
      const Token& token = vocabulary.tokens[static_cast<std::size_t>(id)];
      // Tokens that a user defined always win: scores of others are logarithms of probabilities.
      scores_[static_cast<std::size_t>(id)] = token.type == TokenType::user_defined ? 0 : double{token.score};
      if (token.type == TokenType::normal) {
        worst = any ? std::min(worst, double{token.score}) : double{token.score};
        any = true;
      }
      if (!text.empty() && text.size() <= kMaxPieceBytes) trie_.insert(text, id);
    }
    unknown_score_ = worst - kUnknownPenalty;
  }

  void encode(std::string_view text, Place place, std::vector<TokenId>& ids) const override {
    std::vector<Step> steps, path;
    for_each_new_word(text, place, ids, [&](std::string_view word) { encode_word(word, steps, path, ids); });
  }

 private:
  /// The best way to the end of a piece: the token that ends there and where it begins.
  struct Step {
    double score = -std::numeric_limits<double>::infinity();
    std::size_t begin = 0;
    TokenId id = -1;  // -1: unknown
  };

  void encode_word(std::string_view word, std::vector<Step>& steps, std::vector<Step>& path,
                   std::vector<TokenId>& ids) const {
    steps.assign(word.size() + 1, {});
    steps[0].score = 0;
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t character = character_at(word, at).bytes;
      const double so_far = steps[at].score;
      const auto offer = [&](std::size_t end, double score, TokenId id) {
        if (so_far + score > steps[end].score) steps[end] = {so_far + score, at, id};
      };
      bool known = false;
      ByteTrie::Node node = ByteTrie::kRoot;
      for (std::size_t end = at; end < word.size();) {
        node = trie_.step(node, static_cast<unsigned char>(word[end++]));
        if (node == ByteTrie::kNone) break;
        const TokenId id = trie_.value(node);
        if (id == ByteTrie::kNoValue) continue;
        known = known || end - at == character;
        offer(end, scores_[static_cast<std::size_t>(id)], id);
      }
      if (!known) offer(at + character, unknown_score_, -1);
      at += character;
    }
    path.clear();
    for (std::size_t end = word.size(); end > 0; end = steps[end].begin) {
      path.push_back({0, end, steps[end].id});
    }
    const std::size_t first = ids.size();
    std::size_t begin = 0;
    for (auto step = path.rbegin(); step != path.rend(); ++step) {
      step->id >= 0 ? ids.push_back(step->id) : append_unknown(word.substr(begin, step->begin - begin), first, ids);
      begin = step->begin;
    }
  }

  ByteTrie trie_;
  std::vector<double> scores_;
  double unknown_score_ = 0;
};

}  // namespace

std::unique_ptr<const TextEncoder> make_sentence_bpe(const Vocabulary& vocabulary) {
  if (vocabulary.merges.empty()) return std::make_unique<ByScores>(vocabulary);
  return std::make_unique<ByMerges>(vocabulary);
}

std::unique_ptr<const TextEncoder> make_unigram(const Vocabulary& vocabulary) {
  return std::make_unique<Unigram>(vocabulary);
}

}  // namespace imago::lm
