#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "imago/error.h"
#include "imago/lm.h"
#include "lm/forward.h"
#include "lm/language_model_state.h"
#include "lm/sequence_file.h"

namespace imago {

namespace {

constexpr std::size_t kHostBatch = 512;

std::size_t batch_of(const SequenceOptions& options, const lm::LoadedModel& model) noexcept {
  if (options.batch) return *options.batch;
  return model.weights.runners.front()->device()->is_host() ? kHostBatch : backend::kDeviceBatch;
}

/// Throws ShapeError unless there are logits for each of `count` tokens.
void check_logits(std::span<const float> logits, std::size_t count, std::size_t vocabulary, std::string_view what) {
  if (logits.size() / vocabulary == count && logits.size() % vocabulary == 0) return;
  throw ShapeError(
      fmt::format("logits of {} values for {} {} of a vocabulary of {}", logits.size(), count, what, vocabulary));
}

}  // namespace

struct Sequence::State {
  const lm::LoadedModel* model;
  CacheKind kind;
  std::size_t batch;
  lm::KvCache cache;
  std::vector<TokenId> tokens;
  bool stale = false;  // the states are not those of all tokens, which must run again
  backend::Workspace work;
  std::vector<float> logits;

  std::size_t vocabulary() const noexcept { return model->weights.traits.vocabulary; }

  void check_append(std::span<const TokenId> ids) const {
    if (ids.empty()) throw UsageError("there are no tokens to append");
    model->check_ids(ids);
    if (ids.size() > cache.page_rows - tokens.size()) {
      throw UsageError(fmt::format("{} tokens after {} make {}, and there is room for {}", ids.size(), tokens.size(),
                                   tokens.size() + ids.size(), cache.page_rows));
    }
  }

  /// Appends in batches, after `ask(batch, first, last)` has said what each of them is run for. Asks `go_on` after all
  /// but the last, and stops if it returns false. The tokens count once all batches have run.
  template <class Ask>
  void run(std::span<const TokenId> ids, const std::function<bool(std::size_t done)>& go_on, Ask&& ask) {
    check_append(ids);
    refresh();
    stale = has_states();  // until all has run
    for (std::size_t first = 0; first < ids.size(); first += batch) {
      const std::size_t count = std::min(batch, ids.size() - first);
      const bool last = first + count == ids.size();
      const lm::Segment segment{.cache = &cache, .past = tokens.size() + first, .tokens = count};
      backend::Batch part{.ids = ids.subspan(first, count), .segments = {}, .work = work};
      ask(part, first, last);
      lm::run_model(*model, {&segment, 1}, tokens.size() + ids.size(), part);
      if (!last && go_on && !go_on(first + count)) return;
    }
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    stale = false;
  }

  bool has_states() const noexcept { return cache.state_bytes() != 0; }

  /// States cannot be cut: those of fewer tokens, or of a batch that did not end, are computed again.
  void refresh() {
    if (!stale || tokens.empty()) return;
    stale = false;
    const std::vector<TokenId> ids = std::exchange(tokens, {});
    try {
      run(ids, {}, [](backend::Batch&, std::size_t, bool) {});
    } catch (...) {
      tokens = ids;
      throw;
    }
  }

  /// As above, for what follows the last token: its logits, or a choice among them, which is returned.
  TokenId run_for_last(std::span<const TokenId> ids, const std::function<bool(std::size_t done)>& go_on,
                       std::span<float> to, const backend::TokenChoice* choice) {
    TokenId chosen = -1;
    std::uint32_t row = 0;
    run(ids, go_on, [&](backend::Batch& part, std::size_t, bool last) {
      if (!last) return;
      row = static_cast<std::uint32_t>(part.ids.size() - 1);
      part.rows = {&row, 1};
      part.logits = to;
      if (choice == nullptr) return;
      part.choices = {choice, 1};
      part.chosen = {&chosen, 1};
    });
    return chosen;
  }

