#include "backend/cuda/pass.h"

#include <algorithm>

namespace imago::backend::cuda {

namespace {

using kernels::Arithmetic;
using kernels::cuda::GpuProduct;
using kernels::cuda::kMatVecTokens;
using kernels::cuda::padded_cols;
using kernels::cuda::TokenPlaces;

/// Logits that are held at a time: 64 MiB, but the rows of a step at least.
constexpr std::size_t kLogits = std::size_t{16} << 20;

template <class T>
bool grow(Array<T>& array, Device& device, std::size_t count) {
  if (count <= array.size()) return false;
  array.reserve(device, count);
  return true;
}

}  // namespace

TokenPlaces places_of(const Places& places, const PlaceGroup& group) {
  return {.sequence = places.sequences() == nullptr ? nullptr : places.sequences() + group.first,
          .position = places.positions() + group.first,
          .tokens = group.tokens,
          .longest = group.longest,
          .separate = group.separate};
}

Pass::Pass(const Part& part)
    : part_(part),
      stream_(part.device),
      places_(part.device, part.has_states()),
      step_scratch_(part.device),
      prompt_scratch_(part.device) {
  for (const FusedBlock& block : part.fused.blocks) {
    for (const FusedStep& step : block.steps) {
      const auto* const branch = std::get_if<ExpertsBranch>(&step);
      has_splits_ = has_splits_ || (branch != nullptr && splits(branch->experts.hidden));
    }
  }
}

bool Pass::few(std::size_t tokens) const noexcept { return part_.options.fast && tokens <= kMatVecTokens; }

std::size_t Pass::most_logit_rows() const noexcept {
  return std::max(kMatVecTokens, kLogits / part_.sizes().vocabulary);
}

bool Pass::reserve(std::span<const Segment> segments, std::size_t tokens, std::size_t rows, const Ropes& ropes) {
  const Sizes& sizes = part_.sizes();
  const Sizes& head = part_.program->head.sizes;
  Device& device = *part_.device;
  tokens_ = tokens;
  bool moved = places_.reserve(part_.fused.blocks.size(), segments, tokens);
  moved |= grow(logits_, device, std::min(rows, most_logit_rows()) * std::max(sizes.vocabulary, head.vocabulary));
  for (std::size_t i = 0; i < kRopes; ++i) {
    const kernels::RopeTable* const rope = ropes[i];
    if (rope == nullptr || rope->positions() <= ropes_[i].positions) continue;
    const std::span<const float> values(rope->at(0).data(), rope->positions() * rope->rotary());
    ropes_[i] = {Array<float>(device, values.size()), rope->positions()};
    device.upload(std::as_bytes(values), ropes_[i].table.buffer(), 0);
    moved = true;
  }
  if (tokens <= room_) return moved;
  room_ = tokens;
  const std::size_t q_values = sizes.of(Slot::query), k_values = sizes.of(Slot::key);
  const std::size_t expert_rows = tokens * std::max<std::size_t>(1, sizes.experts_used);
  for (Array<float>* const one : {&x_, &normed_, &branch_}) grow(*one, device, tokens * sizes.width);
  grow(q_, device, tokens * q_values);
  grow(attended_, device, tokens * std::max(q_values, sizes.attended));
  for (Array<float>* const one : {&k_, &v_}) grow(*one, device, tokens * k_values);
  for (Array<float>* const one : {&hidden_, &up_}) {
    if (one == &up_ && !has_splits_) continue;
    const std::size_t inner = std::max(sizes.feed_forward, head.feed_forward);
    grow(*one, device, expert_rows * inner + tokens * sizes.shared_feed_forward);
  }
  for (const auto& [array, slot] :
       {std::pair(&channels_, Slot::channels), std::pair(&convolved_, Slot::channels),
        std::pair(&input_gate_, Slot::input_gate), std::pair(&output_gate_, Slot::output_gate),
        std::pair(&step_, Slot::step), std::pair(&step_low_, Slot::step_low), std::pair(&scanned_, Slot::scanned)}) {
    grow(*array, device, tokens * sizes.of(slot));
  }
  const std::size_t widest =
      padded_cols(std::max({sizes.width, q_values, sizes.feed_forward, sizes.shared_feed_forward, sizes.attended}));
  grow(int8_, device, kMatVecTokens * widest);
  grow(int8_scales_, device, kMatVecTokens * widest / kernels::cuda::kGroup);
  if (sizes.experts != 0) {
    const std::size_t few_rows = kMatVecTokens * sizes.experts_used * padded_cols(sizes.feed_forward);
    grow(expert_int8_, device, few_rows);
    grow(expert_int8_scales_, device, few_rows / kernels::cuda::kGroup);
    // Fewer tokens take smaller tiles, which may be more.
    const std::size_t tile = kernels::cuda::expert_tiles(expert_rows, sizes.experts).rows;
    grow(tiles_, device, expert_rows / kernels::cuda::kFewestTileRows + sizes.experts);
    grow(tile_rows_, device, 2 * (expert_rows + sizes.experts * tile));
    grow(scores_, device, tokens * sizes.experts);
    grow(gathered_, device, expert_rows * sizes.width);
    grow(results_, device, (expert_rows + tokens) * sizes.width);
    grow(chosen_, device, expert_rows);
    grow(expert_weights_, device, expert_rows);
    grow(rows_, device, 2 * expert_rows);
    host_rows_ = PinnedMemory(2 * expert_rows * sizeof(std::int32_t));
  }
  for (Array<float>* const one : {&layer_inputs_, &layer_projected_}) grow(*one, device, tokens * sizes.layer_inputs);
  grow(layer_hidden_, device, tokens * sizes.layer_values);
  grow(layer_ids_, device, sizes.layer_inputs == 0 ? 0 : tokens);
  grow(query_low_, device, tokens * sizes.query_low);
  if (sizes.attended != 0) {
    grow(latent_, device, tokens * sizes.heads * sizes.head_values);
    grow(latent_rows_, device, tokens * sizes.heads * std::max(sizes.head_values, sizes.query_values));
  }
  if (!part_.embeds()) {
    host_x_ = PinnedMemory(tokens * sizes.width * sizeof(float));
    host_layer_inputs_ = PinnedMemory(tokens * sizes.layer_inputs * sizeof(float));
  }
  return true;
}

bool Pass::reserve_attention(std::span<const PlaceGroup> groups) {
  std::size_t bytes = 0;
  for (const PlaceGroup& group : groups) {
    for (const Sizes& sizes : part_.fused.sizes) {
      if (sizes.heads == 0) continue;
      bytes = std::max(
          bytes, kernels::cuda::attention_scratch_bytes(group.shape_in(sizes), sizes.heads, places_of(places_, group)));
    }
  }
  return grow(attention_scratch_, *part_.device, bytes);
}

std::span<float> Pass::host_x(std::size_t tokens) {
  return {reinterpret_cast<float*>(host_x_.bytes().data()), tokens * part_.sizes().width};
}

std::span<float> Pass::host_layer_inputs(std::size_t tokens) {
  return {reinterpret_cast<float*>(host_layer_inputs_.bytes().data()), tokens * part_.sizes().layer_inputs};
}

float* Pass::buffer(Slot slot) const noexcept {
  switch (slot) {
    case Slot::stream: return x_.data();
    case Slot::normed: return normed_.data();
    case Slot::branch: return branch_.data();
    case Slot::query: return q_.data();
    case Slot::key: return k_.data();
    case Slot::value: return v_.data();
    case Slot::hidden: return hidden_.data();
    case Slot::logits: return logits_.data();
    case Slot::channels: return (is_convolved_ ? convolved_ : channels_).data();
    case Slot::input_gate: return input_gate_.data();
    case Slot::output_gate: return output_gate_.data();
    case Slot::step: return step_.data();
    case Slot::step_low: return step_low_.data();
    case Slot::scanned: return scanned_.data();
    case Slot::layer_inputs: return layer_inputs_.data();
    case Slot::layer_hidden: return layer_hidden_.data();
    case Slot::query_low: return query_low_.data();
    case Slot::attended: return attended_.data();
    case Slot::routed:
    case Slot::from_experts:
    case Slot::dense_hidden:
    case Slot::up:
    case Slot::laurel_low:
    case Slot::streams: break;  // fuse() refuses steps with these
  }
  return nullptr;
}

Activations Pass::activations(Slot slot) const noexcept {
  const std::size_t cols = sizes_->of(slot);
  return {.x = buffer(slot) + first_ * cols, .count = tokens_, .cols = cols};
}

Activations Pass::normed(const std::optional<Norm>& norm, std::size_t first, std::size_t rows,
                         std::span<const Product> readers, bool floats) {
  const std::size_t width = part_.sizes().width;
  const auto is_narrow = [&](const Product& reader) {
    return part_.matrix(reader.matrix).narrow && (!reader.up || part_.matrix(*reader.up).narrow);
  };
  const auto has_narrow = [&](const Product& reader) {
    return part_.matrix(reader.matrix).narrow || (reader.up && part_.matrix(*reader.up).narrow);
  };
  const bool quantized = few(rows) && std::any_of(readers.begin(), readers.end(), has_narrow);
  floats = floats || !quantized || !std::all_of(readers.begin(), readers.end(), is_narrow);
  float* const x = x_.data() + first * width;
  const float* const weight = norm ? part_.vector(norm->weight) : nullptr;
  if (rows == 1 && quantized && !floats && weight != nullptr && pending_.branch == nullptr &&
      norm->kind == NormKind::rms) {
    return {.x = x, .norm = {weight, norm->eps}, .count = 1, .cols = width};
  }
  kernels::cuda::NormArgs args{.x = x,
                               .branch = pending_.branch == nullptr ? nullptr : pending_.branch + first * width,
                               .branch_factor = pending_.factor,
                               .weight = weight,
                               .bias = norm ? part_.vector(norm->bias) : nullptr,
                               .y = weight != nullptr && floats ? normed_.data() : nullptr,
                               .int8 = quantized ? int8() : kernels::cuda::Int8Out{},
                               .rows = rows,
                               .cols = width,
                               .eps = norm ? norm->eps : 0,
                               .layer_norm = norm && norm->kind == NormKind::layer};
  if (weight != nullptr || args.branch != nullptr || quantized) kernels::cuda::norm(args, stream_);
  pending_ = {};
  return {
      .x = weight != nullptr ? args.y : x, .q = args.int8.q, .scales = args.int8.scales, .count = rows, .cols = width};
}

bool Pass::records() {
  for (const FusedBlock& block : part_.fused.blocks) {
    for (const FusedStep& step : block.steps) {
      if (const auto* const latent = std::get_if<LatentAttend>(&step)) {  // tables are uploaded before a recording
        for (const WeightKey& key : {latent->key_up, latent->value_up}) table_of({.matrix = key}, latent->heads);
      }
      const auto* const branch = std::get_if<ExpertsBranch>(&step);
      if (branch == nullptr) continue;
      const Experts& experts = branch->experts;
      if (!table_of(experts.hidden, experts.count).format || !table_of(experts.down, experts.count).format)
        return false;
    }
  }
  return true;
}

GpuProduct Pass::product_of(const Product& product, float* y, std::size_t expert) const {
  return {.matrix = &part_.matrix(product.matrix.of_expert(expert)).matrix,
          .up = product.up ? &part_.matrix(product.up->of_expert(expert)).matrix : nullptr,
          .y = y,
          .epilogue = {.bias = product.bias ? part_.vector(product.bias->of_expert(expert)) : nullptr,
                       .activation = product.activation}};
}

void Pass::multiply(std::span<const GpuProduct> products, const Activations& in) {
  kernels::cuda::multiply(products, in, part_.options.fast ? Arithmetic::fast : Arithmetic::exact, *scratch_, stream_);
}

void Pass::run(const StreamProducts& step) {
  Activations in = normed(step.norm, 0, tokens_, step.products, step.scale.has_value());
  if (step.scale) {
    kernels::cuda::scale(normed_.data(), step.scale->factor, tokens_ * in.cols, stream_);
    in.q = nullptr;  // it was made from the values before
    in.scales = nullptr;
  }
  first_ = 0;
  is_convolved_ = false;
  std::vector<GpuProduct> products;
  for (const Product& product : step.products) products.push_back(product_of(product, buffer(product.out)));
  multiply(products, in);
}

void Pass::run(const SlotProducts& step) {
  std::vector<GpuProduct> products;
  for (const Product& product : step.products) products.push_back(product_of(product, buffer(product.out)));
  multiply(products, activations(step.in));
}

void Pass::run(const PlaceAndAttend& step) {
  const Sizes& sizes = *sizes_;
  const std::size_t q_values = sizes.of(Slot::query), k_values = sizes.of(Slot::key);
  const std::size_t cached = step.attend.cache ? *step.attend.cache - part_.options.blocks.begin : index_;
  const Sizes& cached_sizes = part_.fused.blocks[cached].sizes;
  const bool quantized = few(tokens_) && part_.matrix(step.reader).narrow;
  const std::size_t padded = padded_cols(q_values);
  const auto cols_of = [&](const std::optional<NormHeads>& norm) {
    return norm ? part_.weights.vector(norm->weight)->size() : 0;
  };
  for (const PlaceGroup& group : groups_) {
    TokenPlaces places = places_of(places_, group);
    if (!step.attend.causal) places.text_end = places_.text_ends() + group.first;
    kernels::cuda::PlaceArgs place{.q = q_.data() + group.first * q_values,
                                   .k = k_.data() + group.first * k_values,
                                   .v = v_.data() + group.first * k_values,
                                   .heads = sizes.heads,
                                   .q_norm = step.query_norm ? part_.vector(step.query_norm->weight) : nullptr,
                                   .k_norm = step.key_norm ? part_.vector(step.key_norm->weight) : nullptr,
                                   .q_norm_cols = cols_of(step.query_norm),
                                   .k_norm_cols = cols_of(step.key_norm),
                                   .norm_eps = step.query_norm ? step.query_norm->eps : 0,
                                   .shape = group.shape_in(cached_sizes),
                                   .caches = places_.caches(cached),
                                   .paged = group.paged};
    if (cached != index_) place.k = nullptr, place.v = nullptr;
    if (step.value_norm) {
      place.norms_values = true;
      place.norm_eps = step.value_norm->eps;
      if (step.value_norm->from == Slot::key) place.v = place.k;
    }
    if (step.attend.query_norm) {
      place.norms_turned = true;
      place.q_norm = part_.vector(step.attend.query_norm);
      place.k_norm = part_.vector(step.attend.key_norm);
      place.q_norm_cols = place.k_norm_cols = sizes.head_values;
      place.norm_eps = step.attend.eps;
    }
    place.growth = step.attend.growth;
    place.growth_period = step.attend.growth_period;
    if (ropes_[step.attend.rope].positions != 0 && step.attend.rotary != 0) {
      place.rope = ropes_[step.attend.rope].table.data();
      place.rotary = step.attend.rotary;
      place.pairs = step.attend.pairs;
    }
    kernels::cuda::AttentionArgs attention{.q = place.q,
                                           .y = attended_.data() + group.first * q_values,
                                           .heads = sizes.heads,
                                           .window = step.attend.window,
                                           .options = {.scale = step.attend.scale, .cap = step.attend.cap},
                                           .sinks = part_.vector(step.attend.sinks),
                                           .shape = place.shape,
                                           .caches = place.caches,
                                           .paged = group.paged,
                                           .scratch = attention_scratch_.data(),
                                           .exact = !part_.options.fast};
    if (quantized && !step.gate) {
      attention.int8 = {int8_.data() + group.first * padded,
                        int8_scales_.data() + group.first * padded / kernels::cuda::kGroup};
    }
    kernels::cuda::place_and_attend(place, attention, places, stream_);
  }
  if (step.gate) {
    kernels::cuda::activate(step.gate->activation, buffer(step.gate->by), attended_.data(), attended_.data(), tokens_,
                            q_values, quantized ? int8() : kernels::cuda::Int8Out{}, stream_);
  }
  attention_ = {.x = attended_.data(), .count = tokens_, .cols = q_values};
  if (quantized) {
    attention_.q = int8_.data();
    attention_.scales = int8_scales_.data();
  }
}

void Pass::run(const FinishBranch& step) {
  const bool attends = step.in == Slot::query || step.in == Slot::attended;
  const Activations in = attends ? attention_ : activations(step.in);
  GpuProduct product = product_of(step.product, x_.data());
  if (!step.post_norm) {
    product.epilogue.scale = step.factor;
    product.epilogue.accumulate = true;
    multiply({&product, 1}, in);
  } else {
    product.y = branch_.data();
    multiply({&product, 1}, in);
    end_branch(step.post_norm, step.factor);
  }
}

void Pass::end_branch(const std::optional<Norm>& post_norm, float factor) {
  if (post_norm) {
    kernels::cuda::norm({.x = branch_.data(),
                         .weight = part_.vector(post_norm->weight),
                         .bias = part_.vector(post_norm->bias),
                         .y = branch_.data(),
                         .rows = tokens_,
                         .cols = part_.sizes().width,
                         .eps = post_norm->eps,
                         .layer_norm = post_norm->kind == NormKind::layer},
                        stream_);
  }
  pending_ = {branch_.data(), factor};
}

void Pass::keep(RowRange rows) {
  const std::size_t width = part_.sizes().width;
  stream_.copy_within(x_.data() + rows.first * width, x_.data(), rows.count * width * sizeof(float));
  tokens_ = rows.count;
  first_ = first_token_ = rows.first;
  if (attention_.x != nullptr) attention_.x += rows.first * attention_.cols;
  attention_.count = rows.count;
}

std::size_t Pass::queue_blocks(std::size_t tokens, RowRange read, std::span<const PlaceGroup> groups) {
  tokens_ = tokens;
  first_token_ = 0;
  sizes_ = &part_.sizes();
  pending_ = {};
  places_.send(stream_);
  if (part_.embeds()) {
    embed(tokens);
  } else {
    stream_.copy_in(std::as_bytes(host_x(tokens)), x_.data());
    if (layer_inputs_.size() != 0) {
      stream_.copy_in(std::as_bytes(host_layer_inputs(tokens)), layer_inputs_.data());
    }
  }
  // Only a long batch whose last rows alone are read: int8 activations, of few tokens, cannot begin at any row.
  const bool drops_rows = !few(tokens) && read.first >= read.count;
  groups_ = groups;
  const std::vector<FusedBlock>& blocks = part_.fused.blocks;
  for (index_ = 0; index_ < blocks.size(); ++index_) {
    const FusedBlock& block = blocks[index_];
    sizes_ = &block.sizes;
    const auto last = std::find_if(block.steps.rbegin(), block.steps.rend(), passes_tokens);
    const auto left = static_cast<std::size_t>(block.steps.rend() - last);  // steps that need all tokens
    for (std::size_t i = 0; i < block.steps.size(); ++i) {
      std::visit([this](const auto& step) { run(step); }, block.steps[i]);
      if (!drops_rows || index_ + 1 != blocks.size() || i + 1 != left) continue;
      if (read.count == 0) return 0;
      keep(read);
      read.first = 0;
    }
  }
  return read.first;
}

void Pass::gather(std::size_t rows) {
  settle();
  const std::size_t width = part_.sizes().width;
  kernels::cuda::gather_rows(x_.data(), places_.rows(), rows, width, branch_.data(), stream_);
  stream_.copy_within(branch_.data(), x_.data(), rows * width * sizeof(float));
  tokens_ = rows;
}

void Pass::settle() {
  if (pending_.branch == nullptr) return;
  kernels::cuda::add(pending_.branch, pending_.factor, x_.data(), tokens_ * part_.sizes().width, stream_);
  pending_ = {};
}

void Pass::queue_output(std::size_t first, std::size_t rows) {
  const StreamProducts& step = part_.fused.output;
  const AdjustLogits& adjust = part_.fused.adjust;
  const Activations in = normed(step.norm, first, rows, step.products);
  GpuProduct product = product_of(step.products.front(), logits_.data());
  product.epilogue.scale = adjust.scale;
  multiply({&product, 1}, in);
  if (adjust.cap != 0) {
    kernels::cuda::soft_cap(logits_.data(), adjust.cap, rows * part_.sizes().vocabulary, stream_);
  }
}

}  // namespace imago::backend::cuda
