#include "lm/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "imago/error.h"
#include "lm/language_model_state.h"
#include "quant/blocks.h"

namespace imago::lm {

namespace {

kernels::CacheType type_of(CacheKind kind) noexcept {
  switch (kind) {
    case CacheKind::float32: return kernels::CacheType::f32;
    case CacheKind::float16: return kernels::CacheType::f16;
    case CacheKind::q8_0: break;
  }
  return kernels::CacheType::q8_0;
}

}  // namespace

KvCache::KvCache(const models::Traits& traits, CacheKind kind, std::size_t rows,
                 std::span<const std::unique_ptr<backend::Runner>> runners)
    : shape{.type = type_of(kind), .heads = traits.kv_heads, .rows = rows, .head_values = traits.head_values},
      blocks(traits.blocks) {
  if (kind == CacheKind::q8_0 && traits.head_values % quant::Q8_0::kValues != 0) {
    throw UsageError(
        fmt::format("a q8_0 cache stores blocks of {} values, and the heads of this model have {}; use a float16 cache",
                    quant::Q8_0::kValues, traits.head_values));
  }
  for (const auto& runner : runners) {
    parts.push_back(runner->make_cache(shape));
    part_ends.push_back(runner->blocks().end);
  }
}

backend::Cache& KvCache::part_of(std::size_t block) const {
  const auto found = std::upper_bound(part_ends.begin(), part_ends.end(), block);
  return *parts.at(static_cast<std::size_t>(found - part_ends.begin()));
}

TokenId run_model(const LoadedModel& model, std::span<const TokenId> ids, std::span<const Segment> segments,
                  std::size_t positions, backend::Workspace& work, const BatchRequest& request) {
  const auto rope = model.rope_table(positions);
  backend::Segment single;  // a step of one sequence allocates nothing
  std::vector<backend::Segment> several(segments.size() > 1 ? segments.size() : 0);
  const std::span<backend::Segment> parts = segments.size() == 1 ? std::span(&single, 1) : std::span(several);
  TokenId chosen = -1;
  for (std::size_t i = 0; i < model.weights.runners.size(); ++i) {
    for (std::size_t s = 0; s < segments.size(); ++s) {
      parts[s] = {segments[s].cache->parts[i].get(), segments[s].past, segments[s].tokens};
    }
    chosen = model.weights.runners[i]->run({.ids = ids,
                                            .segments = parts,
                                            .rope = rope.get(),
                                            .work = work,
                                            .first_row = request.first_row,
                                            .rows = request.rows,
                                            .logits = request.logits,
                                            .choice = request.choice,
                                            .all_rows = request.all_rows});
  }
  return chosen;
}

void model_logits(const LoadedModel& model, backend::Workspace& work, std::size_t first, std::size_t rows,
                  std::span<float> logits) {
  model.weights.runners.back()->compute_logits(work, first, rows, logits);
}

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
