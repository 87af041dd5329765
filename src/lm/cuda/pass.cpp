#include "lm/cuda/pass.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace imago::lm::cuda {

namespace {

using kernels::Arithmetic;
using kernels::cuda::GpuProduct;
using kernels::cuda::kMatVecTokens;
using kernels::cuda::padded_cols;
using kernels::cuda::TokenPlaces;
using models::Traits;

/// Logits that are held at a time: 64 MiB, but the rows of a step at least.
constexpr std::size_t kLogits = std::size_t{16} << 20;

template <class T>
bool grow(Array<T>& array, Device& device, std::size_t count) {
  if (count <= array.size()) return false;
  array.reserve(device, count);
  return true;
}

TokenPlaces places_of(const Places& places, const PlaceGroup& group) {
  return {.sequence = places.sequences() == nullptr ? nullptr : places.sequences() + group.first,
          .position = places.positions() + group.first,
          .tokens = group.tokens,
          .longest = group.longest,
          .separate = !places.single()};
}

}  // namespace

Pass::Pass(const Weights& weights)
    : weights_(weights),
      stream_(weights.device()),
      places_(weights.device()),
      step_scratch_(weights.device()),
      prompt_scratch_(weights.device()) {}

bool Pass::few(std::size_t tokens) const noexcept { return weights_.options().fast && tokens <= kMatVecTokens; }

std::size_t Pass::most_logit_rows() const noexcept {
  return std::max(kMatVecTokens, kLogits / weights_.traits().vocabulary);
}

bool Pass::reserve(std::span<const Segment> segments, std::size_t tokens, std::size_t rows,
                   const kernels::RopeTable* rope) {
  const Traits& traits = weights_.traits();
  Device& device = *weights_.device();
  tokens_ = tokens;
  bool moved = places_.reserve(weights_.blocks().size(), segments.size(), tokens);
  moved |= grow(logits_, device, std::min(rows, most_logit_rows()) * traits.vocabulary);
  if (rope != nullptr && rope->positions() > rope_positions_) {
    rope_positions_ = rope->positions();
    rope_ = Array<float>(device, rope_positions_ * rope->rotary());
    device.upload(std::as_bytes(std::span(rope->at(0).data(), rope_positions_ * rope->rotary())), rope_.buffer(), 0);
    moved = true;
  }
  if (tokens <= room_) return moved;
  room_ = tokens;
  const std::size_t q_values = traits.heads * traits.head_values, k_values = traits.kv_heads * traits.head_values;
  const std::size_t slots = tokens * std::max<std::size_t>(1, traits.experts_used);
  for (Array<float>* const one : {&x_, &normed_, &branch_}) grow(*one, device, tokens * traits.width);
  for (Array<float>* const one : {&q_, &attended_}) grow(*one, device, tokens * q_values);
  for (Array<float>* const one : {&k_, &v_}) grow(*one, device, tokens * k_values);
  grow(hidden_, device, slots * traits.feed_forward);
  const std::size_t widest = padded_cols(std::max({traits.width, q_values, traits.feed_forward}));
  grow(int8_, device, kMatVecTokens * widest);
  grow(int8_scales_, device, kMatVecTokens * widest / kernels::cuda::kGroup);
  if (traits.experts != 0) {
    grow(scores_, device, tokens * traits.experts);
    for (Array<float>* const one : {&gathered_, &results_}) grow(*one, device, slots * traits.width);
    grow(slots_, device, 3 * slots * sizeof(float));
    host_scores_ = PinnedMemory(tokens * traits.experts * sizeof(float));
    host_slots_ = PinnedMemory(3 * slots * sizeof(float));
  }
  if (!weights_.options().embeds) host_x_ = PinnedMemory(tokens * traits.width * sizeof(float));
  return true;
}

bool Pass::reserve_attention(std::span<const PlaceGroup> groups) {
  std::size_t bytes = 0;
  for (const PlaceGroup& group : groups) {
    bytes = std::max(
        bytes, kernels::cuda::attention_scratch_bytes(group.shape, weights_.traits().heads, places_of(places_, group)));
  }
  return grow(attention_scratch_, *weights_.device(), bytes);
}

std::span<float> Pass::host_x(std::size_t tokens) {
  return {reinterpret_cast<float*>(host_x_.bytes().data()), tokens * weights_.traits().width};
}

