#pragma once

// Sequences in pages of one cache, as an engine has them, without an engine: pieces of any of them in one batch.

#include <cstdint>
#include <vector>

#include "lm/forward.h"
#include "lm/language_model_state.h"

namespace imago::testing {

class PagedSequences {
 public:
  static constexpr std::size_t kPageRows = 64;

  /// Sequences have pages from both ends of the cache by turns, so that none is a run, and use them as they grow.
  PagedSequences(const LanguageModel& model, CacheKind kind, std::size_t count, std::size_t pages_each)
      : model_(LanguageModelAccess::loaded(model)),
        cache_(*model_.weights.program, kind, kPageRows, model_.weights.runners, count * pages_each + 1, count),
        pages_(count),
        sizes_(count) {
    std::uint32_t low = 1, high = static_cast<std::uint32_t>(count * pages_each);
    for (std::size_t i = 0; i < count * pages_each; ++i) pages_[i % count].push_back(i % 2 == 0 ? high-- : low++);
  }

  struct Piece {
    std::size_t sequence;
    std::vector<TokenId> ids;
    bool is_read = true;                       ///< the logits after its last token are wanted
    std::size_t kept_tokens = 0, kept_by = 0;  ///< after so many of the tokens another sequence gets the states
  };
  /// Logits after the pieces that are read, in their order.
  std::vector<std::vector<float>> run(const std::vector<Piece>& pieces) {
    std::vector<TokenId> ids;
    std::vector<lm::Segment> segments;
    std::vector<std::uint32_t> rows;
    std::size_t positions = 0;
    for (const Piece& piece : pieces) {
      ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
      if (piece.is_read) rows.push_back(static_cast<std::uint32_t>(ids.size() - 1));
      std::size_t& size = sizes_[piece.sequence];
      segments.push_back({.cache = &cache_,
                          .past = size,
                          .tokens = piece.ids.size(),
                          .pages = pages_[piece.sequence],
                          .state = static_cast<std::uint32_t>(piece.sequence),
                          .kept_tokens = piece.kept_tokens,
                          .kept_state = static_cast<std::uint32_t>(piece.kept_by)});
      size += piece.ids.size();
      positions = std::max(positions, size);
    }
    const std::size_t vocabulary = model_.weights.traits.vocabulary;
    std::vector<float> logits(rows.size() * vocabulary);
    lm::run_model(model_, segments, positions,
                  {.ids = ids, .segments = {}, .work = work_, .rows = rows, .logits = logits});
    std::vector<std::vector<float>> made;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto first = logits.begin() + static_cast<std::ptrdiff_t>(i * vocabulary);
      made.emplace_back(first, first + static_cast<std::ptrdiff_t>(vocabulary));
    }
    return made;
  }

  /// Makes the first tokens of one sequence those of another, in its own pages, with the states of all tokens.
  void copy(std::size_t from, std::size_t to, std::size_t tokens) {
    copy_rows(from, to, tokens);
    for (const auto& part : cache_.parts) {
      part->copy_state(static_cast<std::uint32_t>(from), static_cast<std::uint32_t>(to));
    }
  }

  /// The same without states, which the other one has already.
  void copy_rows(std::size_t from, std::size_t to, std::size_t tokens) {
    for (std::size_t i = 0; i * kPageRows < tokens; ++i) {
      for (const auto& part : cache_.parts) {
        part->copy(pages_[from][i], pages_[to][i], std::min(kPageRows, tokens - i * kPageRows));
      }
    }
    sizes_[to] = tokens;
  }

  /// Forgets the tokens of a sequence.
  void restart(std::size_t sequence) { sizes_[sequence] = 0; }

 private:
  const lm::LoadedModel& model_;
  lm::KvCache cache_;
  std::vector<std::vector<std::uint32_t>> pages_;
  std::vector<std::size_t> sizes_;
  backend::Workspace work_;
};

}  // namespace imago::testing
