#include "backend/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace imago::backend {

namespace {

constexpr std::array<std::string_view, kRoles> kRoleNames = {"token_embedding",
                                                             "position_embedding",
                                                             "token_types",
                                                             "embedding_norm",
                                                             "embedding_norm_bias",
                                                             "output_norm",
                                                             "output_norm_bias",
                                                             "output",
                                                             "head_dense",
                                                             "head_dense_bias",
                                                             "head_norm",
                                                             "head_output",
                                                             "head_output_bias",
                                                             "attention_norm",
                                                             "attention_norm_bias",
                                                             "attention_post_norm",
                                                             "attention_post_norm_bias",
                                                             "query",
                                                             "query_bias",
                                                             "key",
                                                             "key_bias",
                                                             "value",
                                                             "value_bias",
                                                             "query_norm",
                                                             "key_norm",
                                                             "attention_output",
                                                             "attention_output_bias",
                                                             "sinks",
                                                             "feed_forward_norm",
                                                             "feed_forward_norm_bias",
                                                             "feed_forward_post_norm",
                                                             "feed_forward_post_norm_bias",
                                                             "gate",
                                                             "gate_bias",
                                                             "up",
                                                             "up_bias",
                                                             "down",
                                                             "down_bias",
                                                             "router",
                                                             "router_bias",
                                                             "choice_bias",
                                                             "shared_router",
                                                             "shared_gate",
                                                             "shared_up",
                                                             "shared_down",
                                                             "attention_gate",
                                                             "channels",
                                                             "input_gate",
                                                             "output_gate",
                                                             "step",
                                                             "step_bias",
                                                             "step_low",
                                                             "taps",
                                                             "taps_bias",
                                                             "decay_rate",
                                                             "skip",
                                                             "scan_norm",
                                                             "scan_output",
                                                             "query_low",
                                                             "query_low_norm",
                                                             "latent",
                                                             "latent_norm",
                                                             "key_up",
                                                             "value_up",
                                                             "rope_factors",
                                                             "output_bias",
                                                             "layer_embedding",
                                                             "layer_projection",
                                                             "layer_projection_norm",
                                                             "layer_gate",
                                                             "layer_output",
                                                             "layer_post_norm",
                                                             "block_scale",
                                                             "router_norm",
                                                             "expert_scale",
                                                             "dense_post_norm",
                                                             "experts_norm",
                                                             "experts_post_norm",
                                                             "stream_projection",
                                                             "stream_merge",
                                                             "stream_router",
                                                             "stream_router_norm",
                                                             "stream_prediction",
                                                             "stream_correction",
                                                             "stream_scale",
                                                             "laurel_low",
                                                             "laurel_up",
                                                             "laurel_norm"};

constexpr std::array<std::string_view, kSlots> kSlotNames = {
    "stream",    "normed",     "branch",      "query",        "key",          "value",   "hidden",       "logits",
    "channels",  "input_gate", "output_gate", "step",         "step_low",     "scanned", "layer_inputs", "layer_hidden",
    "query_low", "attended",   "routed",      "from_experts", "dense_hidden", "up",      "laurel_low",   "streams"};

constexpr std::array<std::string_view, kernels::kActivationCount> kActivationNames = {
    "linear", "relu", "relu2", "leaky_relu", "silu", "gelu", "tanh", "sigmoid", "gelu_erf", "clamped_swish"};

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;  // clang 14 does not deduce this for aggregates

void list_product(const Product& product, std::size_t expert, std::vector<WeightUse>& uses) {
  WeightUse use{WeightUse::Kind::matrix, {product.matrix.of_expert(expert)}};
  if (product.up) use.keys.push_back(product.up->of_expert(expert));
  uses.push_back(std::move(use));
  for (const auto& bias : {product.bias, product.up_bias}) {
    if (bias) uses.push_back({WeightUse::Kind::bias, {bias->of_expert(expert)}});
  }
}

void list_mixing(const auto& step, std::vector<WeightUse>& uses) {
  uses.push_back({WeightUse::Kind::norm, {step.norm}});
  uses.push_back({WeightUse::Kind::router, {step.router}});
  uses.push_back({WeightUse::Kind::norm, {step.coefficients}});
}

std::string in_activation(kernels::Activation activation, std::string text) {
  if (activation == kernels::Activation::linear) return text;
  return fmt::format("{}({})", kActivationNames[static_cast<std::size_t>(activation)], text);
}

std::string text_of(const Product& product) {
  std::string made(name(product.matrix.role));
  if (product.bias) made += fmt::format(" + {}", name(product.bias->role));
  made = in_activation(product.activation, std::move(made));
  if (product.up) {
    const std::string up = fmt::format("{}", name(product.up->role));
    made += product.up_bias ? fmt::format(" * ({} + {})", up, name(product.up_bias->role)) : " * " + up;
  }
  return fmt::format("{} -> {}", made, name(product.out));
}

std::string text_of(const Norm& step) {
  return fmt::format("{} norm {} by {}{} -> {}", step.kind == NormKind::rms ? "rms" : "layer", name(step.in),
                     name(step.weight.role), step.bias ? fmt::format(" + {}", name(step.bias->role)) : "",
                     name(step.out));
}

std::string text_of(const Products& step) {
  std::string made = fmt::format("products {}:", name(step.in));
  for (const Product& product : step.list) {
    made += fmt::format("{} {}", &product == step.list.data() ? "" : ",", text_of(product));
  }
  return made;
}

std::string text_of(const NormHeads& step) {
  return fmt::format("rms norm heads of {} by {}{}", name(step.at), name(step.weight.role),
                     step.groups == 1 ? "" : fmt::format(" of {} groups", step.groups));
}

std::string text_of(const Attend& step) {
  std::string made = fmt::format("attend * {:g}", step.scale);
  if (step.rotary != 0) {
    made += fmt::format(", rotary{} {} {}", step.rope == 0 ? "" : " other", step.rotary,
                        step.pairs == kernels::RopePairs::halves ? "halves" : "adjacent");
  }
  if (step.query_norm) {
    made += fmt::format(", then norms of heads by {} and {}", name(step.query_norm->role), name(step.key_norm->role));
  }
  if (step.growth != 0) made += fmt::format(", growing by {:g} from {}", step.growth, step.growth_period);
  if (!step.causal) made += ", both ways";
  if (step.window != 0) made += fmt::format(", window {}", step.window);
  if (step.cache) made += fmt::format(", cache of block {}", *step.cache);
  if (step.cap != 0) made += fmt::format(", cap {:g}", step.cap);
  if (step.sinks) made += fmt::format(", {}", name(step.sinks->role));
  return made;
}

std::string text_of(const NormValues& step) { return fmt::format("rms norm heads of {} -> value", name(step.from)); }

std::string text_of(const TakeLayerInput& step) {
  return fmt::format("{}(layer_hidden) * layer_inputs -> layer_hidden",
                     kActivationNames[static_cast<std::size_t>(step.activation)]);
}

std::string text_of(const ScaleStream& step) {
  return fmt::format("stream * {}{}", name(step.factor.role),
                     step.out == Slot::stream ? "" : fmt::format(" -> {}", name(step.out)));
}

std::string text_of(const SparseGate& step) {
  return fmt::format("{} * up -> hidden",
                     in_activation(step.activation, fmt::format("hidden above {:g} deviations", step.deviations)));
}

std::string text_of(const PredictStreams& step) {
  return fmt::format("predict {} streams by {}, {} and {}", step.count, name(step.norm.role), name(step.router.role),
                     name(step.coefficients.role));
}

std::string text_of(const CorrectStreams& step) {
  return fmt::format("correct {} streams by {}, {} and {}", step.count, name(step.norm.role), name(step.router.role),
                     name(step.coefficients.role));
}

std::string text_of(const MergeStreams& step) {
  return fmt::format("merge {} streams by {}", step.count, name(step.matrix.role));
}

std::string text_of(const Scale& step) { return fmt::format("{} *= {:g}", name(step.at), step.factor); }

std::string text_of(const Add& step) {
  return fmt::format("add {}{}{}{}", name(step.from), step.factor == 1 ? "" : fmt::format(" * {:g}", step.factor),
                     step.to == Slot::stream ? "" : fmt::format(" -> {}", name(step.to)),
                     step.scale == 1 ? "" : fmt::format(", all * {:g}", step.scale));
}

std::string text_of(const AdjustLogits& step) {
  return fmt::format("adjust logits * {:g}{}", step.scale, step.cap == 0 ? "" : fmt::format(", cap {:g}", step.cap));
}

std::string text_of(const ShortConv& step) {
  std::string made = fmt::format("{} * channels", name(step.taps.role));
  if (step.bias) made += fmt::format(" + {}", name(step.bias->role));
  return fmt::format("{} -> {}", in_activation(step.activation, made), name(step.out));
}

std::string text_of(const LinearScan& step) {
  const kernels::LinearScanShape& shape = step.shape;
  return fmt::format("{} scan of {} heads of {} x {} in {} groups{} -> scanned", shape.delta ? "delta rule" : "linear",
                     shape.heads, shape.keys, shape.values, shape.groups, shape.tiled ? ", tiled" : "");
}

std::string text_of(const ChannelScan& step) {
  return fmt::format("scan of channels with {} states -> scanned", step.states);
}

std::string text_of(const Gate& step) {
  return fmt::format("{} *= {}", name(step.at), in_activation(step.activation, std::string(name(step.by))));
}

std::string text_of(const LatentAttend& step) {
  return fmt::format("attend * {:g} to {} latent values by {}, rotary {} {}: {}, {} -> attended", step.scale, step.rank,
                     name(step.norm.role), step.rotary,
                     step.pairs == kernels::RopePairs::halves ? "halves" : "adjacent", name(step.key_up.role),
                     name(step.value_up.role));
}

std::string text_of(const Experts& step) {
  std::string made = fmt::format("experts {}: {} of {} by {}", name(step.in), step.used, step.count,
                                 step.scores == ExpertScores::sigmoid ? "sigmoid of " : "");
  made += name(step.router.role);
  if (step.router_in != step.in) made += fmt::format(" of {}", name(step.router_in));
  if (step.router_bias) made += fmt::format(" + {}", name(step.router_bias->role));
  if (step.choice_bias) made += fmt::format(", chosen by + {}", name(step.choice_bias->role));
  if (step.groups > 1) {
    made += fmt::format(", {} of {} groups by their {}", step.groups_used, step.groups,
                        step.two_judge_group ? "two best" : "best");
  }
  if (step.normalize) made += ", normalized";
  if (step.scale != 1) made += fmt::format(" * {:g}", step.scale);
  if (step.expert_scale) made += fmt::format(" * {}", name(step.expert_scale->role));
  made += fmt::format(": {}, {}", text_of(step.hidden), text_of(step.down));
  if (step.shared) {
    made += fmt::format(", all: {}, {}{}", text_of(step.shared->hidden), text_of(step.shared->down),
                        step.shared->router ? fmt::format(" * sigmoid({})", name(step.shared->router->role)) : "");
  }
  return made;
}

}  // namespace

