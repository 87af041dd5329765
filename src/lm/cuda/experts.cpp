// Mixtures of experts. The host chooses the experts, from probabilities that come over in the middle of a block: a wait
// per block, and in return it runs the same code as the host's decoder, and only experts that are used are read.

#include <algorithm>
#include <cstring>
#include <vector>

#include "lm/cuda/combine.h"
#include "lm/cuda/pass.h"

namespace imago::lm::cuda {

using kernels::cuda::GpuProduct;
using models::Traits;

void Pass::queue_experts(const BlockView& block) {
  const Traits& traits = weights_.traits();
  const std::size_t width = traits.width, used = traits.experts_used, slots = tokens_ * used;
  // Routers decide much and cost little: float32, whatever the rest is computed in.
  const FeedForwardView& any = block.feed_forwards.front();
  const Activations in = normed(block.feed_forward_norm, 0, tokens_, {&any.gate, &any.up}, true);
  const GpuProduct route{.matrix = block.router.matrix, .y = scores_.data()};
  kernels::cuda::multiply({&route, 1}, {.x = in.x, .count = tokens_, .cols = width}, kernels::Arithmetic::exact,
                          *scratch_, stream_);
  kernels::cuda::softmax(scores_.data(), tokens_, traits.experts, 1, 0, stream_);
  const std::span<float> scores(reinterpret_cast<float*>(host_scores_.bytes().data()), tokens_ * traits.experts);
  stream_.copy_out(scores_.data(), std::as_writable_bytes(scores));
  stream_.wait();
  route_tokens(traits, scores, tokens_, routing_);

  // Three arrays of `slots` numbers: the token of each slot, the slots of each token, their weights.
  auto* const host_tokens = reinterpret_cast<std::int32_t*>(host_slots_.bytes().data());
  auto* const host_slot_of = host_tokens + slots;
  for (std::size_t i = 0; i < slots; ++i) {
    host_slot_of[i] = static_cast<std::int32_t>(routing_.slot_of[i]);
    host_tokens[routing_.slot_of[i]] = static_cast<std::int32_t>(i / used);
  }
  std::memcpy(host_slot_of + slots, routing_.slot_weights.data(), slots * sizeof(float));
  stream_.copy_in(host_slots_.bytes().first(3 * slots * sizeof(float)), slots_.data());
  const auto* const slot_tokens = reinterpret_cast<const std::int32_t*>(slots_.data());

  // A single token is what all of its experts read; several are gathered expert by expert.
  const bool alone = tokens_ == 1;
  if (!alone) kernels::cuda::gather_rows(in.x, slot_tokens, slots, width, gathered_.data(), stream_);
  std::vector<GpuProduct> shared;
  for (std::size_t expert = 0; expert < traits.experts; ++expert) {
    const std::size_t first = routing_.firsts[expert], count = routing_.firsts[expert + 1] - first;
    if (count == 0) continue;
    const GpuProduct product =
        hidden_product(block.feed_forwards[expert], hidden_.data() + first * traits.feed_forward);
    if (alone) {
      shared.push_back(product);
    } else {
      multiply({&product, 1}, {.x = gathered_.data() + first * width, .count = count, .cols = width});
    }
  }
  if (alone) multiply(shared, in);
  for (std::size_t expert = 0; expert < traits.experts; ++expert) {
    const std::size_t first = routing_.firsts[expert], count = routing_.firsts[expert + 1] - first;
    if (count == 0) continue;
    const GpuProduct product{.matrix = block.feed_forwards[expert].down.matrix, .y = results_.data() + first * width};
    multiply({&product, 1},
             {.x = hidden_.data() + first * traits.feed_forward, .count = count, .cols = traits.feed_forward});
  }
  combine_experts({.results = results_.data(),
                   .slot_of = slot_tokens + slots,
                   .weights = reinterpret_cast<const float*>(slot_tokens + 2 * slots),
                   .out = branch_.data(),
                   .tokens = tokens_,
                   .used = used,
                   .width = width},
                  stream_);
  end_branch(block.feed_forward_post_norm);
}

}  // namespace imago::lm::cuda
