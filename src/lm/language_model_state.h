#pragma once

// What a LanguageModel holds, for the files of this module.

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "backend/runner.h"
#include "imago/lm.h"
#include "lm/decoder_weights.h"
#include "lm/matrix_encoder.h"
#include "lm/morph.h"
#include "models/rope.h"

namespace imago {

namespace lm {

/// Cosines and sines of positions, in tables that grow with the sequences and are shared by those of a model. Safe from
/// many threads.
class RopeTables {
 public:
  explicit RopeTables(kernels::RopeSettings settings) : settings_(std::move(settings)) {}
  RopeTables(RopeTables&& other) noexcept : settings_(std::move(other.settings_)), table_(std::move(other.table_)) {}
  /// A table of at least that many positions.
  std::shared_ptr<const kernels::RopeTable> with(std::size_t positions) const;

 private:
  kernels::RopeSettings settings_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const kernels::RopeTable> table_;
};

/// Tables that batches in flight keep alive.
struct SharedRopes {
  std::array<std::shared_ptr<const kernels::RopeTable>, backend::kRopes> tables;

  backend::Ropes view() const noexcept { return {tables[0].get(), tables[1].get()}; }
};

struct LoadedModel {
  DecoderWeights weights;
  Metamorphosis metamorphosis;
  std::vector<RopeTables> ropes;  ///< none: the model has learned positions
  std::optional<Tokenizer> tokenizer;
  std::string tokenizer_problem;  ///< why there is none

  /// Positions that sequences can have: those of the table of positions, or as many as memory holds.
  std::size_t max_positions() const noexcept;
  /// Throws UnsupportedError, with what it is good for, if it makes no logits.
  void require_logits() const;
  /// Throws UnsupportedError, with what it has instead, unless it gives a text one score.
  void require_score() const;
  /// Throws UsageError for a context that no sequence can have.
  void check_context(std::size_t tokens) const;
  /// The tables for these positions.
  SharedRopes ropes_for(std::size_t positions) const;
  /// Whether the device that has the logits can choose tokens from them.
  bool chooses() const noexcept { return weights.runners.back()->chooses(); }
  /// Runner::alike of all parts together.
  std::size_t alike() const;
  /// What runs all blocks, for work that looks into a model: "calibration". Throws UnsupportedError, naming it, if
  /// parts are on another device.
  backend::CpuRunner& host(std::string_view work) const;
  std::size_t embedding_width() const noexcept {
    const models::Head& head = weights.traits.head;
    return head.results != 0 && !head.scores ? head.results : weights.traits.width;
  }
  /// Throws UsageError for an id outside the vocabulary.
  void check_ids(std::span<const TokenId> ids) const;
};

/// Sequences may be this long at most.
inline constexpr std::size_t kMaxContext = std::size_t{1} << 24;

}  // namespace lm

struct LanguageModel::State : lm::LoadedModel {};

struct LanguageModelAccess {
  /// Also without a file, for benchmarks. `tokenizer_problem`: why there is no tokenizer.
  static LanguageModel assemble(lm::DecoderWeights weights, std::optional<Tokenizer> tokenizer = {},
                                std::string tokenizer_problem = "this model has no tokenizer",
                                std::optional<std::uint64_t> kept_bytes = {});
  static const lm::LoadedModel& loaded(const LanguageModel& model) noexcept { return *model.state_; }
};

/// Generation without logits on the host, where the model's accelerator can choose tokens.
struct SequenceAccess {
  /// Whether it can.
  static bool chooses(const Sequence& sequence) noexcept;
  /// As Sequence::append, but returns the token that follows; -1 once `go_on` has returned false. Throws UsageError if
  /// no token can follow.
  static TokenId append(Sequence& sequence, std::span<const TokenId> ids, const backend::TokenChoice& choice,
                        const std::function<bool(std::size_t done)>& go_on = {});
};

/// How a sampler would choose the next token, as numbers; none if it needs the logits themselves.
struct SamplerAccess {
  static bool needs_logits(const Sampler& sampler) noexcept;
  /// Draws a number, as Sampler::sample does. REQUIRES: it does not need logits.
  static backend::TokenChoice next_choice(Sampler& sampler);
};

}  // namespace imago
