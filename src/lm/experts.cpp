// Mixtures of experts: each token goes to the few experts that the router likes best, and each expert multiplies the
// tokens it got together.

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/parallel.h"
#include "lm/decoder.h"

namespace imago::lm {

namespace {

using kernels::Product;
using models::Role;
using models::Traits;

constexpr std::size_t kTokensPerPart = 8;

/// The experts of one token, best first, with their weights; the lower number wins a draw.
void choose_experts(const Traits& traits, std::span<float> probabilities, std::span<std::size_t> chosen,
                    std::span<float> weights) {
  float sum = 0;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const auto best = std::max_element(probabilities.begin(), probabilities.end());
    chosen[i] = static_cast<std::size_t>(best - probabilities.begin());
    weights[i] = *best;
    sum += *best;
    *best = -1;  // taken
  }
  if (!traits.norm_expert_weights || !(sum > 0)) return;
  for (float& weight : weights) weight /= sum;
}

/// Gives each token at each of its experts a slot, expert after expert, tokens in order within one.
void assign_slots(const Traits& traits, std::size_t tokens, Workspace& work) {
  const std::span<std::size_t> firsts = sized(work.firsts, traits.experts + 1);
  const std::span<const std::size_t> chosen = std::span(work.chosen).first(tokens * traits.experts_used);
  const std::span<std::size_t> slot_of = sized(work.slot_of, chosen.size());
  std::fill(firsts.begin(), firsts.end(), 0);
  for (const std::size_t expert : chosen) ++firsts[expert + 1];
  std::partial_sum(firsts.begin(), firsts.end(), firsts.begin());
  for (std::size_t i = 0; i < chosen.size(); ++i) slot_of[i] = firsts[chosen[i]]++;
  // Each entry has moved on to the first slot of the next expert: shift them back.
  std::copy_backward(firsts.begin(), firsts.end() - 1, firsts.end());
  firsts[0] = 0;
}

}  // namespace

void route_tokens(const Traits& traits, std::span<float> probabilities, std::size_t tokens, Workspace& work) {
  const std::size_t used = traits.experts_used;
  const std::span<std::size_t> chosen = sized(work.chosen, tokens * used);
  const std::span<float> slot_weights = sized(work.slot_weights, tokens * used);
  for (std::size_t t = 0; t < tokens; ++t) {
    choose_experts(traits, probabilities.subspan(t * traits.experts, traits.experts), chosen.subspan(t * used, used),
                   slot_weights.subspan(t * used, used));
  }
  assign_slots(traits, tokens, work);
}

void run_experts(const Traits& traits, const Block& block, std::size_t index, std::span<const float> in,
                 std::size_t tokens, Workspace& work) {
  const std::size_t width = traits.width, used = traits.experts_used, slots = tokens * used;
  const std::span<float> scores = sized(work.scores, tokens * traits.experts);
  work.show({Role::router}, index, in, tokens);
  block.router.matrix->multiply(in, tokens, scores);
  kernels::softmax(scores, traits.experts);
  route_tokens(traits, scores, tokens, work);
  const std::span<const float> slot_weights = std::span(work.slot_weights).first(slots);
  const std::span<const std::size_t> slot_of = std::span(work.slot_of).first(slots);

  // A single token is what all of its experts read; several are gathered expert by expert.
  const bool alone = tokens == 1;
  std::span<const float> expert_in = in;
  if (!alone) {
    const std::span<float> gathered = sized(work.gathered, slots * width);
    parallel_for(tokens, kTokensPerPart, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin * used; i < end * used; ++i) {
        std::copy_n(in.data() + i / used * width, width, gathered.data() + slot_of[i] * width);
      }
    });
    expert_in = gathered;
  }

  const std::span<float> hidden = sized(work.gate, slots * traits.feed_forward);
  const std::span<float> up = sized(work.up, hidden.size());
  const std::span<float> results = sized(work.slot_results, slots * width);
  std::vector<Product>& products = work.products;
  const auto for_each_expert = [&](auto&& add) {
    products.clear();
    for (std::size_t expert = 0; expert < traits.experts; ++expert) {
      const std::size_t first = work.firsts[expert], count = work.firsts[expert + 1] - first;
      if (count != 0) add(expert, first, count);
    }
  };
  for_each_expert([&](std::size_t expert, std::size_t first, std::size_t count) {
    work.show({Role::gate, Role::up}, index, expert_in.subspan((alone ? 0 : first) * width, count * width), count,
              expert);
    products.push_back(feed_forward_product(
        traits, block.feed_forwards[expert], hidden.subspan(first * traits.feed_forward, count * traits.feed_forward),
        up.subspan(first * traits.feed_forward, count * traits.feed_forward), alone ? 0 : first, count));
  });
  kernels::multiply_all(products, expert_in, alone ? 1 : slots);
  for_each_expert([&](std::size_t expert, std::size_t first, std::size_t count) {
    work.show({Role::down}, index, hidden.subspan(first * traits.feed_forward, count * traits.feed_forward), count,
              expert);
    products.push_back({.matrix = &*block.feed_forwards[expert].down.matrix,
                        .y = results.subspan(first * width, count * width),
                        .first_token = first,
                        .tokens = count});
  });
  kernels::multiply_all(products, hidden, slots);

  const std::span<float> out = sized(work.branch, tokens * width);
  parallel_for(tokens, kTokensPerPart, [&](std::size_t begin, std::size_t end) {
    for (std::size_t t = begin; t < end; ++t) {
      const std::span<float> sum = out.subspan(t * width, width);
      kernels::clear(sum);
      for (std::size_t i = t * used; i < (t + 1) * used; ++i) {
        kernels::add_scaled(results.subspan(slot_of[i] * width, width), slot_weights[i], sum);
      }
    }
  });
}

}  // namespace imago::lm
