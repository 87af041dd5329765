#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "files/hugging_face.h"
#include "imago/error.h"
#include "imago/lm.h"
#include "lm/language_model_state.h"
#include "lm/tokenizer.h"
#include "models/open_model.h"
#include "models/vocabulary.h"

namespace imago {

namespace {

/// The vocabulary of a file; none, with the reason, for a folder without one. Throws UnsupportedError for one that
/// imago does not know.
std::optional<models::Vocabulary> read_vocabulary(const files::TensorFile& file, std::string& problem) {
  if (const GgufFile* gguf = file.gguf()) return models::read_vocabulary(*gguf);
  const files::HuggingFaceFolder* folder = file.folder();
  if (folder != nullptr && folder->tokenizer()) return models::read_vocabulary(*folder);
  if (folder != nullptr && !folder->made_of().empty()) {
    problem =
        fmt::format("{} was saved without a tokenizer: name a file or folder that has it (--tokenizer)", file.path());
  } else if (folder != nullptr) {
    problem = fmt::format("{} has no tokenizer: put its tokenizer.json beside config.json", file.path());
  }
  return std::nullopt;
}

/// The tokenizer at `path`, or if that is empty that of the model; none, with the reason, where there is none.
std::optional<Tokenizer> load_tokenizer(const files::TensorFile& file, const std::string& path, std::string& problem) {
  if (!path.empty()) {
    Tokenizer tokenizer = Tokenizer::load(path);
    const std::size_t known = models::read_traits(file).vocabulary;
    if (tokenizer.size() <= known) return tokenizer;
    throw UsageError(fmt::format("{} has {} tokens, but {} knows {}: they do not belong together", path,
                                 tokenizer.size(), file.path(), known));
  }
  try {
    if (auto vocabulary = read_vocabulary(file, problem)) return TokenizerMaker::make(std::move(*vocabulary));
  } catch (const UnsupportedError& error) {
    problem = error.what();
  }
  return std::nullopt;
}

}  // namespace

namespace lm {

std::shared_ptr<const kernels::RopeTable> RopeTables::with(std::size_t positions) const {
  constexpr std::size_t kFirstPositions = 1024;
  std::lock_guard lock(mutex_);
  if (table_ == nullptr || table_->positions() < positions) {
    // Doubling: a sequence that grows token by token makes few tables.
    table_ = std::make_shared<kernels::RopeTable>(settings_, std::bit_ceil(std::max(positions, kFirstPositions)));
  }
  return table_;
}

SharedRopes LoadedModel::ropes_for(std::size_t positions) const {
  SharedRopes made;
  for (std::size_t i = 0; i < ropes.size(); ++i) made.tables[i] = ropes[i].with(positions);
  return made;
}

std::size_t LoadedModel::max_positions() const noexcept {
  return weights.traits.learned_positions ? weights.learned_positions : kMaxContext;
}

void LoadedModel::require_logits() const {
  if (weights.traits.has_output) return;
  throw UnsupportedError(
      fmt::format("this {} has no output matrix: it makes embeddings ('imago embed', 'imago rerank', 'imago serve'), "
                  "and no text",
                  name(weights.traits.architecture)));
}

void LoadedModel::require_score() const {
  const models::Head& head = weights.traits.head;
  if (head.scores && head.results == 1) return;
  throw UnsupportedError(
      fmt::format("this {} {}: reranking needs a cross-encoder, which has one score for two texts",
                  name(weights.traits.architecture),
                  head.scores ? fmt::format("is a classifier of {} classes", head.results) : "has no score"));
}

void LoadedModel::check_context(std::size_t tokens) const {
  if (tokens == 0 || tokens > kMaxContext) {
    throw UsageError(fmt::format("a context of {} tokens; it can be 1 to {}", tokens, kMaxContext));
  }
  if (tokens > max_positions()) {
    throw UsageError(fmt::format("a context of {} tokens; this model has learned {} positions and no more", tokens,
                                 max_positions()));
  }
}

void LoadedModel::check_ids(std::span<const TokenId> ids) const {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || static_cast<std::size_t>(ids[i]) >= weights.traits.vocabulary) {
      throw UsageError(fmt::format("token {} is {}; the vocabulary of this model has the ids 0 to {}", i, ids[i],
                                   weights.traits.vocabulary - 1));
    }
  }
}

std::size_t LoadedModel::alike() const {
  std::size_t least = kernels::kAnyBatch;
  for (const auto& runner : weights.runners) least = std::min(least, runner->alike());
  return least;
}

