// Products as callers see them: one matrix or several, split over the pool.

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/matrix.h"
#include "kernels/matrix_activations.h"
#include "kernels/stretches.h"

namespace imago::kernels {

namespace {

// Panels are handed out in pairs: exact products share tables and decoded tokens between two.
constexpr std::size_t kPanelsPerUnit = 2;

// In bytes, see unit_cost: some microseconds.
constexpr std::size_t kShortestStretch = 64 << 10;

void check_shape(std::size_t values, std::size_t wanted, const char* what) {
  if (values != wanted) throw ShapeError(fmt::format("{} values of {}, not {}", values, what, wanted));
}

Activations tokens_of(Activations in, std::size_t first, std::size_t count) noexcept {
  const std::size_t columns = first * in.stride;
  if (in.x != nullptr) in.x += columns;
  if (in.q != nullptr) in.q += columns;
  if (in.scales != nullptr) in.scales += columns / 32;
  if (in.code_sums != nullptr) in.code_sums += columns / 16;
  if (in.block_code_sums != nullptr) in.block_code_sums += columns / 32;
  if (in.sums != nullptr) in.sums += columns / 16;
  if (in.block_sums != nullptr) in.block_sums += columns / 32;
  if (in.totals != nullptr) in.totals += first;
  if (in.tile_totals != nullptr) in.tile_totals += first;
  if (in.tiles != nullptr) in.tiles += first / kTileTokens * in.tiles_apart;
  in.skipped = first % kTileTokens;
  in.batch = count;
  return in;
}

void check_product(const Product& product, std::size_t cols, std::size_t batch) {
  const RunMatrix& matrix = *product.matrix;
  if (matrix.cols() != cols) {
    throw ShapeError(fmt::format("a matrix of {} columns beside one of {}", matrix.cols(), cols));
  }
  if (product.first_token > batch || product.tokens > batch - product.first_token) {
    throw ShapeError(
        fmt::format("tokens {} to {} of {}", product.first_token, product.first_token + product.tokens, batch));
  }
  const std::size_t results = checked_mul(product.tokens, matrix.rows(), "a batch");
  check_shape(product.y.size(), results, "results");
  if (!product.epilogue.bias.empty()) check_shape(product.epilogue.bias.size(), matrix.rows(), "bias");
  if (product.singles.value_or(0) > product.tokens) {
    throw ShapeError(fmt::format("{} single tokens of {}", *product.singles, product.tokens));
  }
  if (product.up == nullptr) return;
  const RunMatrix& up = *product.up;
  if (up.rows() != matrix.rows() || up.cols() != matrix.cols()) {
    throw ShapeError(fmt::format("a gate of {} × {} and an up projection of {} × {}", matrix.rows(), matrix.cols(),
                                 up.rows(), up.cols()));
  }
  check_shape(product.up_y.size(), results, "up results");
  if (!product.up_bias.empty()) check_shape(product.up_bias.size(), up.rows(), "up bias");
}

}  // namespace

/// The products of one arithmetic, side by side on a line as long as their cost; threads take stretches of it.
struct ProductRegion {
  std::span<const Product> products;
  Arithmetic arithmetic;
  const Activations& in;

  /// A gate and its `up` go together where one range of panels means the same rows in both.
  static bool is_joint(const Product& product) noexcept {
    return product.up != nullptr && product.up->kernel().arithmetic == product.matrix->kernel().arithmetic &&
           product.up->kernel().panel_rows == product.matrix->kernel().panel_rows;
  }

  bool takes(const Product& product) const noexcept {
    return product.tokens != 0 && product.matrix->kernel().arithmetic == arithmetic;
  }

  static std::size_t units(const Product& product) noexcept {
    return (product.matrix->panels() + kPanelsPerUnit - 1) / kPanelsPerUnit;
  }

  /// The cost of a unit. Few tokens wait for the bytes of the panels, many for arithmetic: a core multiplies some 12
  /// pairs in the time that a byte takes to come.
  static std::size_t unit_cost(const Product& product) noexcept {
    const RunMatrix& matrix = *product.matrix;
    const std::size_t bytes =
        matrix.bytes() / matrix.panels() + (is_joint(product) ? product.up->bytes() / matrix.panels() : 0);
    const std::size_t sums = product.tokens * matrix.kernel().panel_rows * matrix.cols();
    return std::max<std::size_t>(1, std::max(bytes, sums * (is_joint(product) ? 2 : 1) / 12));
  }

  enum class Company : std::uint8_t { any, none, many };  ///< whose results tokens get

