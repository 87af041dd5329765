// Choosing the next token. The steps and their order are those of llama.cpp's usual chain: bias, penalties, top-k,
// typical, top-p, min-p, temperature. Each of the cuts sees the probabilities of what the one before it left.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <limits>
#include <unordered_map>

#include "imago/error.h"
#include "imago/lm.h"
#include "lm/sampler_options.h"
#include "lm/sequence_access.h"
#include "lm/top_candidates.h"
#include "weights/random.h"

namespace imago {

namespace {

using lm::Candidate;
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
  std::sort(candidates.begin(), candidates.end(), lm::comes_before);
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
    lm::select_top(logits, k, candidates);
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
  lm::check_sampler_options(options);
  state_ = std::make_unique<State>(options);
}
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;
Sampler::~Sampler() = default;

TokenId Sampler::sample(std::span<const float> logits) {
  if (logits.empty()) throw UsageError("there are no logits to sample from");
  const std::span<const float> adjusted = state_->adjusted(logits);
  const std::optional<TokenId> best = lm::most_likely(adjusted);
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
  const std::optional<TokenId> best = lm::most_likely(logits);
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
  lm::select_top(logits, count, top);
  std::vector<TokenProbability> result;
  for (const Candidate& candidate : top) result.push_back(probability(candidate.id));
  const bool listed =
      std::any_of(top.begin(), top.end(), [&](const Candidate& candidate) { return candidate.id == chosen; });
  if (chosen && !listed) result.push_back(probability(*chosen));
  return result;
}

}  // namespace imago
