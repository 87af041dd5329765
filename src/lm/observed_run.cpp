#include "lm/observed_run.h"

#include <fmt/format.h>

#include "imago/error.h"
#include "lm/kv_cache.h"
#include "lm/language_model_state.h"

namespace imago::lm {

struct ObservedRun::State {
  const LoadedModel& model;
  backend::CpuRunner& runner;
  KvCache cache;
  backend::Workspace work;
};

ObservedRun::ObservedRun(const LanguageModel& model, std::size_t context) {
  const LoadedModel& loaded = LanguageModelAccess::loaded(model);
  backend::CpuRunner& runner = loaded.host("calibration");
  if (context == 0 || context > loaded.max_positions()) {
    throw UsageError(fmt::format("windows of {} tokens; this model can have 1 to {}", context, loaded.max_positions()));
  }
  state_ = std::make_unique<State>(
      State{loaded, runner, KvCache(loaded.weights.traits, CacheKind::float32, context, loaded.weights.runners), {}});
}

ObservedRun::~ObservedRun() = default;

void ObservedRun::run(std::span<const TokenId> window, backend::InputObserver& observer) {
  State& state = *state_;
  if (window.empty() || window.size() > state.cache.shape.rows) {
    throw UsageError(fmt::format("a window of {} tokens; it can have 1 to {}", window.size(), state.cache.shape.rows));
  }
  state.model.check_ids(window);
  const auto rope = state.model.rope_table(window.size());
  const backend::Segment segment{state.cache.parts.front().get(), 0, window.size()};
  state.work.observer = &observer;
  state.runner.embed(window, {&segment, 1}, state.work);
  state.runner.run_blocks(state.runner.blocks(), window.size(), {&segment, 1}, rope.get(), state.work);
  state.runner.show_output_input(state.work, window.size());
}

}  // namespace imago::lm
