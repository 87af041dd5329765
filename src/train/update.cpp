#include "train/update.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/names.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/ops.h"

namespace imago {

namespace {

constexpr std::pair<OptimizerKind, std::string_view> kOptimizers[] = {
    {OptimizerKind::sgd, "sgd"},
    {OptimizerKind::momentum, "momentum"},
    {OptimizerKind::adam, "adam"},
    {OptimizerKind::adamw, "adamw"},
};

constexpr std::pair<ScheduleKind, std::string_view> kSchedules[] = {
    {ScheduleKind::constant, "constant"},
    {ScheduleKind::cosine, "cosine"},
};

// Elements of a gradient worth a thread: some 5 µs of reading.
constexpr std::size_t kGrain = 16384;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void check_share(float value, std::string_view what) {
  if (!(value >= 0 && value < 1)) throw UsageError(fmt::format("{} must be in [0, 1), not {}", what, value));
}

void check_not_negative(float value, std::string_view what) {
  if (!(value >= 0) || !std::isfinite(value)) {
    throw UsageError(fmt::format("{} must be finite and 0 or more, not {}", what, value));
  }
}

kernels::UpdateKind kernel_kind(OptimizerKind kind) noexcept {
  switch (kind) {
    case OptimizerKind::sgd: return kernels::UpdateKind::plain;
    case OptimizerKind::momentum: return kernels::UpdateKind::momentum;
    case OptimizerKind::adam:
    case OptimizerKind::adamw: return kernels::UpdateKind::adam;
  }
  return kernels::UpdateKind::plain;
}

}  // namespace

std::string_view name(OptimizerKind kind) noexcept { return name_in(kOptimizers, kind); }

OptimizerKind parse_optimizer(std::string_view text) { return parse_in(kOptimizers, text, "optimizer"); }

int moment_count(OptimizerKind kind) noexcept {
  switch (kind) {
    case OptimizerKind::sgd: return 0;
    case OptimizerKind::momentum: return 1;
    case OptimizerKind::adam:
    case OptimizerKind::adamw: return 2;
  }
  return 0;
}

void check_optimizer(const OptimizerOptions& options) {
  check_share(options.momentum, "the momentum of the optimizer");
  check_share(options.beta1, "beta1 of the optimizer");
  check_share(options.beta2, "beta2 of the optimizer");
  check_not_negative(options.epsilon, "epsilon of the optimizer");
  check_not_negative(options.weight_decay, "weight decay");
  check_not_negative(options.clip_element, "the bound of gradient elements");
  check_not_negative(options.clip_norm, "the bound of the gradient's norm");
  if (options.weight_decay != 0 && options.kind != OptimizerKind::adamw) {
    throw UsageError(fmt::format("weight decay belongs to adamw; {} has none", name(options.kind)));
  }
}

UpdateRule::UpdateRule(const OptimizerOptions& options, std::uint64_t step, double rate, double gradient_factor)
    : args_{.weights = nullptr,
            .gradient = nullptr,
            .moment1 = nullptr,
            .moment2 = nullptr,
            .count = 0,
            .kind = kernel_kind(options.kind),
            .rate = static_cast<float>(rate),
            .keep = 1,
            .momentum = options.momentum,
            .beta2 = options.beta2,
            .blend1 = static_cast<float>(1 - static_cast<double>(options.beta1)),
            .blend2 = static_cast<float>(1 - static_cast<double>(options.beta2)),
            .root_correction2 = 1,
            .epsilon = options.epsilon,
            .bound = options.clip_element > 0 ? options.clip_element : kInfinity,
            .factor = static_cast<float>(gradient_factor),
            .floor = -kInfinity} {
  assert(step >= 1);
  if (options.kind == OptimizerKind::adamw) {  // decoupled decay
    args_.keep = static_cast<float>(1 - rate * static_cast<double>(options.weight_decay));
  }
  if (args_.kind == kernels::UpdateKind::adam) {
    const double steps = static_cast<double>(step);
    const double correction1 = 1 - std::pow(static_cast<double>(options.beta1), steps);
    const double correction2 = 1 - std::pow(static_cast<double>(options.beta2), steps);
    args_.rate = static_cast<float>(rate / correction1);
    args_.root_correction2 = static_cast<float>(std::sqrt(correction2));
  }
}

kernels::UpdateArgs UpdateRule::arguments(bool not_negative) const noexcept {
  kernels::UpdateArgs args = args_;
  if (not_negative) args.floor = 0;
  return args;
}

void UpdateRule::apply(std::span<float> weights, std::span<const float> gradient, std::span<float> moment1,
                       std::span<float> moment2, bool not_negative) const {
  assert(gradient.size() == weights.size());
  assert(moment1.size() == (args_.kind != kernels::UpdateKind::plain ? weights.size() : 0));
  assert(moment2.size() == (args_.kind == kernels::UpdateKind::adam ? weights.size() : 0));
  kernels::UpdateArgs args = arguments(not_negative);
  args.weights = weights.data();
  args.gradient = gradient.data();
  args.moment1 = moment1.empty() ? nullptr : moment1.data();
  args.moment2 = moment2.empty() ? nullptr : moment2.data();
  args.count = weights.size();
  kernels::update(args);
}

double clipped_square_sum(std::span<const float> gradient, float clip_element) {
  const float bound = clip_element > 0 ? clip_element : kInfinity;
  return ordered_sum(gradient.size(), kGrain, [&](std::size_t begin, std::size_t end) {
    return kernels::clipped_squares(gradient.subspan(begin, end - begin), bound);
  });
}

// ---- schedules

std::string_view name(ScheduleKind kind) noexcept { return name_in(kSchedules, kind); }

ScheduleKind parse_schedule(std::string_view text) { return parse_in(kSchedules, text, "schedule"); }

float Schedule::at(std::uint64_t step, std::uint64_t total) const noexcept {
  if (step < warmup_steps) {
    return static_cast<float>(static_cast<double>(rate) * static_cast<double>(step + 1) /
                              static_cast<double>(warmup_steps));
  }
  if (kind == ScheduleKind::constant) return rate;
  const double length = total > warmup_steps ? static_cast<double>(total - warmup_steps) : 1;
  const double done = std::min(1.0, static_cast<double>(step - warmup_steps) / length);
  const double last = static_cast<double>(final_fraction);
  const double share = last + (1 - last) * (1 + std::cos(std::numbers::pi * done)) / 2;
  return static_cast<float>(static_cast<double>(rate) * share);
}

}  // namespace imago
