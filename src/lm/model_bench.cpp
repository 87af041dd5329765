// Speed of a whole model.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <vector>

#include "imago/error.h"
#include "imago/lm.h"
#include "lm/forward.h"
#include "lm/language_model_state.h"

namespace imago {

namespace {

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Median and standard deviation of tokens per second.
ModelBenchResult summarize(std::string test, std::size_t tokens, std::vector<double> seconds) {
  ModelBenchResult result{.test = std::move(test)};
  std::vector<double> rates;
  for (const double s : seconds) rates.push_back(static_cast<double>(tokens) / s);
  std::sort(rates.begin(), rates.end());
  const std::size_t half = rates.size() / 2;
  result.tokens_per_second = rates.size() % 2 == 1 ? rates[half] : (rates[half - 1] + rates[half]) / 2;
  double mean = 0, squares = 0;
  for (const double rate : rates) mean += rate / static_cast<double>(rates.size());
  for (const double rate : rates) squares += (rate - mean) * (rate - mean);
  if (rates.size() > 1) result.stddev = std::sqrt(squares / static_cast<double>(rates.size() - 1));
  return result;
}

}  // namespace

std::vector<ModelBenchResult> bench_model(const LanguageModel& model, const ModelBenchOptions& options) {
  const lm::LoadedModel& loaded = LanguageModelAccess::loaded(model);
  const std::size_t longest = std::max(options.prompt, options.generate);
  if (options.repeats < 1) throw UsageError(fmt::format("{} repeats; it needs at least 1", options.repeats));
  if (longest == 0) throw UsageError("nothing to measure: neither prompt nor generated tokens");
  const std::size_t room = std::min(loaded.max_positions(), std::max<std::size_t>(1, model.context()));
  if (longest > room) {
    throw UsageError(fmt::format("{} tokens do not fit the context of {} of this model", longest, room));
  }
  // The same tokens every time: speed hardly depends on them, but a mixture of experts does on which they are.
  std::mt19937 random(1);
  std::vector<TokenId> ids(longest);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % model.vocabulary());
  Sequence sequence(model, {.context = longest});

  std::vector<ModelBenchResult> results;
  const auto repeats = static_cast<std::size_t>(options.repeats);
  const auto measure = [&](std::string test, std::size_t tokens, const std::function<void()>& pass) {
    std::vector<double> seconds;
    for (std::size_t i = 0; i <= repeats; ++i) {
      if (options.progress) options.progress(test, i, repeats + 1);
      sequence.truncate(0);
      const double s = seconds_of(pass);
      if (i != 0) seconds.push_back(s);  // the first brings memory in and grows the buffers
    }
    results.push_back(summarize(std::move(test), tokens, std::move(seconds)));
  };
  if (options.prompt != 0) {
    measure(fmt::format("pp{}", options.prompt), options.prompt,
            [&] { sequence.append(std::span(ids).first(options.prompt)); });
  }
  if (options.generate != 0) {
    // As generation does: an accelerator chooses the tokens, and the logits stay on it.
    const bool chooses = SequenceAccess::chooses(sequence);
    measure(fmt::format("tg{}", options.generate), options.generate, [&] {
      for (std::size_t i = 0; i < options.generate; ++i) {
        const std::span<const TokenId> id = std::span(ids).subspan(i, 1);
        if (chooses) {
          SequenceAccess::append(sequence, id, {});
        } else {
          sequence.append(id);
        }
      }
    });
    const lm::KvCache cache(*loaded.weights.program, CacheKind::float16, 1);
    const double cached = static_cast<double>(cache.token_bytes()) * static_cast<double>(options.generate + 1) / 2;
    ModelBenchResult& result = results.back();
    result.gb_per_s = 1e-9 * (static_cast<double>(loaded.weights.step_bytes) + cached) * result.tokens_per_second;
  }
  return results;
}

}  // namespace imago