Activations Pass::normed(const NormView& norm, std::size_t first, std::size_t rows,
                         std::initializer_list<const ProjectionView*> readers, bool floats) {
  const Traits& traits = weights_.traits();
  const auto is_narrow = [](const ProjectionView* reader) { return reader->narrow; };
  const bool quantized = few(rows) && std::any_of(readers.begin(), readers.end(), is_narrow);
  floats = floats || !quantized || !std::all_of(readers.begin(), readers.end(), is_narrow);
  float* const x = x_.data() + first * traits.width;
  if (rows == 1 && quantized && !floats && norm.weight != nullptr && pending_.branch == nullptr &&
      traits.norm == models::NormKind::rms) {
    return {.x = x, .norm = {norm.weight, static_cast<float>(traits.norm_eps)}, .count = 1, .cols = traits.width};
  }
  kernels::cuda::NormArgs args{.x = x,
                               .branch = pending_.branch == nullptr ? nullptr : pending_.branch + first * traits.width,
                               .branch_factor = pending_.factor,
                               .weight = norm.weight,
                               .bias = norm.bias,
                               .y = norm.weight != nullptr && floats ? normed_.data() : nullptr,
                               .int8 = quantized ? int8() : kernels::cuda::Int8Out{},
                               .rows = rows,
                               .cols = traits.width,
                               .eps = static_cast<float>(traits.norm_eps),
                               .layer_norm = traits.norm == models::NormKind::layer};
  if (norm.weight != nullptr || args.branch != nullptr || quantized) kernels::cuda::norm(args, stream_);
  pending_ = {};
  return {.x = norm.weight != nullptr ? args.y : x,
          .q = args.int8.q,
          .scales = args.int8.scales,
          .count = rows,
          .cols = traits.width};
}

void Pass::multiply(std::span<const GpuProduct> products, const Activations& in) {
  kernels::cuda::multiply(products, in, weights_.options().fast ? Arithmetic::fast : Arithmetic::exact, *scratch_,
                          stream_);
}

void Pass::finish_branch(const ProjectionView& last, const Activations& in, const NormView& post_norm) {
  GpuProduct product{.matrix = last.matrix, .y = x_.data(), .epilogue = {.bias = last.bias}};
  if (post_norm.weight == nullptr) {
    product.epilogue.scale = weights_.traits().residual_scale;
    product.epilogue.accumulate = true;
    multiply({&product, 1}, in);
  } else {
    product.y = branch_.data();
    multiply({&product, 1}, in);
    end_branch(post_norm);
  }
}

void Pass::end_branch(const NormView& post_norm) {
  const Traits& traits = weights_.traits();
  if (post_norm.weight != nullptr) {
    kernels::cuda::norm({.x = branch_.data(),
                         .weight = post_norm.weight,
                         .bias = post_norm.bias,
                         .y = branch_.data(),
                         .rows = tokens_,
                         .cols = traits.width,
                         .eps = static_cast<float>(traits.norm_eps),
                         .layer_norm = traits.norm == models::NormKind::layer},
                        stream_);
  }
  pending_ = {branch_.data(), traits.residual_scale};
}

Activations Pass::queue_attention(const BlockView& block, std::size_t index, std::span<const PlaceGroup> groups) {
  const Traits& traits = weights_.traits();
  const std::size_t q_values = traits.heads * traits.head_values, k_values = traits.kv_heads * traits.head_values;
  const Activations in = normed(block.attention_norm, 0, tokens_, {&block.query, &block.key, &block.value});
  const auto product = [](const ProjectionView& projection, float* y) {
    return GpuProduct{.matrix = projection.matrix, .y = y, .epilogue = {.bias = projection.bias}};
  };
  const std::array products = {product(block.query, q_.data()), product(block.key, k_.data()),
                               product(block.value, v_.data())};
  multiply(products, in);

  const std::size_t number = weights_.options().first_block + index;
  const bool quantized = few(tokens_) && block.attention_output.narrow;
  const std::size_t padded = padded_cols(q_values);
  for (const PlaceGroup& group : groups) {
    const TokenPlaces places = places_of(places_, group);
    kernels::cuda::PlaceArgs place{.q = q_.data() + group.first * q_values,
                                   .k = k_.data() + group.first * k_values,
                                   .v = v_.data() + group.first * k_values,
                                   .heads = traits.heads,
                                   .q_norm = block.query_norm,
                                   .k_norm = block.key_norm,
                                   .q_norm_cols = block.query_norm_cols,
                                   .k_norm_cols = block.key_norm_cols,
                                   .norm_eps = static_cast<float>(traits.norm_eps),
                                   .shape = group.shape,
                                   .caches = places_.caches(index)};
    if (rope_positions_ != 0 && traits.rope_in_block[number]) {
      place.rope = rope_.data();
      place.rotary = traits.rotary;
      place.pairs = traits.rope_pairs;
    }
    kernels::cuda::AttentionArgs attention{.q = place.q,
                                           .y = attended_.data() + group.first * q_values,
                                           .heads = traits.heads,
                                           .window = traits.block_window[number],
                                           .options = {.scale = traits.attention_scale, .cap = traits.attention_cap},
                                           .shape = group.shape,
                                           .caches = places_.caches(index),
                                           .scratch = attention_scratch_.data(),
                                           .exact = !weights_.options().fast};
    if (quantized) {
      attention.int8 = {int8_.data() + group.first * padded,
                        int8_scales_.data() + group.first * padded / kernels::cuda::kGroup};
    }
    kernels::cuda::place_and_attend(place, attention, places, stream_);
  }
  Activations attended{.x = attended_.data(), .count = tokens_, .cols = q_values};
  if (quantized) {
    attended.q = int8_.data();
    attended.scales = int8_scales_.data();
  }
  return attended;
}

