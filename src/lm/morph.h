#pragma once

// Types of matrices that change while a model lives.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "imago/lm.h"
#include "lm/decoder_weights.h"

namespace imago::lm {

/// The types that matrices of one model have had. Nobody may run the model while a function of this class does.
class Metamorphosis {
 public:
  using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

  /// Bytes that replaced versions may take on each device; none: half of what would be free without them.
  explicit Metamorphosis(std::optional<std::uint64_t> most_kept = std::nullopt) : most_kept_(most_kept) {}

  /// See LanguageModel.
  MorphedMatrices morph(DecoderWeights& weights, std::string_view pattern, Format type, const Progress& progress);
  MorphedMatrices undo(DecoderWeights& weights, const Progress& progress);

 private:
  /// A group by its index, and the types of its matrices.
  using Change = std::pair<std::size_t, std::vector<Format>>;
  /// A version that was replaced, in the layout of its runner.
  struct Version {
    Change change;
    LaidOutGroup laid;
  };

  MorphedMatrices apply(DecoderWeights& weights, const std::vector<Change>& changes, const Progress& progress);
  /// Makes the changes one by one. `done` gets what undoes them, as far as they were made.
  void exchange(DecoderWeights& weights, const std::vector<Change>& changes, std::vector<Change>& done,
                const Progress& progress, std::size_t& encoded);

  std::optional<std::uint64_t> most_kept_;
  std::deque<Version> kept_;                         // the one replaced first in front
  std::map<std::size_t, std::uint64_t> kept_bytes_;  // of each runner
  std::vector<std::vector<Change>> history_;
};

/// What LanguageModel::matrices returns.
std::vector<ModelMatrix> list_matrices(const DecoderWeights& weights);

}  // namespace imago::lm
