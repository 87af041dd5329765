#include "kernels/ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/checked.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/folders.h"
#include "kernels/operation_sizes.h"
#include "kernels/ops_table.h"

// ---- the table: one row per operation and instruction set

namespace imago::kernels {

namespace {

template <class Args>
std::vector<OpKernel<Args>> make_rows() {
  std::vector<OpKernel<Args>> rows;
  const auto add = [&](const std::string& folder, CpuFeatures needs, void (*run)(const Args&) noexcept) {
    rows.push_back({Args::kName + ("/" + folder), needs, run});
  };
#if defined(__x86_64__)
  if constexpr (std::is_same_v<Args, AttentionArgs>) {
    add("amx", kAmx | kVnni | kAvx512 | kAvx2, avx512::run_by_tiles);
  }
  add("avx512", kAvx512 | kAvx2, avx512::run);
  add("avx2", kAvx2, avx2::run);
#elif defined(__aarch64__)
  add("neon", kNeonDot, neon::run);
#endif
  add("ref", kNoFeatures, ref::run);
  return rows;
}

}  // namespace

template <class Args>
std::span<const OpKernel<Args>> all_ops() {
  static const std::vector<OpKernel<Args>> rows = make_rows<Args>();
  return rows;
}

template std::span<const OpKernel<RmsNormArgs>> all_ops();
template std::span<const OpKernel<LayerNormArgs>> all_ops();
template std::span<const OpKernel<SoftmaxArgs>> all_ops();
template std::span<const OpKernel<RopeArgs>> all_ops();
template std::span<const OpKernel<ActivateArgs>> all_ops();
template std::span<const OpKernel<AddScaledArgs>> all_ops();
template std::span<const OpKernel<ScaleArgs>> all_ops();
template std::span<const OpKernel<QuantizeArgs>> all_ops();
template std::span<const OpKernel<AttentionArgs>> all_ops();
template std::span<const OpKernel<ShortConvArgs>> all_ops();
template std::span<const OpKernel<StepSizeArgs>> all_ops();
template std::span<const OpKernel<LinearScanArgs>> all_ops();
template std::span<const OpKernel<ChannelScanArgs>> all_ops();
template std::span<const OpKernel<UpdateArgs>> all_ops();
template std::span<const OpKernel<SquaresArgs>> all_ops();

}  // namespace imago::kernels

// ---- the operations