std::string_view name(Role role) noexcept { return kRoleNames[static_cast<std::size_t>(role)]; }
std::string_view name(Slot slot) noexcept { return kSlotNames[static_cast<std::size_t>(slot)]; }

std::size_t Sizes::of(Slot slot) const noexcept {
  switch (slot) {
    case Slot::stream:
    case Slot::normed:
    case Slot::branch:
    case Slot::routed:
    case Slot::from_experts: return width;
    case Slot::dense_hidden: return shared_feed_forward;
    case Slot::laurel_low: return laurel_low;
    case Slot::streams: return streams * width;
    case Slot::query: return heads * (query_values == 0 ? head_values : query_values);
    case Slot::key:
    case Slot::value: return kv_heads * head_values;
    case Slot::hidden:
    case Slot::up: return feed_forward;
    case Slot::logits: return vocabulary;
    case Slot::channels: return channels;
    case Slot::input_gate: return input_gate;
    case Slot::output_gate: return output_gate;
    case Slot::step: return step;
    case Slot::step_low: return step_low;
    case Slot::scanned: return scanned;
    case Slot::layer_inputs: return layer_inputs;
    case Slot::layer_hidden: return layer_values;
    case Slot::query_low: return query_low;
    case Slot::attended: return attended;
  }
  return 0;
}

