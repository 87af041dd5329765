#include "precision/output_probe.h"

#include <algorithm>
#include <cassert>

#include "base/parallel.h"
#include "lm/prediction.h"

namespace imago::precision {

namespace {

/// Rows of logits held at a time.
constexpr std::size_t kLogitRows = 64;

}  // namespace

OutputProbe::OutputProbe(const LanguageModel& model, std::span<const TokenId> ids, const ProbeOptions& options)
    : model_(LanguageModelAccess::loaded(model)),
      runner_(model_.host("a sweep")),
      ids_(ids.begin(), ids.end()),
      context_(options.context),
      windows_(ids.size() / options.context),
      cache_(*model_.weights.program, CacheKind::float32, options.context, model_.weights.runners),
      ropes_(model_.ropes_for(options.context)),
      some_logits_(kLogitRows * vocabulary()) {
  // Predictions are scored from the middle of a window on (imago/lm.h); the last token has no successor in its window.
  const std::size_t first = options.first_position.value_or(context_ / 2), last = context_ - 1;
  const std::size_t row_bytes = vocabulary() * sizeof(float);
  const std::size_t wanted = std::max<std::size_t>(1, options.logit_bytes / row_bytes / windows_);
  const std::size_t stride = std::max<std::size_t>(1, (last - first + wanted - 1) / wanted);
  for (std::size_t row = first; row < last; row += stride) rows_.push_back(row);
  logits_.resize(windows_ * rows_.size() * vocabulary());
  if (options.keep_inputs) inputs_.resize(windows_ * blocks() * window_values());
  model_.check_ids(ids_);
  std::vector<double> surprises(windows_ * rows_.size());
  for (std::size_t window = 0; window < windows_; ++window) {
    run_and_remember(window);
    for_each_row(window, [&](std::size_t place, std::span<const float> logits, std::size_t target) {
      std::ranges::copy(logits, reference(place).begin());
      lm::Prediction prediction;
      prediction.set(logits);
      surprises[place] = -prediction.log_probability(target);
    });
  }
  for (const double one : surprises) surprise_ += one / static_cast<double>(surprises.size());
}

void OutputProbe::embed(std::size_t window) {
  const backend::Segment segment{.cache = cache_.parts.front().get(), .tokens = context_};
  runner_.embed(std::span(ids_).subspan(window * context_, context_), {&segment, 1}, work_);
}

void OutputProbe::run_blocks(backend::BlockRange range) {
  const backend::Segment segment{.cache = cache_.parts.front().get(), .tokens = context_};
  runner_.run_blocks(range, context_, {&segment, 1}, ropes_.view(), work_);
}

void OutputProbe::run_and_remember(std::size_t window) {
  embed(window);
  for (std::size_t block = 0; block < blocks(); ++block) {
    if (!inputs_.empty()) std::copy_n(work_.stream().begin(), window_values(), input(window, block).begin());
    run_blocks({block, block + 1});
  }
}

/// Calls visit(place, logits, target) for the compared rows of the window that ran last, several at once from the pool.
template <class Visit>
void OutputProbe::for_each_row(std::size_t window, Visit&& visit) {
  // Only the compared rows go through the output matrix.
  const std::size_t width = model_.weights.traits.width;
  const std::vector<float> all(work_.stream().begin(),
                               work_.stream().begin() + static_cast<std::ptrdiff_t>(window_values()));
  for (std::size_t begin = 0; begin < rows_.size(); begin += kLogitRows) {
    const std::size_t count = std::min(kLogitRows, rows_.size() - begin);
    for (std::size_t i = 0; i < count; ++i) {
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(rows_[begin + i] * width), width,
                  work_.stream().begin() + static_cast<std::ptrdiff_t>(i * width));
    }
    runner_.compute_logits(work_, 0, count, std::span(some_logits_).first(count * vocabulary()));
    parallel_for_dynamic(count, 4, [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) {
        visit(window * rows_.size() + begin + i,
              std::span<const float>(some_logits_).subspan(i * vocabulary(), vocabulary()),
              static_cast<std::size_t>(ids_[window * context_ + rows_[begin + i] + 1]));
      }
    });
  }
}

void OutputProbe::rebase() {
  for (std::size_t window = 0; window < windows_; ++window) run_and_remember(window);
}

OutputProbe::Outcome OutputProbe::measure(std::size_t first_block) {
  assert(first_block == 0 || !inputs_.empty());
  std::vector<Outcome> outcomes(windows_ * rows_.size());
  // An untied output reads what the last block writes, so that block runs again.
  const std::size_t from = std::min(first_block, blocks() - 1);
  for (std::size_t window = 0; window < windows_; ++window) {
    if (first_block == 0) {
      embed(window);
    } else {
      std::ranges::copy(input(window, from), sized(work_.stream(), window_values()).begin());
    }
    run_blocks({from, blocks()});
    for_each_row(window, [&](std::size_t place, std::span<const float> logits, std::size_t target) {
      lm::Prediction before, now;
      before.set(reference(place));
      now.set(logits);
      outcomes[place] = {before.divergence_of(now), -now.log_probability(target)};
    });
  }
  Outcome mean;
  for (const Outcome& one : outcomes) {
    mean.divergence += one.divergence / static_cast<double>(outcomes.size());
    mean.surprise += one.surprise / static_cast<double>(outcomes.size());
  }
  return mean;
}

}  // namespace imago::precision
