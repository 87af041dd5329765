// Mixtures of experts. Few tokens stream the matrices of their experts; many are put together by expert on the device
// and multiplied tile by tile. Where formats differ within a layer the host arranges the rows.

#include <algorithm>

#include "backend/cuda/experts.h"
#include "backend/cuda/pass.h"

namespace imago::backend::cuda {

using kernels::Arithmetic;
using kernels::cuda::GpuProduct;
using kernels::cuda::kMatVecTokens;

bool splits(const Product& product) noexcept {
  return product.up && (product.up_bias || product.activation == kernels::Activation::clamped_swish);
}

void Pass::multiply_hidden(const Product& product, std::size_t expert, std::size_t at, std::size_t cols,
                           const Activations& in) {
  float* const y = hidden_.data() + at;
  if (!splits(product)) {
    const GpuProduct one = product_of(product, y, expert);
    return multiply({&one, 1}, in);
  }
  float* const up = up_.data() + at;
  const auto bias_of = [&](const std::optional<WeightKey>& key) {
    return key ? part_.vector(key->of_expert(expert)) : nullptr;
  };
  const GpuProduct both[2] = {{.matrix = &part_.matrix(product.matrix.of_expert(expert)).matrix,
                               .y = y,
                               .epilogue = {.bias = bias_of(product.bias)}},
                              {.matrix = &part_.matrix(product.up->of_expert(expert)).matrix,
                               .y = up,
                               .epilogue = {.bias = bias_of(product.up_bias)}}};
  multiply(both, in);
  kernels::cuda::activate(product.activation, y, up, y, in.count, cols, {}, stream_);
}

const Pass::ExpertTable& Pass::table_of(const Product& product, std::size_t count) {
  const auto [found, is_new] = tables_.try_emplace(product.matrix);
  ExpertTable& table = found->second;
  if (!is_new) return table;
  std::vector<kernels::cuda::ExpertMatrices> experts;
  const Format format = part_.matrix(product.matrix).matrix.format();
  bool alike = true;
  const auto matrix_of = [&](const WeightKey& key) -> const GpuMatrix& {
    const GpuMatrix& matrix = part_.matrix(key).matrix;
    alike = alike && matrix.format() == format;
    return matrix;
  };
  const auto bias_of = [&](const std::optional<WeightKey>& key, std::size_t expert) {
    return key ? part_.vector(key->of_expert(expert)) : nullptr;
  };
  for (std::size_t expert = 0; expert < count; ++expert) {
    experts.push_back({.matrix = matrix_of(product.matrix.of_expert(expert)).planes(),
                       .up = product.up ? matrix_of(product.up->of_expert(expert)).planes() : kernels::cuda::Planes{},
                       .bias = bias_of(product.bias, expert),
                       .up_bias = bias_of(product.up_bias, expert)});
  }
  if (!alike) return table;
  table.format = format;
  table.experts = Array<kernels::cuda::ExpertMatrices>(*part_.device, count);
  part_.device->upload(std::as_bytes(std::span(experts)), table.experts.buffer(), 0);
  return table;
}

void Pass::arrange_rows(const Experts& experts) {
  const std::size_t rows = tokens_ * experts.used;
  const std::span<std::byte> bytes = host_rows_.bytes().first(rows * sizeof(std::int32_t));
  stream_.copy_out(chosen_.data(), bytes);
  stream_.wait();
  auto* const host_tokens = reinterpret_cast<std::int32_t*>(host_rows_.bytes().data());
  auto* const host_row_of = host_tokens + rows;
  const std::span<std::size_t> chosen = sized(routing_.chosen, rows);
  std::copy_n(host_tokens, rows, chosen.begin());
  routing_.arrange(experts, tokens_);
  for (std::size_t i = 0; i < rows; ++i) {
    host_row_of[i] = static_cast<std::int32_t>(routing_.row_of[i]);
    host_tokens[routing_.row_of[i]] = static_cast<std::int32_t>(i / experts.used);
  }
  stream_.copy_in(host_rows_.bytes().first(2 * rows * sizeof(std::int32_t)), rows_.data());
}

kernels::cuda::ExpertLayer Pass::layer_of(const ExpertTable& table, const Product& product, std::size_t rows,
                                          std::size_t cols) {
  return {.experts = table.experts.data(),
          .rows = rows,
          .cols = cols,
          .activation = product.activation,
          .gated = product.up.has_value()};
}

void Pass::multiply_few(const Experts& experts, const ExpertTable& hidden, const ExpertTable& down,
                        const Activations& in) {
  const std::size_t width = part_.sizes().width, inner = sizes_->feed_forward, rows = tokens_ * experts.used;
  const auto is_int8 = [&](const ExpertTable& table) {
    return part_.options.fast && kernels::cuda::takes_int8(*table.format);
  };
  const bool next_int8 = is_int8(hidden) && is_int8(down);
  kernels::cuda::ExpertProducts products{.layer = layer_of(hidden, experts.hidden, inner, width),
                                         .chosen = chosen_.data(),
                                         .x = in.x,
                                         .q = is_int8(hidden) ? in.q : nullptr,
                                         .scales = in.scales,
                                         .y = next_int8 ? nullptr : hidden_.data(),
                                         .count = rows,
                                         .share = experts.used};
  if (next_int8) products.int8 = {expert_int8_.data(), expert_int8_scales_.data()};
  kernels::cuda::multiply_experts(*hidden.format, products, stream_);
  kernels::cuda::multiply_experts(*down.format,
                                  {.layer = layer_of(down, experts.down, width, inner),
                                   .chosen = chosen_.data(),
                                   .x = hidden_.data(),
                                   .q = products.int8.q,
                                   .scales = products.int8.scales,
                                   .y = results_.data(),
                                   .count = rows,
                                   .share = 1},
                                  stream_);
}

void Pass::multiply_tiles(const Experts& experts, const ExpertTable& hidden, const ExpertTable& down,
                          const Activations& in) {
  const std::size_t width = part_.sizes().width, inner = sizes_->feed_forward, rows = tokens_ * experts.used;
  const kernels::cuda::ExpertTiles tiles = kernels::cuda::expert_tiles(rows, experts.count);
  std::int32_t* const places = tile_rows_.data() + std::size_t{tiles.most} * tiles.rows;
  arrange_experts({.chosen = chosen_.data(),
                   .rows = rows,
                   .used = experts.used,
                   .experts = experts.count,
                   .tiles = tiles,
                   .list = tiles_.data(),
                   .tokens = tile_rows_.data(),
                   .places = places,
                   .row_of = rows_.data()},
                  stream_);
  kernels::cuda::ExpertMatMul products{.layer = layer_of(hidden, experts.hidden, inner, width),
                                       .tiles = tiles,
                                       .list = tiles_.data(),
                                       .sources = tile_rows_.data(),
                                       .x = in.x,
                                       .x_rows = tokens_,
                                       .y = hidden_.data()};
  kernels::cuda::matmul_experts(*hidden.format, products, *scratch_, stream_);
  products.layer = layer_of(down, experts.down, width, inner);
  products.sources = places;
  products.x = hidden_.data();
  products.x_rows = rows;
  products.y = results_.data();
  kernels::cuda::matmul_experts(*down.format, products, *scratch_, stream_);
}

void Pass::multiply_one_by_one(const Experts& experts, const Activations& in) {
  const std::size_t width = part_.sizes().width, inner = sizes_->feed_forward, rows = tokens_ * experts.used;
  arrange_rows(experts);
  kernels::cuda::gather_rows(in.x, rows_.data(), rows, width, gathered_.data(), stream_);
  for (std::size_t expert = 0; expert < experts.count; ++expert) {
    const std::size_t first = routing_.firsts[expert], count = routing_.firsts[expert + 1] - first;
    if (count == 0) continue;
    multiply_hidden(experts.hidden, expert, first * inner, inner,
                    {.x = gathered_.data() + first * width, .count = count, .cols = width});
    const GpuProduct product = product_of(experts.down, results_.data() + first * width, expert);
    multiply({&product, 1}, {.x = hidden_.data() + first * inner, .count = count, .cols = inner});
  }
}

void Pass::run(const ExpertsBranch& step) {
  const Experts& experts = step.experts;
  const std::size_t width = part_.sizes().width, inner = sizes_->feed_forward, rows = tokens_ * experts.used;
  // Routers decide much and cost little: float32, whatever the rest is computed in.
  const Activations in = normed(step.norm, 0, tokens_, {&experts.hidden, 1}, true);
  const auto run_router = [&](const WeightKey& router, const std::optional<WeightKey>& bias, float* to) {
    const GpuProduct product{.matrix = &part_.matrix(router).matrix, .y = to, .epilogue = {.bias = part_.vector(bias)}};
    kernels::cuda::multiply({&product, 1}, {.x = in.x, .count = tokens_, .cols = width}, Arithmetic::exact, *scratch_,
                            stream_);
  };
  run_router(experts.router, experts.router_bias, scores_.data());
  choose_experts(experts,
                 {.products = scores_.data(),
                  .choice_bias = part_.vector(experts.choice_bias),
                  .chosen = chosen_.data(),
                  .weights = expert_weights_.data(),
                  .tokens = tokens_},
                 stream_);
  // The shared expert's results follow those of the others; its products do not wait for the host.
  CombineArgs combined{.results = results_.data(),
                       .row_of = nullptr,
                       .weights = expert_weights_.data(),
                       .out = branch_.data(),
                       .tokens = tokens_,
                       .used = experts.used,
                       .width = width};
  if (experts.shared) {
    const SharedExpert& shared = *experts.shared;
    float* const results = results_.data() + rows * width;
    multiply_hidden(shared.hidden, 0, rows * inner, sizes_->shared_feed_forward, in);
    const GpuProduct down = product_of(shared.down, results);
    multiply({&down, 1}, {.x = hidden_.data() + rows * inner, .count = tokens_, .cols = sizes_->shared_feed_forward});
    combined.shared = results;
    if (shared.router) {
      run_router(*shared.router, std::nullopt, scores_.data());
      combined.shared_products = scores_.data();
    }
  }
  const ExpertTable& hidden = table_of(experts.hidden, experts.count);
  const ExpertTable& down = table_of(experts.down, experts.count);
  const bool alike = hidden.format && down.format;
  if (alike && tokens_ <= kMatVecTokens) {
    multiply_few(experts, hidden, down, in);
  } else if (alike && part_.options.fast && kernels::cuda::takes_expert_tiles(*hidden.format) &&
             kernels::cuda::takes_expert_tiles(*down.format)) {
    multiply_tiles(experts, hidden, down, in);
    combined.row_of = rows_.data();
  } else {
    multiply_one_by_one(experts, in);
    combined.row_of = rows_.data() + rows;
  }
  if (!step.post_norm) {
    combined.out = x_.data();
    combined.add = true;
    combined.factor = step.factor;
    return combine_experts(combined, stream_);
  }
  combine_experts(combined, stream_);
  end_branch(step.post_norm, step.factor);
}

}  // namespace imago::backend::cuda