std::size_t Sizes::copies() const noexcept {
  return std::max({std::size_t{1}, experts, attended == 0 ? 0 : heads, streams});
}

void Sizes::include(const Sizes& other) noexcept {
  for (std::size_t Sizes::*const one : {&Sizes::width,        &Sizes::heads,        &Sizes::kv_heads,
                                        &Sizes::head_values,  &Sizes::feed_forward, &Sizes::vocabulary,
                                        &Sizes::experts,      &Sizes::experts_used, &Sizes::shared_feed_forward,
                                        &Sizes::channels,     &Sizes::input_gate,   &Sizes::output_gate,
                                        &Sizes::step,         &Sizes::step_low,     &Sizes::scanned,
                                        &Sizes::query_values, &Sizes::query_low,    &Sizes::attended,
                                        &Sizes::layer_inputs, &Sizes::layer_values, &Sizes::streams,
                                        &Sizes::laurel_low}) {
    this->*one = std::max(this->*one, other.*one);
  }
}

std::vector<WeightUse> weights_of(std::span<const Step> steps) {
  using Kind = WeightUse::Kind;
  std::vector<WeightUse> uses;
  const Overloaded list{
      [&](const Norm& step) {
        uses.push_back({Kind::norm, {step.weight}});
        if (step.bias) uses.push_back({Kind::bias, {*step.bias}});
      },
      [&](const Products& step) {
        for (const Product& product : step.list) list_product(product, 0, uses);
      },
      [&](const NormHeads& step) {
        uses.push_back({Kind::norm, {step.weight}});
      },
      [&](const Attend& step) {
        if (step.sinks) uses.push_back({Kind::norm, {*step.sinks}});
        if (step.query_norm) uses.push_back({Kind::norm, {*step.query_norm}});
        if (step.key_norm) uses.push_back({Kind::norm, {*step.key_norm}});
      },
      [&](const Experts& step) {
        uses.push_back({Kind::router, {step.router}});
        for (const auto& bias : {step.router_bias, step.choice_bias}) {
          if (bias) uses.push_back({Kind::bias, {*bias}});
        }
        if (step.expert_scale) uses.push_back({Kind::norm, {*step.expert_scale}});
        for (std::size_t expert = 0; expert < step.count; ++expert) {
          list_product(step.hidden, expert, uses);
          list_product(step.down, expert, uses);
        }
        if (step.shared) {
          if (step.shared->router) uses.push_back({Kind::router, {*step.shared->router}});
          list_product(step.shared->hidden, 0, uses);
          list_product(step.shared->down, 0, uses);
        }
      },
      [](const Add&) {},
      [](const AdjustLogits&) {},
      [&](const ShortConv& step) {
        uses.push_back({Kind::norm, {step.taps}});
        if (step.bias) uses.push_back({Kind::bias, {*step.bias}});
      },
      [&](const LinearScan& step) {
        for (const WeightKey& key : {step.decay_rate, step.step_bias}) uses.push_back({Kind::norm, {key}});
        if (step.skip) uses.push_back({Kind::norm, {*step.skip}});
      },
      [&](const ChannelScan& step) {
        for (const WeightKey& key : {step.decay_rate, step.step_bias, step.skip}) uses.push_back({Kind::norm, {key}});
      },
      [](const Gate&) {},
      [](const Scale&) {},
      [&](const LatentAttend& step) {
        uses.push_back({Kind::norm, {step.norm}});
        for (std::size_t head = 0; head < step.heads; ++head) {
          for (const WeightKey& key : {step.key_up, step.value_up})
            uses.push_back({Kind::matrix, {key.of_expert(head)}});
        }
      },
      [](const NormValues&) {},
      [](const TakeLayerInput&) {},
      [&](const ScaleStream& step) {
        uses.push_back({Kind::norm, {step.factor}});
      },
      [](const SparseGate&) {},
      [&](const PredictStreams& step) { list_mixing(step, uses); },
      [&](const CorrectStreams& step) { list_mixing(step, uses); },
      [&](const MergeStreams& step) {
        for (std::size_t i = 0; i + 1 < step.count; ++i) uses.push_back({Kind::matrix, {step.matrix.of_expert(i)}});
      },
  };
  for (const Step& step : steps) std::visit(list, step);
  return uses;
}

std::string text(const Embed& step) {
  const auto plus = [](const std::optional<WeightKey>& key) {
    return key ? fmt::format(" + {}", name(key->role)) : "";
  };
  return fmt::format("embed {}{}{}{} -> stream{}", name(step.table.role),
                     step.scale == 1 ? "" : fmt::format(" * {:g}", step.scale), plus(step.positions), plus(step.types),
                     step.norm ? ", " + text_of(*step.norm) : "");
}

std::string text(const Step& step) {
  return std::visit([](const auto& one) { return text_of(one); }, step);
}

std::string text(std::span<const Step> steps) {
  std::string made;
  for (const Step& step : steps) made += text(step) + "\n";
  return made;
}

}  // namespace imago::backend