  /// The file of a sequence is made for it.
  lm::SequenceOwner owner() const noexcept { return {model->weights.fingerprint, kind, vocabulary()}; }
};

Sequence::Sequence(const LanguageModel& model, const SequenceOptions& options) {
  const lm::LoadedModel& loaded = LanguageModelAccess::loaded(model);
  const std::size_t context = options.context != 0 ? options.context : loaded.weights.traits.context;
  loaded.require_logits();
  loaded.check_context(context);
  if (options.batch == std::size_t{0}) throw UsageError("a batch of 0 tokens; it needs at least 1");
  state_ = std::make_unique<State>();
  state_->model = &loaded;
  state_->kind = options.cache;
  state_->batch = batch_of(options, loaded);
  state_->cache = lm::KvCache(*loaded.weights.program, options.cache, context, loaded.weights.runners);
  state_->tokens.reserve(context);
}

Sequence::Sequence(Sequence&&) noexcept = default;
Sequence& Sequence::operator=(Sequence&&) noexcept = default;
Sequence::~Sequence() = default;

std::size_t Sequence::size() const noexcept { return state_->tokens.size(); }
std::size_t Sequence::capacity() const noexcept { return state_->cache.page_rows; }
const Tokenizer* Sequence::tokenizer() const noexcept {
  return state_->model->tokenizer ? &*state_->model->tokenizer : nullptr;
}
std::span<const TokenId> Sequence::tokens() const noexcept { return state_->tokens; }

std::span<const float> Sequence::append(std::span<const TokenId> ids) {
  return append(ids, std::function<bool(std::size_t)>());
}

std::span<const float> Sequence::append(std::span<const TokenId> ids,
                                        const std::function<bool(std::size_t done)>& go_on) {
  const std::size_t before = size();
  const std::span<float> logits = sized(state_->logits, state_->vocabulary());
  state_->run_for_last(ids, go_on, logits, nullptr);
  return size() == before ? std::span<const float>() : logits;
}

bool SequenceAccess::chooses(const Sequence& sequence) noexcept { return sequence.state_->model->chooses(); }

TokenId SequenceAccess::append(Sequence& sequence, std::span<const TokenId> ids, const backend::TokenChoice& choice,
                               const std::function<bool(std::size_t done)>& go_on) {
  const std::size_t before = sequence.size();
  const TokenId chosen = sequence.state_->run_for_last(ids, go_on, {}, &choice);
  if (chosen < 0 && sequence.size() != before) {
    throw UsageError("no token can follow: all logits are NaN or -infinity");
  }
  return chosen;
}

void Sequence::append(std::span<const TokenId> ids, std::span<float> logits) {
  const std::size_t vocabulary = state_->vocabulary();
  check_logits(logits, ids.size(), vocabulary, "tokens");
  const std::vector<std::uint32_t> rows = lm::all_rows(std::min(ids.size(), state_->batch));
  state_->run(ids, {}, [&](backend::Batch& part, std::size_t first, bool) {
    part.rows = std::span(rows).first(part.ids.size());
    part.logits = logits.subspan(first * vocabulary, part.rows.size() * vocabulary);
  });
}

void Sequence::truncate(std::size_t size) {
  if (size > state_->tokens.size()) {
    throw UsageError(fmt::format("a sequence of {} tokens cannot be cut to {}", state_->tokens.size(), size));
  }
  state_->stale |= state_->has_states() && size != state_->tokens.size();
  state_->tokens.resize(size);
}

void Sequence::save(const std::string& path) const {
  state_->refresh();
  lm::save_sequence(path, state_->owner(), state_->tokens, state_->cache);
}

void Sequence::restore(const std::string& path) {
  state_->tokens = lm::restore_sequence(path, state_->owner(), state_->cache);
  state_->stale = false;
  state_->tokens.reserve(capacity());
}

void append_together(std::span<Sequence* const> sequences, std::span<const TokenId> ids, std::span<float> logits) {
  if (sequences.empty()) throw UsageError("there are no sequences to append to");
  if (ids.size() != sequences.size()) {
    throw UsageError(fmt::format("{} tokens for {} sequences; each takes one", ids.size(), sequences.size()));
  }
  Sequence::State& first = *sequences.front()->state_;
  check_logits(logits, ids.size(), first.vocabulary(), "sequences");
  std::vector<lm::Segment> segments;
  std::size_t positions = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    Sequence::State& state = *sequences[i]->state_;
    if (state.model != first.model) throw UsageError(fmt::format("sequence {} is of another model than the first", i));
    if (std::ranges::count(sequences.first(i), sequences[i]) != 0) {
      throw UsageError(fmt::format("sequence {} comes twice; it takes one token at a time", i));
    }
    state.check_append(ids.subspan(i, 1));
    state.refresh();
    segments.push_back({.cache = &state.cache, .past = state.tokens.size(), .tokens = 1});
    positions = std::max(positions, state.tokens.size() + 1);
  }
  const std::vector<std::uint32_t> rows = lm::all_rows(ids.size());
  for (Sequence* const sequence : sequences) sequence->state_->stale = sequence->state_->has_states();
  lm::run_model(*first.model, segments, positions,
                {.ids = ids, .segments = {}, .work = first.work, .rows = rows, .logits = logits});
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    sequences[i]->state_->tokens.push_back(ids[i]);
    sequences[i]->state_->stale = false;
  }
}

}  // namespace imago
