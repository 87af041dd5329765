#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <deque>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

#include "imago/error.h"
#include "imago/lm.h"
#include "lm/language_model_state.h"
#include "weights/random.h"

namespace imago {

namespace {

void check(bool good, std::string_view option, double value, std::string_view allowed) {
  if (!good) throw UsageError(fmt::format("{} is {}; it can be {}", option, value, allowed));
}

/// Throws UsageError that names the option, the value found and those allowed.
void check_sampler_options(const SamplerOptions& options) {
  const auto within = [](float value, float low, float high) { return value >= low && value <= high; };  // NaN: false
  check(within(options.temperature, 0, 100), "temperature", options.temperature, "0 to 100");
  check(options.top_k >= 0, "top_k", options.top_k, "0 (all) or more");
  check(within(options.top_p, 0, 1) && options.top_p > 0, "top_p", options.top_p, "above 0, up to 1 (all)");
  check(within(options.min_p, 0, 1), "min_p", options.min_p, "0 (all) to 1");
  check(within(options.typical_p, 0, 1) && options.typical_p > 0, "typical_p", options.typical_p,
        "above 0, up to 1 (off)");
  check(within(options.repeat_penalty, 0.01f, 100), "repeat_penalty", options.repeat_penalty, "0.01 to 100 (1: off)");
  check(within(options.presence_penalty, -100, 100), "presence_penalty", options.presence_penalty, "-100 to 100");
  check(within(options.frequency_penalty, -100, 100), "frequency_penalty", options.frequency_penalty, "-100 to 100");
  check(options.penalty_tokens >= -1, "penalty_tokens", options.penalty_tokens, "-1 (all) or more");
  for (const auto& [id, bias] : options.bias) {
    check(id >= 0, "bias: a token id", id, "0 or more");
    const bool good = std::isfinite(bias) || (std::isinf(bias) && bias < 0);
    check(good, fmt::format("bias of token {}", id), bias, "any finite number, or -infinity to forbid it");
  }
}

struct Candidate {
  TokenId id;
  float logit;
  double probability = 0;  ///< filled by who needs it
};

/// Larger logits first, of equal ones the lower id.
bool comes_before(const Candidate& a, const Candidate& b) noexcept {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Keeps the `count` first of them, in any order, and returns the logit that a new one must exceed.
float cut(std::vector<Candidate>& chosen, std::size_t count) {
  const auto last = chosen.begin() + static_cast<std::ptrdiff_t>(count) - 1;
  std::nth_element(chosen.begin(), last, chosen.end(), comes_before);
  chosen.resize(count);
  return chosen.back().logit;
}

/// Calls `look(i)` for the logits above `threshold`, which may rise meanwhile. NaN is not above anything. A block is
/// compared at once, which the compiler turns into a few vector instructions; nearly all blocks hold none.
template <class Look>
void each_above(std::span<const float> logits, const float& threshold, Look look) {
  constexpr std::size_t kBlock = 64;
  for (std::size_t from = 0; from < logits.size(); from += kBlock) {
    const std::span<const float> block = logits.subspan(from, std::min(kBlock, logits.size() - from));
    const float limit = threshold;
    int above = 0;
    for (const float logit : block) above |= logit > limit ? 1 : 0;
    if (above == 0) continue;
    for (std::size_t i = 0; i < block.size(); ++i) {
      if (block[i] > threshold) look(from + i);
    }
  }
}

/// The `count` largest, in that order, into `chosen`. NaN and -infinity are left out, so there may be fewer.
/// About one comparison per logit as long as `count` is small against them.
void select_top(std::span<const float> logits, std::size_t count, std::vector<Candidate>& chosen) {
  chosen.clear();
  count = std::min(count, logits.size());
  if (count == 0) return;
  // Ids rise, so one that equals the last chosen loses to it: only larger ones are of interest. The room beyond
  // `count` makes cuts rare.
  const std::size_t room = 2 * count + 64;
  float threshold = kNever;
  each_above(logits, threshold, [&](std::size_t i) {
    chosen.push_back({static_cast<TokenId>(i), logits[i]});
    if (chosen.size() == room) threshold = cut(chosen, count);
  });
  if (chosen.size() > count) cut(chosen, count);
  std::sort(chosen.begin(), chosen.end(), comes_before);
}

/// The most likely token; none if all logits are NaN or -infinity.
std::optional<TokenId> most_likely(std::span<const float> logits) noexcept {
  std::optional<TokenId> best;
  float highest = kNever;
  each_above(logits, highest, [&](std::size_t i) {
    highest = logits[i];
    best = static_cast<TokenId>(i);
  });
  return best;
}

using Candidates = std::vector<Candidate>;

/// Probabilities of the candidates alone. REQUIRES: the largest logit first, and any.
void fill_probabilities(Candidates& candidates, double temperature) {
  const double highest = candidates.front().logit;
  double sum = 0;
  for (Candidate& candidate : candidates) {
    candidate.probability = std::exp((candidate.logit - highest) / temperature);
    sum += candidate.probability;
  }
  for (Candidate& candidate : candidates) candidate.probability /= sum;
}

/// Keeps the fewest of the first candidates whose probabilities reach `wanted`.
void keep_mass(Candidates& candidates, double wanted) {
  double sum = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    sum += candidates[i].probability;
    if (sum >= wanted) {
      candidates.resize(i + 1);
      return;
    }
  }
}

/// Keeps those whose surprise is nearest to the expected one, until they reach `wanted`.
void keep_typical(Candidates& candidates, double wanted) {
  fill_probabilities(candidates, 1);
  double entropy = 0;
  for (const Candidate& candidate : candidates) {
    if (candidate.probability > 0) entropy -= candidate.probability * std::log(candidate.probability);
  }
  const auto oddness = [&](const Candidate& candidate) {
    return std::fabs(-std::log(candidate.probability) - entropy);
  };
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](const Candidate& a, const Candidate& b) { return oddness(a) < oddness(b); });
  keep_mass(candidates, wanted);
  std::sort(candidates.begin(), candidates.end(), comes_before);
}

