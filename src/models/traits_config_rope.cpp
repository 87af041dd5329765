#include "models/traits_config_rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/traits_reading.h"

namespace imago::models {

namespace {

using Kind = RopeScaling::Kind;

/// A field that newer files keep in `rope_parameters` and older ones beside everything else.
double stated(const ConfigFields& config, const std::optional<ConfigFields>& rope, std::string_view key, double high,
              double fallback) {
  if (rope && rope->has(key)) return rope->positive(key, high);
  return config.positive(key, high, fallback);
}

double original_context(const ConfigFields& config, const ConfigFields& rope, std::size_t fallback) {
  constexpr std::string_view key = "original_max_position_embeddings";
  const ConfigFields& place = rope.has(key) ? rope : config;
  return static_cast<double>(place.size(key, kMaxContext, fallback));
}

RopeScaling read_llama3(const ConfigFields& config, const ConfigFields& rope) {
  RopeScaling scaling{.kind = Kind::llama3};
  scaling.factor = rope.positive("factor", kMaxFactor);
  scaling.low_freq_factor = rope.positive("low_freq_factor", kMaxFactor);
  scaling.high_freq_factor = rope.positive("high_freq_factor", kMaxFactor);
  scaling.original_context = original_context(config, rope, 0);
  if (scaling.original_context == 0) rope.fail("llama3 needs 'original_max_position_embeddings', which is missing");
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    rope.fail(fmt::format("high_freq_factor must be above low_freq_factor, but they are {} and {}",
                          scaling.high_freq_factor, scaling.low_freq_factor));
  }
  return scaling;
}

RopeScaling read_yarn(const ConfigFields& config, const ConfigFields& rope, std::size_t context) {
  RopeScaling scaling{.kind = Kind::yarn};
  scaling.original_context = original_context(config, rope, context);
  scaling.factor =
      rope.positive("factor", kMaxFactor, std::max(1.0, static_cast<double>(context) / scaling.original_context));
  scaling.beta_fast = rope.positive("beta_fast", kMaxFactor, scaling.beta_fast);
  scaling.beta_slow = rope.positive("beta_slow", kMaxFactor, scaling.beta_slow);
  scaling.truncate = rope.flag("truncate", true);
  if (rope.has("attention_factor")) {
    scaling.attention_factor = rope.positive("attention_factor", kMaxFactor);
  } else if (rope.has("mscale") && rope.has("mscale_all_dim")) {
    const auto grown = [&](double weight) { return weight * (yarn_attention_factor(scaling.factor) - 1) + 1; };
    scaling.attention_factor =
        grown(rope.positive("mscale", kMaxFactor)) / grown(rope.positive("mscale_all_dim", kMaxFactor));
  }
  return scaling;
}

bool all_ones(const ConfigFields& rope, std::string_view key) {
  const std::optional<files::JsonValue> list = rope.find(key);
  if (!list) return false;
  for (const files::JsonMember member : list->elements(key)) {
    if (member.value.number(key) != 1) return false;
  }
  return true;
}

/// Longrope changes nothing where all its factors are 1 and the context is the one trained on.
void refuse_longrope(const ConfigFields& config, const ConfigFields& rope, std::size_t context) {
  const bool nothing = all_ones(rope, "short_factor") && all_ones(rope, "long_factor") &&
                       original_context(config, rope, context) >= static_cast<double>(context) &&
                       rope.positive("attention_factor", kMaxFactor, 1) == 1;
  if (!nothing) {
    config.refuse(
        "rope scaling of type 'longrope' (two sets of factors, for short and long texts) is not supported; "
        "known are linear, llama3 and yarn");
  }
}

}  // namespace

void read_config_rope(const ConfigFields& config, Traits& traits) {
  const std::string_view key = config.either("rope_parameters", "rope_scaling");
  const std::optional<ConfigFields> rope = config.object(key);
  if (rope && (rope->has("full_attention") || rope->has("sliding_attention"))) {
    config.refuse(fmt::format("'{}' with a set for each kind of attention is not supported", key));
  }
  traits.rope_base = stated(config, rope, "rope_theta", kMaxRopeBase, traits.rope_base);
  const double share = stated(config, rope, "partial_rotary_factor", 1, 1);
  traits.rotary = static_cast<std::size_t>(static_cast<double>(traits.head_values) * share);
  if (!rope) return;

  const std::string type = rope->text(rope->either("rope_type", "type"), "default");
  if (type == "linear") {
    traits.rope_scaling = {.kind = Kind::linear, .factor = rope->positive("factor", kMaxFactor)};
  } else if (type == "llama3") {
    traits.rope_scaling = read_llama3(config, *rope);
  } else if (type == "yarn") {
    traits.rope_scaling = read_yarn(config, *rope, traits.context);
  } else if (type == "longrope" || type == "su") {
    refuse_longrope(config, *rope, traits.context);
  } else if (type != "default") {
    config.refuse(fmt::format("rope scaling of type '{}' is not supported; known are linear, llama3 and yarn", type));
  }
}

}  // namespace imago::models
