#include "lm/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
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

KvCache::KvCache(const backend::Program& program, CacheKind kind, std::size_t rows,
                 std::span<const std::unique_ptr<backend::Runner>> runners, std::size_t pages, std::size_t states)
    : page_rows(rows),
      shapes(backend::page_shapes(program, {0, program.blocks.size()}, type_of(kind), rows)),
      state_values(backend::state_values(program, {0, program.blocks.size()})) {
  for (const kernels::CacheShape& shape : shapes) {
    if (kind != CacheKind::q8_0 || shape.head_values % quant::Q8_0::kValues == 0) continue;
    throw UsageError(
        fmt::format("a q8_0 cache stores blocks of {} values, and the heads of this model have {}; use a float16 cache",
                    quant::Q8_0::kValues, shape.head_values));
  }
  for (const auto& runner : runners) {
    parts.push_back(runner->make_cache(type_of(kind), rows, pages, states));
    part_ends.push_back(runner->blocks().end);
  }
}

std::size_t KvCache::token_bytes() const {
  std::size_t sum = 0;
  for (const kernels::CacheShape& shape : shapes) {
    sum += (shape.has_values ? 2 : 1) * shape.heads * shape.row_bytes();
  }
  return sum;
}

std::size_t KvCache::state_bytes() const noexcept {
  return std::accumulate(state_values.begin(), state_values.end(), std::size_t{0}) * sizeof(float);
}

backend::Cache& KvCache::part_of(std::size_t block) const {
  const auto found = std::upper_bound(part_ends.begin(), part_ends.end(), block);
  return *parts.at(static_cast<std::size_t>(found - part_ends.begin()));
}

void run_model(const LoadedModel& model, std::span<const Segment> segments, std::size_t positions,
               backend::Batch batch) {
  const SharedRopes ropes = model.ropes_for(positions);
  backend::Segment single;  // a step of one sequence allocates nothing
  std::vector<backend::Segment> several(segments.size() > 1 ? segments.size() : 0);
  const std::span<backend::Segment> parts = segments.size() == 1 ? std::span(&single, 1) : std::span(several);
  batch.segments = parts;
  batch.ropes = ropes.view();
  for (std::size_t i = 0; i < model.weights.runners.size(); ++i) {
    for (std::size_t s = 0; s < segments.size(); ++s) {
      const Segment& segment = segments[s];
      parts[s] = {.cache = segment.cache->parts[i].get(),
                  .pages = segment.pages,
                  .past = segment.past,
                  .tokens = segment.tokens,
                  .state = segment.state,
                  .kept_tokens = segment.kept_tokens,
                  .kept_state = segment.kept_state};
    }
    model.weights.runners[i]->run(batch);
  }
}

std::vector<std::uint32_t> all_rows(std::size_t count) {
  std::vector<std::uint32_t> rows(count);
  std::iota(rows.begin(), rows.end(), 0U);
  return rows;
}

ObservedRun::ObservedRun(const LanguageModel& model, std::size_t context)
    : model_(LanguageModelAccess::loaded(model)), runner_(model_.host("calibration")) {
  if (context == 0 || context > model_.max_positions()) {
    throw UsageError(fmt::format("windows of {} tokens; this model can have 1 to {}", context, model_.max_positions()));
  }
  cache_ = KvCache(*model_.weights.program, CacheKind::float32, context, model_.weights.runners);
}

void ObservedRun::run(std::span<const TokenId> window, backend::InputObserver& observer) {
  if (window.empty() || window.size() > cache_.page_rows) {
    throw UsageError(fmt::format("a window of {} tokens; it can have 1 to {}", window.size(), cache_.page_rows));
  }
  model_.check_ids(window);
  const SharedRopes ropes = model_.ropes_for(window.size());
  const backend::Segment segment{.cache = cache_.parts.front().get(), .tokens = window.size()};
  work_.observer = &observer;
  runner_.embed(window, {&segment, 1}, work_);
  runner_.run_blocks(runner_.blocks(), window.size(), {&segment, 1}, ropes.view(), work_);
  runner_.show_output_input(work_, window.size());
}

}  // namespace imago::lm