void keep_likely(Candidates& candidates, double share) {
  const double lowest = candidates.front().logit + std::log(share);
  const auto end = std::find_if(candidates.begin(), candidates.end(),
                                [&](const Candidate& candidate) { return candidate.logit < lowest; });
  candidates.erase(std::max(end, candidates.begin() + 1), candidates.end());
}

}  // namespace

struct Sampler::State {
  explicit State(const SamplerOptions& given) : options(given), seed(given.seed) {
    if (seed == 0) seed = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  }

  bool penalizes() const noexcept {
    return options.penalty_tokens != 0 &&
           (options.repeat_penalty != 1 || options.presence_penalty != 0 || options.frequency_penalty != 0);
  }

  void remember(TokenId id) {
    if (!penalizes()) return;
    recent.push_back(id);
    ++counts[id];
    if (options.penalty_tokens < 0 || recent.size() <= static_cast<std::size_t>(options.penalty_tokens)) return;
    const auto oldest = counts.find(recent.front());
    if (--oldest->second == 0) counts.erase(oldest);
    recent.pop_front();
  }

  /// The logits after bias and penalties; those given where there are none.
  std::span<const float> adjusted(std::span<const float> logits) {
    if (options.bias.empty() && counts.empty()) return logits;
    work.assign(logits.begin(), logits.end());
    for (const auto& [id, bias] : options.bias) {
      if (static_cast<std::size_t>(id) >= work.size()) {
        throw UsageError(fmt::format("bias: token {} is outside the vocabulary of {}", id, work.size()));
      }
      work[static_cast<std::size_t>(id)] += bias;
    }
    for (const auto& [id, count] : counts) {
      if (id < 0 || static_cast<std::size_t>(id) >= work.size()) continue;
      float& logit = work[static_cast<std::size_t>(id)];
      logit = logit > 0 ? logit / options.repeat_penalty : logit * options.repeat_penalty;
      logit -= static_cast<float>(count) * options.frequency_penalty + options.presence_penalty;
    }
    return work;
  }

  /// Uniform in [0, 1): the 53 high bits of splitmix64's number `draws` after the seed, the same on every machine.
  double draw() noexcept { return static_cast<double>(derive_seed(seed, draws++) >> 11) * 0x1p-53; }

