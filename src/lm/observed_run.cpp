#include "lm/observed_run.h"

#include <fmt/format.h>

#include "imago/error.h"
#include "lm/decoder.h"
#include "lm/language_model_state.h"

namespace imago::lm {

struct ObservedRun::State {
  const LoadedModel& model;
  KvCache cache;
  Workspace work;
};

ObservedRun::ObservedRun(const LanguageModel& model, std::size_t context) {
  const LoadedModel& loaded = LanguageModelAccess::loaded(model);
  loaded.require_host("calibration");
  if (context == 0 || context > loaded.max_positions()) {
    throw UsageError(fmt::format("windows of {} tokens; this model can have 1 to {}", context, loaded.max_positions()));
  }
  state_ =
      std::make_unique<State>(State{loaded, KvCache(loaded.weights.traits, CacheKind::float32, context), Workspace()});
}

ObservedRun::~ObservedRun() = default;

void ObservedRun::run(std::span<const TokenId> window, InputObserver& observer) {
  State& state = *state_;
  if (window.empty() || window.size() > state.cache.shape.rows) {
    throw UsageError(fmt::format("a window of {} tokens; it can have 1 to {}", window.size(), state.cache.shape.rows));
  }
  state.model.check_ids(window);
  const auto rope = state.model.rope_table(window.size());
  const Segment segment{&state.cache, 0, window.size()};
  state.work.observer = &observer;
  run_blocks(state.model.weights, window, {0, window.size()}, {&segment, 1}, rope.get(), state.work);
  show_output_input(state.model.weights, state.work, window.size());
}

}  // namespace imago::lm
