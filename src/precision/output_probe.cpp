#include "precision/output_probe.h"

#include <algorithm>
#include <cassert>

#include "base/parallel.h"
#include "lm/forward.h"
#include "lm/language_model_state.h"
#include "lm/prediction.h"

namespace imago::precision {

namespace {

/// Rows of logits held at a time.
constexpr std::size_t kLogitRows = 64;

}  // namespace

struct OutputProbe::State {
  State(const lm::LoadedModel& loaded, std::span<const TokenId> tokens, const ProbeOptions& options)
      : model(loaded),
        runner(loaded.host("a sweep")),
        ids(tokens.begin(), tokens.end()),
        context(options.context),
        windows(tokens.size() / options.context),
        cache(loaded.weights.traits, CacheKind::float32, options.context, loaded.weights.runners),
        rope(loaded.rope_table(options.context)) {
    // Predictions are scored from the middle of a window on (imago/lm.h); the last token has no successor in its
    // window.
    const std::size_t first = options.first_position.value_or(context / 2), last = context - 1;
    const std::size_t row_bytes = vocabulary() * sizeof(float);
    const std::size_t wanted = std::max<std::size_t>(1, options.logit_bytes / row_bytes / windows);
    const std::size_t stride = std::max<std::size_t>(1, (last - first + wanted - 1) / wanted);
    for (std::size_t row = first; row < last; row += stride) rows.push_back(row);
    logits.resize(windows * rows.size() * vocabulary());
    if (options.keep_inputs) inputs.resize(windows * blocks() * window_values());
    some_logits.resize(kLogitRows * vocabulary());
  }

  std::size_t vocabulary() const { return model.weights.traits.vocabulary; }
  std::size_t blocks() const { return model.weights.traits.blocks; }
  std::size_t window_values() const { return context * model.weights.traits.width; }
  std::span<const TokenId> window(std::size_t index) const { return std::span(ids).subspan(index * context, context); }
  std::span<float> input(std::size_t window, std::size_t block) {
    return std::span(inputs).subspan((window * blocks() + block) * window_values(), window_values());
  }
  std::span<const float> reference(std::size_t window, std::size_t row) const {
    return std::span(logits).subspan((window * rows.size() + row) * vocabulary(), vocabulary());
  }

  void run_blocks(backend::BlockRange range) {
    const backend::Segment segment{cache.parts.front().get(), 0, context};
    runner.run_blocks(range, context, {&segment, 1}, rope.get(), work);
  }

  void embed(std::size_t index) {
    const backend::Segment segment{cache.parts.front().get(), 0, context};
    runner.embed(window(index), {&segment, 1}, work);
  }

  void run_and_remember(std::size_t index) {
    embed(index);
    for (std::size_t block = 0; block < blocks(); ++block) {
      if (!inputs.empty()) std::copy_n(work.stream().begin(), window_values(), input(index, block).begin());
      run_blocks({block, block + 1});
    }
  }

  /// Calls visit(row, logits) for the compared rows of the window that ran last, several at once from the pool.
  template <class Visit>
  void for_each_row(Visit&& visit) {
    // Only the compared rows go through the output matrix.
    const std::size_t width = model.weights.traits.width;
    const std::vector<float> all(work.stream().begin(),
                                 work.stream().begin() + static_cast<std::ptrdiff_t>(window_values()));
    for (std::size_t begin = 0; begin < rows.size(); begin += kLogitRows) {
      const std::size_t count = std::min(kLogitRows, rows.size() - begin);
      for (std::size_t i = 0; i < count; ++i) {
        std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(rows[begin + i] * width), width,
                    work.stream().begin() + static_cast<std::ptrdiff_t>(i * width));
      }
      runner.compute_logits(work, 0, count, std::span(some_logits).first(count * vocabulary()));
      parallel_for_dynamic(count, 4, [&](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i) {
          visit(begin + i, std::span<const float>(some_logits).subspan(i * vocabulary(), vocabulary()));
        }
      });
    }
  }

  std::size_t target(std::size_t window, std::size_t row) const {
    return static_cast<std::size_t>(ids[window * context + rows[row] + 1]);
  }

  const lm::LoadedModel& model;
  backend::CpuRunner& runner;
  std::vector<TokenId> ids;
  std::size_t context, windows;
  std::vector<std::size_t> rows;  ///< positions of a window that are compared
  std::vector<float> logits;      ///< [windows][rows][vocabulary]
  std::vector<float> inputs;      ///< [windows][blocks][context][width], or empty
  lm::KvCache cache;
  std::shared_ptr<const kernels::RopeTable> rope;
  backend::Workspace work;
  std::vector<float> some_logits;
  double surprise = 0;
};

OutputProbe::OutputProbe(const LanguageModel& model, std::span<const TokenId> ids, const ProbeOptions& options)
    : state_(std::make_unique<State>(LanguageModelAccess::loaded(model), ids, options)) {
  State& state = *state_;
  state.model.check_ids(state.ids);
  std::vector<double> surprises(state.windows * state.rows.size());
  for (std::size_t window = 0; window < state.windows; ++window) {
    state.run_and_remember(window);
    state.for_each_row([&](std::size_t row, std::span<const float> logits) {
      const std::size_t at = window * state.rows.size() + row;
      std::ranges::copy(logits, state.logits.begin() + static_cast<std::ptrdiff_t>(at * state.vocabulary()));
      lm::Prediction prediction;
      prediction.set(logits);
      surprises[at] = -prediction.log_probability(state.target(window, row));
    });
  }
  for (const double one : surprises) state.surprise += one / static_cast<double>(surprises.size());
}

OutputProbe::~OutputProbe() = default;

void OutputProbe::rebase() {
  for (std::size_t window = 0; window < state_->windows; ++window) state_->run_and_remember(window);
}

OutputProbe::Outcome OutputProbe::measure(std::size_t first_block) const {
  State& state = *state_;
  assert(first_block == 0 || !state.inputs.empty());
  std::vector<Outcome> outcomes(positions());
  for (std::size_t window = 0; window < state.windows; ++window) {
    if (first_block == 0) {
      state.embed(window);
    } else {
      // An untied output reads what the last block writes, so that block runs again.
      const std::size_t from = std::min(first_block, state.blocks() - 1);
      std::ranges::copy(state.input(window, from), sized(state.work.stream(), state.window_values()).begin());
    }
    state.run_blocks({std::min(first_block, state.blocks() - 1), state.blocks()});
    state.for_each_row([&](std::size_t row, std::span<const float> logits) {
      lm::Prediction before, now;
      before.set(state.reference(window, row));
      now.set(logits);
      outcomes[window * state.rows.size() + row] = {before.divergence_of(now),
                                                    -now.log_probability(state.target(window, row))};
    });
  }
  Outcome mean;
  for (const Outcome& one : outcomes) {
    mean.divergence += one.divergence / static_cast<double>(outcomes.size());
    mean.surprise += one.surprise / static_cast<double>(outcomes.size());
  }
  return mean;
}

double OutputProbe::surprise_before() const noexcept { return state_->surprise; }
std::size_t OutputProbe::windows() const noexcept { return state_->windows; }
std::size_t OutputProbe::positions() const noexcept { return state_->windows * state_->rows.size(); }
std::size_t OutputProbe::tokens() const noexcept { return state_->ids.size(); }
std::uint64_t OutputProbe::bytes() const noexcept {
  return (state_->logits.size() + state_->inputs.size() + state_->some_logits.size()) * sizeof(float);
}

}  // namespace imago::precision