Activations Pass::keep(RowRange rows, Activations attended) {
  const std::size_t width = weights_.traits().width;
  stream_.copy_within(x_.data() + rows.first * width, x_.data(), rows.count * width * sizeof(float));
  tokens_ = rows.count;
  attended.x += rows.first * attended.cols;
  attended.count = rows.count;
  return attended;
}

GpuProduct Pass::hidden_product(const FeedForwardView& layer, float* y) const {
  const Traits& traits = weights_.traits();
  if (!traits.gated) {
    return {.matrix = layer.up.matrix, .y = y, .epilogue = {.bias = layer.up.bias, .activation = traits.activation}};
  }
  return {.matrix = layer.gate.matrix, .up = layer.up.matrix, .y = y, .epilogue = {.activation = traits.activation}};
}

void Pass::queue_feed_forward(const BlockView& block) {
  const Traits& traits = weights_.traits();
  const FeedForwardView& layer = block.feed_forwards.front();
  const ProjectionView& first = traits.gated ? layer.gate : layer.up;
  const Activations in = normed(block.feed_forward_norm, 0, tokens_, {&first, &layer.up});
  const GpuProduct product = hidden_product(layer, hidden_.data());
  multiply({&product, 1}, in);
  const Activations hidden{.x = hidden_.data(), .count = tokens_, .cols = traits.feed_forward};
  finish_branch(layer.down, hidden, block.feed_forward_post_norm);
}

std::size_t Pass::queue_blocks(std::size_t tokens, RowRange read, std::span<const PlaceGroup> groups) {
  const Traits& traits = weights_.traits();
  tokens_ = tokens;
  pending_ = {};
  places_.send(stream_);
  if (weights_.options().embeds) {
    kernels::cuda::dequantize_rows(*weights_.embedding(), places_.ids(), tokens, traits.embedding_scale, x_.data(),
                                   stream_);
    if (weights_.positions() != nullptr) {
      kernels::cuda::gather_rows(weights_.positions(), places_.positions(), tokens, traits.width, branch_.data(),
                                 stream_);
      pending_ = {branch_.data(), 1};
    }
  } else {
    stream_.copy_in(std::as_bytes(host_x(tokens)), x_.data());
  }
  // Of a long batch whose last rows alone are read. (An int8 form, of few tokens, has no rows to begin at.)
  const bool drops_rows = !few(tokens) && read.first >= read.count;
  for (std::size_t i = 0; i < weights_.blocks().size(); ++i) {
    const BlockView& block = weights_.blocks()[i];
    Activations attended = queue_attention(block, i, groups);
    if (drops_rows && i + 1 == weights_.blocks().size()) {
      if (read.count == 0) return 0;
      attended = keep(read, attended);
      read.first = 0;
    }
    finish_branch(block.attention_output, attended, block.attention_post_norm);
    if (traits.experts != 0) {
      queue_experts(block);
    } else {
      queue_feed_forward(block);
    }
  }
  return read.first;
}

void Pass::settle() {
  if (pending_.branch == nullptr) return;
  kernels::cuda::add(pending_.branch, pending_.factor, x_.data(), tokens_ * weights_.traits().width, stream_);
  pending_ = {};
}

void Pass::queue_output(std::size_t first, std::size_t rows) {
  const Traits& traits = weights_.traits();
  const Activations in = normed(weights_.output_norm(), first, rows, {&weights_.output()});
  const GpuProduct product{
      .matrix = weights_.output().matrix, .y = logits_.data(), .epilogue = {.scale = traits.logit_scale}};
  multiply({&product, 1}, in);
  if (traits.logit_cap != 0) {
    kernels::cuda::soft_cap(logits_.data(), traits.logit_cap, rows * traits.vocabulary, stream_);
  }
}

}  // namespace imago::lm::cuda
