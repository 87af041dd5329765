// A mixture of experts on the CPU.

#include <algorithm>

#include "backend/cpu/pass.h"
#include "base/parallel.h"

namespace imago::backend {

void CpuPass::run_router(const WeightKey& router, const std::optional<WeightKey>& bias, std::span<const float> in,
                         std::span<float> to) {
  const Product shown{.matrix = router};
  show({&shown, 1}, 0, in, live_.count);
  // The smallest difference may send a token to another expert, so it gets what it gets alone in any batch.
  const kernels::Product product{.matrix = &matrix(router),
                                 .y = to,
                                 .first_token = 0,
                                 .tokens = live_.count,
                                 .epilogue = {.bias = vector(bias)},
                                 .singles = singles_of({0, live_.count}).value_or(live_.count)};
  kernels::multiply_all({&product, 1}, in, live_.count);
}

void CpuPass::run(const Experts& step) {
  const std::span<const float> in = values(step.in);
  const std::size_t tokens = live_.count, width = sizes_->width, inner = sizes_->feed_forward;
  const std::size_t used = step.used, rows = tokens * used;
  const std::optional<std::size_t> singles = singles_of({0, tokens});
  const std::span<float> scores = sized(work_.scores, tokens * step.count);
  run_router(step.router, step.router_bias, values(step.router_in), scores);
  Routing& routing = work_.routing;
  routing.route(step, scores, vector(step.choice_bias), tokens, vector(step.expert_scale));
  routing.count_singles(step, singles.value_or(0));

  // A single token is what all of its experts read; several are gathered expert by expert. The expert that all of them
  // share reads them as they are, after the others: its products are in the same parallel region.
  const bool alone = tokens == 1;
  const std::size_t shared_rows = step.shared ? tokens : 0, shared_inner = sizes_->shared_feed_forward;
  std::span<const float> expert_in = in;
  if (!alone) {
    const std::span<float> gathered = sized(work_.gathered, (rows + shared_rows) * width);
    parallel_for(tokens, kTokensToCopy, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin * used; i < end * used; ++i) {
        std::copy_n(in.data() + i / used * width, width, gathered.data() + routing.row_of[i] * width);
      }
    });
    std::copy_n(in.data(), shared_rows * width, gathered.data() + rows * width);
    expert_in = gathered;
  }

  const std::span<float> hidden = sized(work_.at(Slot::hidden), rows * inner + shared_rows * shared_inner);
  const std::span<float> up = sized(work_.up, hidden.size());
  const std::span<float> results = sized(work_.results, (rows + shared_rows) * width);
  const std::span<float> shared_hidden = hidden.subspan(rows * inner), shared_out = results.subspan(rows * width);
  std::vector<kernels::Product>& products = work_.products;
  const auto for_each_expert = [&](auto&& add) {
    products.clear();
    for (std::size_t expert = 0; expert < step.count; ++expert) {
      const std::size_t first = routing.firsts[expert], count = routing.firsts[expert + 1] - first;
      if (count == 0) continue;
      add(expert, RowRange{first, count}, singles ? std::optional(routing.singles[expert]) : std::nullopt);
    }
  };
  for_each_expert([&](std::size_t expert, RowRange at, std::optional<std::size_t> single_rows) {
    const RowRange from{alone ? 0 : at.first, at.count};
    show({&step.hidden, 1}, expert, expert_in.subspan(from.first * width, at.count * width), at.count);
    products.push_back(
        product_of(step.hidden, expert, hidden.subspan(at.first * inner, at.count * inner), from, single_rows));
    if (step.hidden.up) products.back().up_y = up.subspan(at.first * inner, at.count * inner);
  });
  if (step.shared) {
    show({&step.shared->hidden, 1}, 0, in, tokens);
    products.push_back(product_of(step.shared->hidden, 0, shared_hidden, {alone ? 0 : rows, tokens}, singles));
    if (step.shared->hidden.up) products.back().up_y = up.subspan(rows * inner);
  }
  kernels::multiply_all(products, expert_in, alone ? 1 : rows + shared_rows);

  for_each_expert([&](std::size_t expert, RowRange at, std::optional<std::size_t> single_rows) {
    show({&step.down, 1}, expert, hidden.subspan(at.first * inner, at.count * inner), at.count);
    products.push_back(
        product_of(step.down, expert, results.subspan(at.first * width, at.count * width), at, single_rows));
  });
  kernels::multiply_all(products, hidden.first(rows * inner), rows);

  std::span<float> gates;
  if (step.shared) {
    show({&step.shared->down, 1}, 0, shared_hidden, tokens);
    const kernels::Product down = product_of(step.shared->down, 0, shared_out, {0, tokens}, singles);
    kernels::multiply_all({&down, 1}, shared_hidden, tokens);
    if (step.shared->router) {
      gates = sized(work_.scores, tokens);
      run_router(*step.shared->router, std::nullopt, in, gates);
      kernels::activate(kernels::Activation::sigmoid, gates, gates);
    }
  }

  const std::span<float> out = values(step.down.out);
  parallel_for(tokens, kTokensToCopy, [&](std::size_t begin, std::size_t end) {
    for (std::size_t t = begin; t < end; ++t) {
      const std::span<float> sum = out.subspan(t * width, width);
      kernels::clear(sum);
      for (std::size_t i = t * used; i < (t + 1) * used; ++i) {
        kernels::add_scaled(results.subspan(routing.row_of[i] * width, width), routing.weights[i], sum);
      }
      if (step.shared) kernels::add_scaled(shared_out.subspan(t * width, width), gates.empty() ? 1 : gates[t], sum);
    }
  });
}

}  // namespace imago::backend