  TokenId choose(std::span<const float> logits) {
    const std::size_t k = options.top_k == 0 ? logits.size() : static_cast<std::size_t>(options.top_k);
    select_top(logits, k, candidates);
    if (options.typical_p < 1) keep_typical(candidates, options.typical_p);
    if (options.top_p < 1) {
      fill_probabilities(candidates, 1);
      keep_mass(candidates, options.top_p);
    }
    if (options.min_p > 0) keep_likely(candidates, options.min_p);
    fill_probabilities(candidates, options.temperature);
    double left = draw();
    for (const Candidate& candidate : candidates) {
      left -= candidate.probability;
      if (left < 0) return candidate.id;
    }
    // Rounding may leave a little over: it belongs to the last one that can be chosen at all.
    const auto possible = std::find_if(candidates.rbegin(), candidates.rend(),
                                       [](const Candidate& candidate) { return candidate.probability > 0; });
    return possible->id;
  }

  SamplerOptions options;
  std::uint64_t seed;
  std::uint64_t draws = 0;
  std::deque<TokenId> recent;
  std::unordered_map<TokenId, int> counts;  // of those in `recent`
  std::vector<float> work;
  Candidates candidates;
};

Sampler::Sampler(const SamplerOptions& options) {
  check_sampler_options(options);
  state_ = std::make_unique<State>(options);
}
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;
Sampler::~Sampler() = default;

TokenId Sampler::sample(std::span<const float> logits) {
  if (logits.empty()) throw UsageError("there are no logits to sample from");
  const std::span<const float> adjusted = state_->adjusted(logits);
  const std::optional<TokenId> best = most_likely(adjusted);
  if (!best) throw UsageError("no token can follow: all logits are NaN or -infinity, by the model or by bias");
  // An infinite logit leaves no room for others, and no arithmetic either.
  const bool certain = std::isinf(adjusted[static_cast<std::size_t>(*best)]);
  const TokenId id = state_->options.temperature == 0 || certain ? *best : state_->choose(adjusted);
  state_->remember(id);
  return id;
}

void Sampler::accept(TokenId id) { state_->remember(id); }

bool SamplerAccess::needs_logits(const Sampler& sampler) noexcept {
  constexpr int kTopK = 256;  // what devices sort
  const SamplerOptions& options = sampler.state_->options;
  if (sampler.state_->penalizes() || !options.bias.empty()) return true;
  return options.temperature != 0 && (options.typical_p < 1 || options.top_k == 0 || options.top_k > kTopK);
}

backend::TokenChoice SamplerAccess::next_choice(Sampler& sampler) {
  const SamplerOptions& options = sampler.state_->options;
  if (options.temperature == 0) return {};
  return {.temperature = options.temperature,
          .top_k = options.top_k,
          .top_p = options.top_p,
          .min_p = options.min_p,
          .random = sampler.state_->draw()};
}

std::vector<TokenProbability> top_log_probabilities(std::span<const float> logits, std::size_t count,
                                                    std::optional<TokenId> chosen) {
  if (chosen && (*chosen < 0 || static_cast<std::size_t>(*chosen) >= logits.size())) {
    throw UsageError(fmt::format("token {} is outside the vocabulary of {}", *chosen, logits.size()));
  }
  const std::optional<TokenId> best = most_likely(logits);
  const double highest = best ? logits[static_cast<std::size_t>(*best)] : 0;
  double sum = 0;
  for (const float logit : logits) sum += std::isnan(logit) ? 0 : std::exp(logit - highest);
  const double shift = highest + std::log(sum);
  const auto probability = [&](TokenId id) {
    const float logit = logits[static_cast<std::size_t>(id)];
    const bool possible = logit > -std::numeric_limits<float>::infinity();
    return TokenProbability{id, possible ? static_cast<float>(logit - shift) : -std::numeric_limits<float>::infinity()};
  };
  std::vector<Candidate> top;
  select_top(logits, count, top);
  std::vector<TokenProbability> result;
  for (const Candidate& candidate : top) result.push_back(probability(candidate.id));
  const bool listed =
      std::any_of(top.begin(), top.end(), [&](const Candidate& candidate) { return candidate.id == chosen; });
  if (chosen && !listed) result.push_back(probability(*chosen));
  return result;
}

}  // namespace imago