namespace imago::kernels {

namespace {

// An optimizer touches up to seven arrays per weight.
constexpr std::size_t kUpdateGrain = 8192;

template <class Args>
const OpKernel<Args>& best() {
  return choose_op<Args>(allowed_cpu_features());
}

/// Runs an operation on rows in parts, on all threads.
template <class Args>
void run_rows(const Args& whole) {
  const auto& kernel = best<Args>();
  parallel_for(whole.rows, std::max<std::size_t>(1, kGrain / whole.cols), [&](std::size_t begin, std::size_t end) {
    Args part = whole;
    part.x += begin * whole.cols;
    if constexpr (requires { part.y; }) part.y += begin * whole.cols;
    part.rows = end - begin;
    kernel.run(part);
  });
}

/// The same for operations on values, whose arrays `advance(part, values)` moves on.
template <class Args, class Advance>
void run_values(const Args& whole, std::size_t grain, Advance advance) {
  const auto& kernel = best<Args>();
  parallel_for(whole.count, grain, [&](std::size_t begin, std::size_t end) {
    Args part = whole;
    advance(part, begin);
    part.count = end - begin;
    kernel.run(part);
  });
}
constexpr auto kAdvanceXAndY = [](auto& part, std::size_t values) {
  part.x += values;
  part.y += values;
};

}  // namespace

void rms_norm(std::span<const float> x, std::span<const float> weight, float eps, std::span<float> y,
              float weight_offset) {
  const std::size_t cols = weight.size();
  const std::size_t rows = rows_of("rms_norm", x.size(), cols);
  check_size("rms_norm", "y", y.size(), x.size());
  run_rows(RmsNormArgs{.x = x.data(),
                       .y = y.data(),
                       .rows = rows,
                       .cols = cols,
                       .weight = weight.data(),
                       .weight_offset = weight_offset,
                       .eps = eps});
}

void layer_norm(std::span<const float> x, std::span<const float> gamma, std::span<const float> beta, float eps,
                std::span<float> y) {
  const std::size_t cols = gamma.size();
  const std::size_t rows = rows_of("layer_norm", x.size(), cols);
  check_size("layer_norm", "y", y.size(), x.size());
  if (!beta.empty()) check_size("layer_norm", "beta", beta.size(), cols);
  run_rows(LayerNormArgs{.x = x.data(),
                         .y = y.data(),
                         .rows = rows,
                         .cols = cols,
                         .gamma = gamma.data(),
                         .beta = beta.empty() ? nullptr : beta.data(),
                         .eps = eps});
}

void softmax(std::span<float> x, std::size_t cols, float scale, float cap) {
  if (!(scale > 0)) throw UsageError(fmt::format("[softmax] a scale of {} is not positive", scale));
  if (!(cap >= 0)) throw UsageError(fmt::format("[softmax] a cap of {} is negative", cap));
  const std::size_t rows = rows_of("softmax", x.size(), cols);
  run_rows(SoftmaxArgs{.x = x.data(), .rows = rows, .cols = cols, .scale = scale, .cap = cap});
}

RopeTable::RopeTable(const RopeSettings& settings, std::size_t positions)
    : rotary_(settings.rotary), positions_(positions) {
  const std::size_t half = rotary_ / 2;
  const std::vector<double>& factors = settings.frequency_factors;
  if (rotary_ % 2 != 0) throw UsageError(fmt::format("[rope] {} values cannot be paired", rotary_));
  if (!(settings.base > 0)) throw UsageError(fmt::format("[rope] a base of {} is not positive", settings.base));
  if (!factors.empty() && factors.size() != half) {
    throw UsageError(fmt::format("[rope] {} factors for {} frequencies", factors.size(), half));
  }
  std::vector<double> frequencies(half);
  for (std::size_t j = 0; j < half; ++j) {
    const double exponent = -2 * static_cast<double>(j) / static_cast<double>(rotary_);
    frequencies[j] = std::pow(settings.base, exponent) * (factors.empty() ? 1 : factors[j]);
  }
  cos_sin_.resize(checked_mul(positions, rotary_, "rope table"));
  const auto fill = [&](std::size_t position) {
    float* const to = cos_sin_.data() + position * rotary_;
    for (std::size_t j = 0; j < half; ++j) {
      const double angle = static_cast<double>(position) * frequencies[j];
      to[j] = static_cast<float>(std::cos(angle) * settings.attention_factor);
      to[half + j] = static_cast<float>(std::sin(angle) * settings.attention_factor);
    }
  };
  parallel_rows(positions, 1, fill, 256);
}

std::span<const float> RopeTable::at(std::size_t position) const {
  if (position >= positions_) {
    throw UsageError(fmt::format("[rope] position {} of a table of {}", position, positions_));
  }
  return std::span(cos_sin_).subspan(position * rotary_, rotary_);
}

void rope(std::span<float> x, std::size_t heads, std::size_t head_values, const RopeTable& table,
          std::size_t first_position, RopePairs pairs) {
  if (table.rotary() > head_values) {
    throw ShapeError(fmt::format("[rope] heads of {} values cannot turn {}", head_values, table.rotary()));
  }
  const std::size_t token_values = checked_mul(heads, head_values, "rope");
  const std::size_t tokens = rows_of("rope", x.size(), token_values);
  if (tokens == 0) return;
  (void)table.at(checked_add(first_position, tokens - 1, "rope"));  // the last of them exists
  const auto& kernel = best<RopeArgs>();
  const auto turn = [&](std::size_t token) {
    kernel.run({.x = x.data() + token * token_values,
                .heads = heads,
                .head_values = head_values,
                .rotary = table.rotary(),
                .cos_sin = table.at(first_position + token).data(),
                .pairs = pairs});
  };
  parallel_rows(tokens, token_values, turn, kGrain);
}

void activate(Activation function, std::span<const float> x, std::span<float> y) {
  check_size("activate", "y", y.size(), x.size());
  run_values(ActivateArgs{.x = x.data(), .up = nullptr, .y = y.data(), .count = x.size(), .function = function}, kGrain,
             kAdvanceXAndY);
}

void activate_mul(Activation function, std::span<const float> gate, std::span<const float> up, std::span<float> y) {
  check_size("activate_mul", "up", up.size(), gate.size());
  check_size("activate_mul", "y", y.size(), gate.size());
  run_values(ActivateArgs{.x = gate.data(), .up = up.data(), .y = y.data(), .count = gate.size(), .function = function},
             kGrain, [](ActivateArgs& part, std::size_t values) {
               kAdvanceXAndY(part, values);
               part.up += values;
             });
}

void add(std::span<const float> x, std::span<float> y) { add_scaled(x, 1, y); }

void add_scaled(std::span<const float> x, float factor, std::span<float> y) {
  check_size("add_scaled", "y", y.size(), x.size());
  run_values(AddScaledArgs{.x = x.data(), .y = y.data(), .count = x.size(), .factor = factor}, kGrain, kAdvanceXAndY);
}

void scale(std::span<float> y, float factor) {
  run_values(ScaleArgs{.x = y.data(), .y = y.data(), .count = y.size(), .factor = factor}, kGrain, kAdvanceXAndY);
}

void copy(std::span<const float> from, std::span<float> to) {
  check_size("copy", "the target", to.size(), from.size());
  parallel_for(from.size(), kGrain, [&](std::size_t begin, std::size_t end) {
    std::copy_n(from.data() + begin, end - begin, to.data() + begin);
  });
}

void clear(std::span<float> y) {
  parallel_for(y.size(), kGrain,
               [&](std::size_t begin, std::size_t end) { std::fill_n(y.data() + begin, end - begin, 0.0f); });
}

void update(const UpdateArgs& args) {
  run_values(args, kUpdateGrain, [](UpdateArgs& part, std::size_t weights) {
    part.weights += weights;
    part.gradient += weights;
    if (part.moment1 != nullptr) part.moment1 += weights;
    if (part.moment2 != nullptr) part.moment2 += weights;
  });
}

double clipped_squares(std::span<const float> x, float bound) {
  double sum = 0;
  best<SquaresArgs>().run({.x = x.data(), .count = x.size(), .bound = bound, .sum = &sum});
  return sum;
}

}  // namespace imago::kernels
