#include "lm/sampler_options.h"

#include <fmt/format.h>

#include <cmath>

#include "imago/error.h"

namespace imago::lm {

namespace {

void check(bool good, std::string_view option, double value, std::string_view allowed) {
  if (!good) throw UsageError(fmt::format("{} is {}; it can be {}", option, value, allowed));
}

}  // namespace

void check_sampler_options(const SamplerOptions& options) {
  const auto within = [](float value, float low, float high) { return value >= low && value <= high; };  // NaN: false
  check(within(options.temperature, 0, 100), "temperature", options.temperature, "0 to 100");
  check(options.top_k >= 0, "top_k", options.top_k, "0 (all) or more");
  check(within(options.top_p, 0, 1) && options.top_p > 0, "top_p", options.top_p, "above 0, up to 1 (all)");
  check(within(options.min_p, 0, 1), "min_p", options.min_p, "0 (all) to 1");
  check(within(options.typical_p, 0, 1) && options.typical_p > 0, "typical_p", options.typical_p,
        "above 0, up to 1 (off)");
  check(within(options.repeat_penalty, 0.01f, 100), "repeat_penalty", options.repeat_penalty, "0.01 to 100 (1: off)");
  check(within(options.presence_penalty, -100, 100), "presence_penalty", options.presence_penalty, "-100 to 100");
  check(within(options.frequency_penalty, -100, 100), "frequency_penalty", options.frequency_penalty, "-100 to 100");
  check(options.penalty_tokens >= -1, "penalty_tokens", options.penalty_tokens, "-1 (all) or more");
  for (const auto& [id, bias] : options.bias) {
    check(id >= 0, "bias: a token id", id, "0 or more");
    const bool good = std::isfinite(bias) || (std::isinf(bias) && bias < 0);
    check(good, fmt::format("bias of token {}", id), bias, "any finite number, or -infinity to forbid it");
  }
}

}  // namespace imago::lm