  /// Some units of some tokens of a product.
  void run_tokens(const Product& product, std::size_t begin, std::size_t end, std::size_t token, std::size_t count,
                  Company company) const {
    const std::size_t first = begin * kPanelsPerUnit;
    const std::size_t last = std::min(end * kPanelsPerUnit, product.matrix->panels());
    Activations tokens = tokens_of(in, product.first_token + token, count);
    if (company == Company::none) tokens.tiles = nullptr;
    const bool many = company == Company::many;
    float* const y = product.y.data() + token * product.matrix->rows();
    float* const up_y = product.up == nullptr ? nullptr : product.up_y.data() + token * product.matrix->rows();
    if (is_joint(product)) product.up->run_panels(tokens, first, last, up_y, {.bias = product.up_bias}, nullptr, many);
    product.matrix->run_panels(tokens, first, last, y, product.epilogue, up_y, many);
  }

  void run_units(const Product& product, std::size_t begin, std::size_t end) const {
    if (!product.singles) return run_tokens(product, begin, end, 0, product.tokens, Company::any);
    const std::size_t singles = *product.singles;
    std::size_t together = product.matrix->kernel().functions.alike;
    if (is_joint(product)) together = std::min(together, product.up->kernel().functions.alike);
    // Unit by unit where the tokens do not go together: its panels stay in the cache.
    const std::size_t units_together = singles <= together ? std::max<std::size_t>(end - begin, 1) : 1;
    for (std::size_t unit = begin; unit < end; unit += units_together) {
      for (std::size_t token = 0; token < singles; token += std::min(together, singles - token)) {
        run_tokens(product, unit, std::min(unit + units_together, end), token, std::min(together, singles - token),
                   Company::none);
      }
    }
    if (singles < product.tokens) run_tokens(product, begin, end, singles, product.tokens - singles, Company::many);
  }

  void run() const {
    std::size_t total = 0, total_units = 0, shortest = kShortestStretch;
    for (const Product& product : products) {
      if (!takes(product)) continue;
      total += units(product) * unit_cost(product);
      total_units += units(product);
      if (in.tiles != nullptr) shortest = std::max(shortest, kTilePanels / kPanelsPerUnit * unit_cost(product));
    }
    const std::size_t threads = std::min(static_cast<std::size_t>(pool_threads()), total_units);
    if (threads == 0) return;
    const Stretches stretches(total, threads, shortest);
    parallel_for_dynamic(stretches.count(), 1, [&](std::size_t number, std::size_t) {
      const auto [from, to] = stretches[number];
      std::size_t start = 0;  // of the product on the line
      for (const Product& product : products) {
        if (!takes(product)) continue;
        const std::size_t cost = unit_cost(product);
        const std::size_t count = units(product);
        // A unit belongs to the stretch that it begins in.
        const auto unit_at = [&](std::size_t place) {
          return place <= start ? 0 : std::min(count, (place - start + cost - 1) / cost);
        };
        const std::size_t first = unit_at(from), last = unit_at(to);
        if (first < last) run_units(product, first, last);
        start += count * cost;
      }
    });
  }
};

void multiply_all(std::span<const Product> products, std::span<const float> x, std::size_t batch) {
  if (products.empty()) return;
  const std::size_t cols = products.front().matrix->cols();
  check_shape(x.size(), checked_mul(batch, cols, "a batch"), "activations");
  for (const Product& product : products) check_product(product, cols, batch);
  if (batch == 0) return;
  for (const Product& product : products) {
    if (product.up != nullptr && !ProductRegion::is_joint(product)) {
      const Product up{.matrix = product.up,
                       .y = product.up_y,
                       .first_token = product.first_token,
                       .tokens = product.tokens,
                       .epilogue = {.bias = product.up_bias},
                       .singles = product.singles};
      multiply_all({&up, 1}, x, batch);
    }
  }
  for (const Arithmetic arithmetic : {Arithmetic::fast, Arithmetic::exact}) {
    bool any = false;
    ActivationNeeds needs;
    for (const Product& product : products) {
      if (product.matrix->kernel().arithmetic != arithmetic) continue;
      any = true;
      const auto add = [&](const MatrixKernel& kernel) {
        if (!product.singles) return needs.add(kernel, batch);
        if (*product.singles != 0) needs.add(kernel, 1);
        if (*product.singles < product.tokens) needs.add(kernel, kManyTokens);
      };
      add(product.matrix->kernel());
      if (ProductRegion::is_joint(product)) add(product.up->kernel());
    }
    if (!any) continue;
    const PreparedActivations prepared(x, batch, cols, needs);
    ProductRegion{products, arithmetic, prepared.view()}.run();
  }
}

void RunMatrix::multiply(std::span<const float> x, std::size_t batch, std::span<float> y,
                         const Epilogue& epilogue) const {
  const Product product{.matrix = this, .y = y, .first_token = 0, .tokens = batch, .epilogue = epilogue};
  multiply_all({&product, 1}, x, batch);
}

}  // namespace imago::kernels
