#include "lm/embedding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "imago/error.h"
#include "lm/forward.h"
#include "lm/language_model_state.h"

namespace imago {

namespace lm {

void Pooler::add(std::span<const float> rows) {
  const std::size_t width = values_.size(), count = rows.size() / width;
  if (count == 0) return;
  if (pooling_ == Pooling::mean) {
    for (std::size_t i = 0; i < rows.size(); ++i) values_[i % width] += static_cast<double>(rows[i]);
  } else if (pooling_ == Pooling::last || tokens_ == 0) {
    std::ranges::copy(pooling_ == Pooling::last ? rows.last(width) : rows.first(width), values_.begin());
  }
  tokens_ += count;
}

std::vector<float> Pooler::result() const {
  const double parts = pooling_ == Pooling::mean ? static_cast<double>(tokens_) : 1;
  std::vector<float> made(values_.size());
  std::ranges::transform(values_, made.begin(), [&](double value) { return static_cast<float>(value / parts); });
  return made;
}

void normalize(std::span<float> vector) noexcept {
  const double length = std::sqrt(std::inner_product(vector.begin(), vector.end(), vector.begin(), 0.0));
  if (length == 0) return;
  for (float& value : vector) value = static_cast<float>(static_cast<double>(value) / length);
}

}  // namespace lm

std::vector<float> hidden_states(const LanguageModel& model, std::span<const TokenId> ids) {
  constexpr std::size_t kBatch = 512;
  const lm::LoadedModel& loaded = LanguageModelAccess::loaded(model);
  if (ids.empty()) throw UsageError("there are no tokens to embed");
  loaded.check_ids(ids);
  loaded.check_context(ids.size());
  const lm::KvCache cache(*loaded.weights.program, CacheKind::float32, ids.size(), loaded.weights.runners);
  const std::size_t width = loaded.weights.traits.width;
  // An encoder sees the whole text at once.
  const std::size_t batch = loaded.weights.traits.causal ? kBatch : ids.size();
  backend::Workspace work;
  std::vector<float> hidden(ids.size() * width);
  for (std::size_t first = 0; first < ids.size(); first += batch) {
    const std::size_t count = std::min(batch, ids.size() - first);
    const lm::Segment segment{.cache = &cache, .past = first, .tokens = count};
    lm::run_model(loaded, {&segment, 1}, first + count,
                  {.ids = ids.subspan(first, count), .segments = {}, .work = work, .all_rows = true});
    loaded.weights.runners.back()->compute_hidden(work, 0, count,
                                                  std::span(hidden).subspan(first * width, count * width));
  }
  return hidden;
}

}  // namespace imago
