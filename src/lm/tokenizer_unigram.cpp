// SentencePiece unigram: of all ways to cut a text into tokens the one whose scores add up to most.

#include <algorithm>
#include <limits>

#include "lm/sentence_text.h"
#include "lm/token_finder.h"
#include "lm/tokenizer.h"
#include "lm/unicode_text.h"

namespace imago::lm {

namespace {

using models::TokenType;
using models::Vocabulary;

// SentencePiece makes pieces of at most 16 characters by default; this bounds the time for vocabularies of strangers.
constexpr std::size_t kMaxPieceBytes = 1024;
// How much worse than the worst token an unknown character is, as SentencePiece has it.
constexpr double kUnknownPenalty = 10;

class Unigram final : public TextEncoder {
 public:
  explicit Unigram(const Vocabulary& vocabulary) : text_(vocabulary), fallback_(vocabulary) {
    double worst = 0;
    bool any = false;
    scores_.resize(vocabulary.tokens.size());
    for (const auto& [text, id] : spellable_tokens(vocabulary)) {
      const models::Token& token = vocabulary.tokens[static_cast<std::size_t>(id)];
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

  bool normalizes() const noexcept override { return text_.normalizes(); }
  std::string normalize(std::string_view text) const override { return text_.normalize(text); }

  void encode(std::string_view text, Place place, std::vector<TokenId>& ids) const override {
    const std::string marked = text_.marked(text, place);
    std::vector<Step> steps;
    std::vector<Step> path;
    WordCache cache(marked.size());
    text_.for_each_word(marked, [&](std::string_view word) {
      if (cache.repeat(word, ids)) return;
      const std::size_t first = ids.size();
      encode_word(word, steps, path, ids);
      cache.remember(word, first, ids);
    });
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
      step->id >= 0 ? ids.push_back(step->id) : fallback_.append(word.substr(begin, step->begin - begin), first, ids);
      begin = step->begin;
    }
  }

  SentenceText text_;
  Fallback fallback_;
  ByteTrie trie_;
  std::vector<double> scores_;
  double unknown_score_ = 0;
};

}  // namespace

std::unique_ptr<const TextEncoder> make_unigram(const Vocabulary& vocabulary) {
  return std::make_unique<Unigram>(vocabulary);
}

}  // namespace imago::lm
