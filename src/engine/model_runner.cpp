#include "engine/model_runner.h"

#include <algorithm>
#include <limits>

#include "backend/memory.h"
#include "base/line_vector.h"
#include "imago/error.h"

namespace imago::engine {

namespace {

constexpr std::size_t kHostPromptTokens = 512;
constexpr std::size_t kUsualRequests = 256;  // that memory is asked for, if the caller does not say

// States are large: a quarter of what is given to pages holds them.
constexpr std::size_t kStateShare = 4;
// Each running request has one slot, and cached prefixes have the others.
constexpr std::size_t kStatesOfRequest = 4;

/// What half of the free memory holds, on the device that has least.
std::size_t pages_that_fit(const lm::LoadedModel& model, const lm::KvCache& sizes, std::size_t page_bytes) {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const auto& runner : model.weights.runners) {
    const backend::BlockRange blocks = runner->blocks();
    const std::uint64_t bytes = page_bytes * (blocks.end - blocks.begin) / sizes.shapes.size();
    if (bytes == 0) continue;
    least = std::min(least, backend::free_memory(runner->device()->name()) / 2 / bytes);
  }
  return least;
}

std::size_t context_of(const lm::LoadedModel& model, const EngineOptions& options) {
  const std::size_t context = options.context != 0 ? options.context : model.weights.traits.context;
  model.check_context(context);
  return context;
}

std::size_t pages_of(const lm::LoadedModel& model, const EngineOptions& options, std::size_t context) {
  const std::size_t least = (context + kPageTokens - 1) / kPageTokens;
  const lm::KvCache sizes(*model.weights.program, options.cache, kPageTokens);
  const std::size_t page_bytes = kPageTokens * sizes.token_bytes();
  std::size_t pages = 0;
  if (page_bytes == 0) {  // nothing but states
    pages = least * kUsualRequests;
  } else if (options.cache_bytes) {
    pages = static_cast<std::size_t>(*options.cache_bytes / page_bytes);
  } else if (!model.weights.traits.causal) {
    pages = kHostPromptTokens;  // a step may have as many texts
  } else {
    // One more than requests need: a prefix that ends within a page is copied from there.
    const std::size_t requests = options.parallel != 0 ? options.parallel : kUsualRequests;
    const std::size_t fitting = pages_that_fit(model, sizes, page_bytes);
    pages = least > fitting / requests ? fitting : least * requests + 1;
  }
  return std::clamp<std::size_t>(pages, least, std::numeric_limits<Page>::max());
}

std::size_t states_of(const lm::LoadedModel& model, const EngineOptions& options) {
  const lm::KvCache sizes(*model.weights.program, options.cache, kPageTokens);
  const std::size_t bytes = sizes.state_bytes();
  if (bytes == 0) return 0;
  const std::size_t fitting = options.cache_bytes ? static_cast<std::size_t>(*options.cache_bytes / bytes)
                                                  : pages_that_fit(model, sizes, bytes);
  const std::size_t requests = options.parallel != 0 ? options.parallel : kUsualRequests;
  const std::size_t least = options.parallel != 0 ? requests + 1 : 2;
  return std::max(least, std::min(fitting / kStateShare, kStatesOfRequest * requests));
}

}  // namespace

ModelRunner::ModelRunner(const LanguageModel& model, const EngineOptions& options)
    : model_(LanguageModelAccess::loaded(model)),
      kind_(options.cache),
      context_(context_of(model_, options)),
      pages_(pages_of(model_, options, context_)),
      states_(states_of(model_, options)),
      cache_(*model_.weights.program, kind_, kPageTokens, model_.weights.runners, pages_, states_ + 1) {
  if (options.prompt_tokens == std::size_t{0}) throw UsageError("a step of 0 prompt tokens; it needs at least 1");
}

std::size_t ModelRunner::usual_prompt_tokens() const noexcept {
  return model_.weights.runners.front()->device()->is_host() ? kHostPromptTokens : backend::kDeviceBatch;
}

void ModelRunner::run(const Step& step) {
  segments_.clear();
  std::size_t positions = 0, singles = 0;
  for (const StepSegment& part : step.segments) {
    if (part.answer) singles += part.tokens;
    segments_.push_back({.cache = &cache_,
                         .past = part.past,
                         .tokens = part.tokens,
                         .pages = part.pages,
                         .state = part.state,
                         .kept_tokens = part.kept_tokens,
                         .kept_state = part.kept_state});
    positions = std::max(positions, part.past + part.tokens);
  }
  lm::run_model(model_, segments_, positions,
                {.ids = step.ids,
                 .segments = {},
                 .work = work_,
                 .rows = step.rows,
                 .logits = step.logits,
                 .choices = step.choices,
                 .chosen = step.chosen,
                 .singles = singles});
}

void ModelRunner::copy(Page from, Page to, std::size_t tokens) {
  for (const auto& part : cache_.parts) part->copy(from, to, tokens);
}

void ModelRunner::copy_state(Page from, Page to) {
  for (const auto& part : cache_.parts) part->copy_state(from, to);
}

std::span<const float> ModelRunner::hidden(std::span<const TokenId> ids, std::span<const TextPiece> pieces) {
  segments_.clear();
  std::size_t positions = 0;
  for (const TextPiece& piece : pieces) {
    segments_.push_back({.cache = &cache_,
                         .past = piece.past,
                         .tokens = piece.tokens,
                         .pages = piece.pages,
                         .state = static_cast<std::uint32_t>(states_),
                         .second_text = piece.second});
    positions = std::max(positions, piece.past + piece.tokens);
  }
  lm::run_model(model_, segments_, positions,
                {.ids = ids, .segments = {}, .work = work_, .all_rows = true, .singles = 0});
  const std::span<float> rows = sized(hidden_, ids.size() * width());
  model_.weights.runners.back()->compute_hidden(work_, 0, ids.size(), rows);
  return rows;
}

std::vector<float> ModelRunner::apply_head(std::span<const float> pooled) {
  std::vector<float> results(model_.weights.traits.head.results);
  model_.weights.runners.back()->run_head(pooled, work_, results);
  return results;
}

lm::SequenceOwner ModelRunner::owner() const noexcept {
  return {model_.weights.fingerprint, kind_, model_.weights.traits.vocabulary};
}

}  // namespace imago::engine