backend::CpuRunner& LoadedModel::host(std::string_view work) const {
  backend::Runner& last = *weights.runners.back();
  if (last.device()->is_host()) return static_cast<backend::CpuRunner&>(last);
  throw UnsupportedError(
      fmt::format("{} needs all of a model on the host, and parts of this one are on {}: load it without a device",
                  work, last.device()->name()));
}

}  // namespace lm

LanguageModel LanguageModel::load(const std::string& path, const LanguageModelOptions& options) {
  return lm::load_encoded(path, options, {});
}

LanguageModel lm::load_encoded(const std::string& path, const LanguageModelOptions& options,
                               const MatrixEncoder& encoder) {
  files::TensorFile file = models::open_model(path, options.eager);
  // The vocabulary first: a mistake in it is told before gigabytes are packed.
  std::string problem;
  std::optional<Tokenizer> tokenizer = load_tokenizer(file, options.tokenizer, problem);
  return LanguageModelAccess::assemble(load_decoder(std::move(file), options, encoder), std::move(tokenizer), problem,
                                       options.kept_bytes);
}

LanguageModel LanguageModelAccess::assemble(lm::DecoderWeights weights, std::optional<Tokenizer> tokenizer,
                                            std::string tokenizer_problem, std::optional<std::uint64_t> kept_bytes) {
  auto state = std::make_unique<LanguageModel::State>();
  state->tokenizer = std::move(tokenizer);
  state->tokenizer_problem = std::move(tokenizer_problem);
  state->weights = std::move(weights);
  state->metamorphosis = lm::Metamorphosis(kept_bytes);
  const models::Traits& traits = state->weights.traits;
  if (!traits.learned_positions) {
    state->ropes.emplace_back(models::rope_settings(main_rope(traits), state->weights.rope_divisors));
  }
  if (traits.window_rope) state->ropes.emplace_back(models::rope_settings(*traits.window_rope, {}));
  return LanguageModel(std::move(state));
}

LanguageModel::LanguageModel(std::unique_ptr<State> state) : state_(std::move(state)) {}
LanguageModel::LanguageModel(LanguageModel&&) noexcept = default;
LanguageModel& LanguageModel::operator=(LanguageModel&&) noexcept = default;
LanguageModel::~LanguageModel() = default;

std::string_view LanguageModel::architecture() const noexcept { return name(state_->weights.traits.architecture); }
std::string_view LanguageModel::type() const noexcept { return state_->weights.type; }
std::size_t LanguageModel::vocabulary() const noexcept { return state_->weights.traits.vocabulary; }
std::size_t LanguageModel::context() const noexcept { return state_->weights.traits.context; }
std::size_t LanguageModel::max_positions() const noexcept { return state_->max_positions(); }
bool LanguageModel::generates() const noexcept { return state_->weights.traits.has_output; }
Pooling LanguageModel::pooling() const noexcept {
  switch (state_->weights.traits.pooling) {
    case models::Pooling::unknown:
    case models::Pooling::mean: break;
    case models::Pooling::cls: return Pooling::cls;
    case models::Pooling::last: return Pooling::last;
  }
  return Pooling::mean;
}
std::size_t LanguageModel::embedding_width() const noexcept { return state_->embedding_width(); }
std::uint64_t LanguageModel::parameters() const noexcept { return state_->weights.parameters; }
std::uint64_t LanguageModel::bytes() const noexcept { return state_->weights.run_bytes; }

std::span<const std::string> LanguageModel::notes() const noexcept { return state_->weights.notes; }

const Tokenizer* LanguageModel::tokenizer() const noexcept { return state_->tokenizer ? &*state_->tokenizer : nullptr; }

const Tokenizer& LanguageModel::require_tokenizer() const {
  if (!state_->tokenizer) throw UnsupportedError(state_->tokenizer_problem);
  return *state_->tokenizer;
}

std::vector<ModelMatrix> LanguageModel::matrices() const { return lm::list_matrices(state_->weights); }

MorphedMatrices LanguageModel::morph(std::string_view pattern, Format type,
                                     const lm::Metamorphosis::Progress& progress) {
  return state_->metamorphosis.morph(state_->weights, pattern, type, progress);
}

MorphedMatrices LanguageModel::undo(const lm::Metamorphosis::Progress& progress) {
  return state_->metamorphosis.undo(state_->weights, progress);
}

}  // namespace imago
