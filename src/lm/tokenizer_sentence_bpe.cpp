// SentencePiece BPE: characters merged into tokens, the best score first; or, where tokenizer.json lists merges, the
// first of these.

#include <algorithm>

#include "lm/bpe_merger.h"
#include "lm/sentence_text.h"
#include "lm/tokenizer.h"
#include "lm/unicode_text.h"

namespace imago::lm {

namespace {

using models::Vocabulary;
using TokenMap = std::unordered_map<std::string_view, TokenId>;

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

class SentenceBpe : public TextEncoder {
 public:
  explicit SentenceBpe(const Vocabulary& vocabulary)
      : text_(vocabulary), fallback_(vocabulary), tokens_(spellable_tokens(vocabulary)) {}

  bool normalizes() const noexcept override { return text_.normalizes(); }
  std::string normalize(std::string_view text) const override { return text_.normalize(text); }

 protected:
  template <class EncodeWord>
  void for_each_new_word(const std::string& marked, std::vector<TokenId>& ids, EncodeWord&& encode_word) const {
    WordCache cache(marked.size());
    text_.for_each_word(marked, [&](std::string_view word) {
      if (cache.repeat(word, ids)) return;
      const std::size_t first = ids.size();
      encode_word(word);
      cache.remember(word, first, ids);
    });
  }

  SentenceText text_;
  Fallback fallback_;
  TokenMap tokens_;
};

class ByScores final : public SentenceBpe {
 public:
  explicit ByScores(const Vocabulary& vocabulary) : SentenceBpe(vocabulary), vocabulary_(vocabulary) {
    for (const auto& [text, id] : tokens_) longest_ = std::max(longest_, text.size());
  }

  void encode(std::string_view text, Place place, std::vector<TokenId>& ids) const override {
    const std::string marked = text_.marked(text, place);
    Pieces work;
    for_each_new_word(marked, ids, [&](std::string_view word) { encode_word(word, work, ids); });
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
      token == tokens_.end() ? fallback_.append(text, first, ids) : ids.push_back(token->second);
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

  const Vocabulary& vocabulary_;
  std::size_t longest_ = 0;
};

std::vector<BpeMerger::Merge> merges_of(const Vocabulary& vocabulary, const TokenMap& tokens) {
  std::vector<BpeMerger::Merge> merges;
  const auto id_of = [&](std::string_view text) {
    const auto found = tokens.find(text);
    return found == tokens.end() ? -1 : found->second;
  };
  for (const auto& [left, right] : vocabulary.merges) {
    const BpeMerger::Merge merge{id_of(left), id_of(right), id_of(left + right)};
    // Merges of tokens that no text can spell never happen.
    if (merge.left >= 0 && merge.right >= 0 && merge.whole >= 0) merges.push_back(merge);
  }
  return merges;
}

class ByMerges final : public SentenceBpe {
 public:
  explicit ByMerges(const Vocabulary& vocabulary)
      : SentenceBpe(vocabulary), merger_(merges_of(vocabulary, tokens_)), ignore_merges_(vocabulary.ignore_merges) {}

  void encode(std::string_view text, Place place, std::vector<TokenId>& ids) const override {
    const std::string marked = text_.marked(text, place);
    BpeMerger::Workspace workspace;
    std::vector<TokenId> symbols;
    for_each_new_word(marked, ids, [&](std::string_view word) {
      if (const auto whole = ignore_merges_ ? tokens_.find(word) : tokens_.end(); whole != tokens_.end()) {
        ids.push_back(whole->second);
        return;
      }
      symbols.clear();
      for (std::size_t at = 0; at < word.size();) {
        const std::string_view character = word.substr(at, character_at(word, at).bytes);
        const auto token = tokens_.find(character);
        token == tokens_.end() ? fallback_.append(character, 0, symbols) : symbols.push_back(token->second);
        at += character.size();
      }
      merger_.merge(symbols, workspace);
      ids.insert(ids.end(), symbols.begin(), symbols.end());
    });
  }

 private:
  BpeMerger merger_;
  bool ignore_merges_;
};

}  // namespace

std::unique_ptr<const TextEncoder> make_sentence_bpe(const Vocabulary& vocabulary) {
  if (vocabulary.merges.empty()) return std::make_unique<ByScores>(vocabulary);
  return std::make_unique<ByMerges>(vocabulary);
}

}  // namespace imago::lm
