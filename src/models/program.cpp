#include "models/program.h"

#include <cmath>
#include <utility>

#include "models/architectures.h"
#include "models/tensor_layout.h"

namespace imago::models {

namespace {

using backend::Product;
using backend::Role;
using backend::Slot;
using backend::Step;
using backend::WeightKey;

backend::Sizes sizes_of(const Traits& traits, std::size_t index) {
  const BlockTraits& block = traits.block[index];
  const bool attends = has_attention(block.mixer);
  backend::Sizes sizes{.width = traits.width,
                       .heads = attends ? traits.heads : 0,
                       .kv_heads = attends && !block.cache ? kv_heads_of(traits, index) : 0,
                       .head_values = attends ? head_values_of(traits, index) : 0,
                       .feed_forward = block.feed_forward,
                       .vocabulary = traits.vocabulary,
                       .experts = block.experts ? traits.experts : 0,
                       .experts_used = block.experts ? traits.experts_used : 0,
                       .shared_feed_forward = block.experts ? traits.shared_feed_forward : 0,
                       .layer_inputs = traits.layer_values * traits.blocks,
                       .layer_values = traits.layer_values,
                       .streams = traits.streams,
                       .laurel_low = traits.laurel_rank};
  if (traits.latent != 0) {
    sizes.kv_heads = 1;
    sizes.head_values = traits.latent + traits.rotary;
    sizes.query_values = traits.head_values;
    sizes.query_low = traits.query_low;
    sizes.attended = traits.heads * traits.latent_values;
  }
  return sizes;
}

/// The sizes of a mixer that is not attention.
void add_recurrent_sizes(const Traits& traits, Mixer mixer, backend::Sizes& sizes) {
  if (mixer == Mixer::attention && traits.attention_gate) sizes.output_gate = traits.heads * traits.head_values;
  if (!is_recurrent(mixer)) return;
  const auto of = [&](Role role) { return extent_of(traits, role).rows; };
  sizes.channels = of(Role::channels);
  sizes.output_gate = of(Role::output_gate);
  sizes.scanned = mixer == Mixer::short_conv ? traits.width : traits.recurrent.scan.results();
  if (mixer == Mixer::short_conv || mixer == Mixer::delta_rule || mixer == Mixer::mamba)
    sizes.input_gate = of(Role::input_gate);
  if (mixer != Mixer::short_conv) sizes.step = of(Role::step);
  if (mixer == Mixer::mamba) sizes.step_low = of(Role::step_low);
}

/// Writes the steps of one block, or of the output.
class Writer {
 public:
  Writer(const Traits& traits, std::size_t block) : traits_(traits), block_(block) {}

  /// Attention and feed-forward layer, each a branch whose result is added to the stream.
  backend::Block block() {
    const BlockTraits& own = traits_.block[block_];
    if (traits_.streams != 0) {
      steps_.push_back(mix_streams<backend::PredictStreams>(Role::stream_prediction));
    }
    const bool normed = own.mixer != Mixer::none && own.attention_norm;
    const Slot in = normed ? enter(Role::attention_norm, Role::attention_norm_bias) : Slot::stream;
    if (is_recurrent(own.mixer)) scan(in, own.mixer);
    if (has_attention(own.mixer)) attend(in);
    if (traits_.parallel) {
      // The stream stays as it is until both branches have read it.
      hide(traits_.shared_norm ? enter(Role::attention_norm, Role::attention_norm_bias)
                               : enter(Role::feed_forward_norm, Role::feed_forward_norm_bias));
      finish_attention();
      finish_feed_forward();
    } else {
      if (traits_.laurel_rank != 0) add_laurel();
      if (has_attention(own.mixer)) finish_attention();
      if (is_recurrent(own.mixer)) finish_scan();
      if (own.feed_forward != 0) {
        feed_forward(own.mixer == Mixer::none ? enter(Role::attention_norm, Role::attention_norm_bias)
                                              : enter(Role::feed_forward_norm, Role::feed_forward_norm_bias));
      }
    }
    if (traits_.streams != 0) steps_.push_back(mix_streams<backend::CorrectStreams>(Role::stream_correction));
    if (traits_.layer_values != 0) add_layer_input();
    if (traits_.streams != 0 && block_ + 1 == traits_.blocks) {
      steps_.push_back(backend::MergeStreams{.count = traits_.streams, .matrix = {Role::stream_merge}});
    }
    if (facts(traits_.architecture).block_scale) {
      steps_.push_back(backend::ScaleStream{.factor = key(Role::block_scale)});
    }
    backend::Sizes sizes = sizes_of(traits_, block_);
    add_recurrent_sizes(traits_, own.mixer, sizes);
    return {sizes, std::move(steps_), state_};
  }

  std::vector<Step> output() {
    if (traits_.sum_norms) return {};
    norm(Slot::stream, Slot::normed, Role::output_norm, Role::output_norm_bias);
    if (!traits_.has_output) return std::move(steps_);
    products(Slot::normed,
             {{.matrix = {traits_.tied_output ? Role::token_embedding : Role::output},
               .bias = facts(traits_.architecture).output_bias ? std::optional(key(Role::output_bias)) : std::nullopt,
               .out = Slot::logits}});
    if (traits_.logit_scale != 1 || traits_.logit_cap != 0) {
      steps_.push_back(backend::AdjustLogits{.scale = traits_.logit_scale, .cap = traits_.logit_cap});
    }
    return std::move(steps_);
  }

  backend::Embed embed() const {
    backend::Embed made{.table = {Role::token_embedding}, .scale = traits_.embedding_scale};
    if (traits_.learned_positions) made.positions = WeightKey{Role::position_embedding};
    if (traits_.token_types != 0) made.types = WeightKey{Role::token_types};
    if (traits_.embedding_norm) {
      made.norm = norm_step(Slot::stream, Slot::stream, Role::embedding_norm, Role::embedding_norm_bias);
    }
    return made;
  }

  backend::Block head() {
    const Head& head = traits_.head;
    if (head.results == 0) return {};
    Slot in = Slot::stream;
    if (head.hidden != 0) {
      in = Slot::hidden;
      products(Slot::stream, {{.matrix = {Role::head_dense},
                               .bias = WeightKey{Role::head_dense_bias},
                               .activation = head.activation,
                               .out = in}});
    }
    if (head.norm) norm(in, in, Role::head_norm, std::nullopt);
    products(in, {{.matrix = {Role::head_output},
                   .bias = WeightKey{Role::head_output_bias},
                   .activation = head.result_activation,
                   .out = Slot::logits}});
    return {{.width = traits_.width, .feed_forward = head.hidden, .vocabulary = head.results}, std::move(steps_)};
  }

 private:
  WeightKey key(Role role) const { return {role, block_, 0}; }
  float eps() const { return static_cast<float>(traits_.norm_eps); }

  backend::Norm norm_step(Slot in, Slot out, Role weight, std::optional<Role> bias) const {
    backend::Norm step{.in = in, .out = out, .weight = key(weight), .kind = traits_.norm, .eps = eps()};
    if (bias && facts(traits_.architecture).norm_bias) step.bias = key(*bias);
    return step;
  }
  void norm(Slot in, Slot out, Role weight, std::optional<Role> bias) {
    steps_.push_back(norm_step(in, out, weight, bias));
  }

  void products(Slot in, std::vector<Product> list) {
    steps_.push_back(backend::Products{.in = in, .list = std::move(list)});
  }

  /// Where a branch reads: the stream, or its norm.
  Slot enter(Role weight, Role bias) {
    if (!traits_.pre_norms) return Slot::stream;
    norm(Slot::stream, Slot::normed, weight, bias);
    return Slot::normed;
  }

  void leave(Role post_norm, std::optional<Role> bias = std::nullopt, const backend::Add& how = {}) {
    if (traits_.post_norms) norm(Slot::branch, Slot::branch, post_norm, bias);
    backend::Add add = how;
    add.factor *= traits_.residual_scale;
    steps_.push_back(add);
    if (traits_.sum_norms) norm(Slot::stream, Slot::stream, post_norm, bias);
  }

  void scale(Slot at, float factor) {
    if (factor != 1) steps_.push_back(backend::Scale{.at = at, .factor = factor});
  }

  /// Where the next `values` of the states of the block begin.
  std::size_t take_state(std::size_t values) {
    const std::size_t at = state_;
    state_ += values;
    return at;
  }

  void short_conv(Slot out, kernels::Activation activation) {
    const std::size_t kernel = traits_.recurrent.kernel, channels = extent_of(traits_, Role::channels).rows;
    steps_.push_back(backend::ShortConv{.out = out,
                                        .taps = key(Role::taps),
                                        .bias = key(Role::taps_bias),
                                        .activation = activation,
                                        .kernel = kernel,
                                        .state = take_state((kernel - 1) * channels)});
  }

  void linear_scan(bool skip) {
    const RecurrentTraits& recurrent = traits_.recurrent;
    steps_.push_back(backend::LinearScan{.shape = recurrent.scan,
                                         .decay_rate = key(Role::decay_rate),
                                         .step_bias = key(Role::step_bias),
                                         .skip = skip ? std::optional(key(Role::skip)) : std::nullopt,
                                         .low_step = recurrent.low_step,
                                         .high_step = recurrent.high_step,
                                         .state = take_state(recurrent.scan.state())});
  }

  /// Leaves its results in `scanned`.
  void scan(Slot in, Mixer mixer) {
    using kernels::Activation;
    const auto product = [&](Role role, Slot out) { return Product{.matrix = key(role), .out = out}; };
    const Product channels = product(Role::channels, Slot::channels);
    const Product output_gate = product(Role::output_gate, Slot::output_gate);
    const Product input_gate = product(Role::input_gate, Slot::input_gate), step = product(Role::step, Slot::step);
    const RecurrentTraits& recurrent = traits_.recurrent;
    const backend::Gate gate{.at = Slot::scanned, .by = Slot::output_gate, .activation = Activation::silu};
    const backend::NormHeads scan_norm{
        .at = Slot::scanned, .weight = key(Role::scan_norm), .eps = eps(), .groups = recurrent.norm_groups};
    switch (mixer) {
      case Mixer::attention:
      case Mixer::none: return;
      case Mixer::short_conv:
        products(in, {input_gate, output_gate, channels});
        steps_.push_back(backend::Gate{.at = Slot::channels, .by = Slot::input_gate});
        short_conv(Slot::scanned, Activation::linear);
        steps_.push_back(backend::Gate{.at = Slot::scanned, .by = Slot::output_gate});
        return;
      case Mixer::delta_rule:
        products(in, {channels, output_gate, input_gate, step});
        short_conv(Slot::channels, Activation::silu);
        linear_scan(false);
        steps_.push_back(scan_norm);
        steps_.push_back(gate);
        return;
      case Mixer::mamba:
        products(in, {channels, output_gate});
        short_conv(Slot::channels, Activation::silu);
        products(Slot::channels, {product(Role::step_low, Slot::step_low), input_gate});
        products(Slot::step_low, {step});
        steps_.push_back(backend::ChannelScan{.decay_rate = key(Role::decay_rate),
                                              .step_bias = key(Role::step_bias),
                                              .skip = key(Role::skip),
                                              .states = recurrent.scan.keys,
                                              .state = take_state(recurrent.scan.keys * recurrent.scan.heads)});
        steps_.push_back(gate);
        return;
      case Mixer::mamba2:
      case Mixer::mamba2_beside_attention:
        products(in, {output_gate, channels, step});
        // Channels are multiplied through their taps.
        scale(Slot::output_gate, traits_.multipliers.scan_in * traits_.multipliers.scan.front());
        scale(Slot::step, traits_.multipliers.scan_in * traits_.multipliers.scan.back());
        short_conv(Slot::channels, Activation::silu);
        linear_scan(true);
        steps_.push_back(gate);
        if (recurrent.norm_groups != 0) steps_.push_back(scan_norm);
        return;
    }
  }

  void attend_latent(Slot in) {
    const Product latent{.matrix = key(Role::latent), .out = Slot::key};
    const Product query{.matrix = key(Role::query), .out = Slot::query};
    if (traits_.query_low == 0) {
      products(in, {query, latent});
    } else {
      products(in, {{.matrix = key(Role::query_low), .out = Slot::query_low}, latent});
      norm(Slot::query_low, Slot::query_low, Role::query_low_norm, std::nullopt);
      products(Slot::query_low, {query});
    }
    steps_.push_back(backend::LatentAttend{.heads = traits_.heads,
                                           .plain = traits_.head_values - traits_.rotary,
                                           .rotary = traits_.rotary,
                                           .rank = traits_.latent,
                                           .values = traits_.latent_values,
                                           .pairs = traits_.rope_pairs,
                                           .scale = traits_.attention_scale,
                                           .norm = key(Role::latent_norm),
                                           .eps = eps(),
                                           .key_up = key(Role::key_up),
                                           .value_up = key(Role::value_up)});
  }

  void attend(Slot in) {
    if (traits_.latent != 0) return attend_latent(in);
    const bool turned = facts(traits_.architecture).query_norm_turned;
    const BlockTraits& block = traits_.block[block_];
    const bool has_keys = !block.cache.has_value();
    std::vector<Product> list = {{.matrix = key(Role::query), .bias = key(Role::query_bias), .out = Slot::query}};
    if (has_keys) list.push_back({.matrix = key(Role::key), .bias = key(Role::key_bias), .out = Slot::key});
    if (has_keys && !block.keys_are_values) {
      list.push_back({.matrix = key(Role::value), .bias = key(Role::value_bias), .out = Slot::value});
    }
    if (traits_.attention_gate) list.push_back({.matrix = key(Role::attention_gate), .out = Slot::output_gate});
    products(in, std::move(list));
    if (facts(traits_.architecture).value_norm && has_keys) {
      steps_.push_back(backend::NormValues{.from = block.keys_are_values ? Slot::key : Slot::value, .eps = eps()});
    }
    const Multipliers& multipliers = traits_.multipliers;
    const bool other_rope = traits_.window_rope && block.window != 0;
    if (traits_.query_norm != QueryNorm::none && !turned) {
      steps_.push_back(backend::NormHeads{.at = Slot::query, .weight = key(Role::query_norm), .eps = eps()});
      if (has_keys) steps_.push_back(backend::NormHeads{.at = Slot::key, .weight = key(Role::key_norm), .eps = eps()});
    }
    backend::Attend step{
        .rotary = other_rope ? traits_.window_rope->rotary : traits_.rotary,
        .rope = other_rope ? 1U : 0U,
        .pairs = traits_.rope_pairs,
        .window = block.window,
        .causal = traits_.causal,
        .scale = traits_.attention_scale * multipliers.attention_in * multipliers.attention_in * multipliers.key,
        .cap = traits_.attention_cap};
    if (!block.rope) step.rotary = 0;
    step.cache = block.cache;
    if (turned) {
      step.query_norm = key(Role::query_norm);
      step.key_norm = key(Role::key_norm);
      step.eps = eps();
    }
    if (traits_.query_growth != 0) {
      step.growth = static_cast<float>(traits_.query_growth);
      step.growth_period = static_cast<std::size_t>(traits_.rope_scaling.original_context);
    }
    if (traits_.attention_sinks) step.sinks = key(Role::sinks);
    steps_.push_back(step);
    if (traits_.attention_gate) steps_.push_back(backend::Gate{.activation = kernels::Activation::sigmoid});
  }

  void finish_scan() {
    products(Slot::scanned, {{.matrix = key(Role::scan_output)}});
    leave(Role::attention_post_norm, std::nullopt, {.factor = traits_.multipliers.scan_out});
  }

  /// A narrow layer of the stream, gated by the input of this block. With several streams, all but the first get it.
  void add_layer_input() {
    const bool several = traits_.streams != 0;
    const Slot in = several ? Slot::normed : Slot::stream;
    if (several) steps_.push_back(backend::ScaleStream{.factor = key(Role::stream_scale), .out = in});
    products(in, {{.matrix = key(Role::layer_gate), .out = Slot::layer_hidden}});
    steps_.push_back(backend::TakeLayerInput{.activation = traits_.activation});
    products(Slot::layer_hidden, {{.matrix = key(Role::layer_output)}});
    leave(Role::layer_post_norm, std::nullopt, {.to = several ? Slot::streams : Slot::stream});
  }

  /// Beside attention: what it reads, and a narrow layer of that. After attention, where fewer tokens are left, so the
  /// norm is computed once more.
  void add_laurel() {
    norm(Slot::stream, Slot::normed, Role::attention_norm, std::nullopt);
    products(Slot::normed, {{.matrix = key(Role::laurel_low), .out = Slot::laurel_low}});
    products(Slot::laurel_low, {{.matrix = key(Role::laurel_up)}});
    norm(Slot::branch, Slot::branch, Role::laurel_norm, std::nullopt);
    steps_.push_back(backend::Add{});
    steps_.push_back(backend::Add{.from = Slot::normed});
  }

  template <class Mix>
  Mix mix_streams(Role coefficients) const {
    return {.count = traits_.streams,
            .norm = key(Role::stream_router_norm),
            .router = key(Role::stream_router),
            .coefficients = key(coefficients),
            .eps = eps()};
  }

  void finish_attention() {
    products(traits_.latent != 0 ? Slot::attended : Slot::query,
             {{.matrix = key(Role::attention_output), .bias = key(Role::attention_output_bias)}});
    leave(Role::attention_post_norm, Role::attention_post_norm_bias,
          {.factor = traits_.multipliers.attention_in * traits_.multipliers.attention_out,
           .scale = traits_.laurel_rank != 0 ? 1 / std::sqrt(2.0F) : 1.0F});
  }

  /// Both read the stream, each through a norm of its own, and what they make is normed and added up.
  void dense_and_experts(Slot in) {
    Product hidden = hidden_product(Role::shared_gate, Role::shared_up);
    hidden.out = Slot::dense_hidden;
    products(in, {hidden});
    products(Slot::dense_hidden, {{.matrix = key(Role::shared_down)}});
    norm(Slot::branch, Slot::branch, Role::dense_post_norm, std::nullopt);
    norm(Slot::stream, Slot::routed, Role::router_norm, std::nullopt);
    norm(Slot::stream, Slot::normed, Role::experts_norm, std::nullopt);
    experts(Slot::normed);
    norm(Slot::from_experts, Slot::from_experts, Role::experts_post_norm, std::nullopt);
    steps_.push_back(backend::Add{.from = Slot::from_experts, .to = Slot::branch});
    leave(Role::feed_forward_post_norm, Role::feed_forward_post_norm_bias);
  }

  void feed_forward(Slot in) {
    if (traits_.block[block_].experts) {
      if (traits_.experts_beside) return dense_and_experts(in);
      experts(in);
      return leave(Role::feed_forward_post_norm, Role::feed_forward_post_norm_bias);
    }
    hide(in);
    finish_feed_forward();
  }

  void hide(Slot in) {
    scale(in, traits_.multipliers.gate);  // and with it what the gate is multiplied with
    if (const double sparsity = traits_.block[block_].sparsity; sparsity != 0) {
      products(in, {{.matrix = key(Role::gate), .out = Slot::hidden}, {.matrix = key(Role::up), .out = Slot::up}});
      steps_.push_back(
          backend::SparseGate{.deviations = sparse_deviations(sparsity), .activation = traits_.activation});
      return;
    }
    Product hidden = hidden_product(Role::gate, Role::up);
    if (!traits_.gated) hidden.bias = key(Role::up_bias);
    products(in, {hidden});
  }

  void finish_feed_forward() {
    products(Slot::hidden, {{.matrix = key(Role::down), .bias = key(Role::down_bias)}});
    leave(Role::feed_forward_post_norm, Role::feed_forward_post_norm_bias,
          {.factor = traits_.multipliers.down / traits_.multipliers.gate});
  }

  Product hidden_product(Role gate, Role up) const {
    Product product{.matrix = key(up), .activation = traits_.activation, .out = Slot::hidden};
    if (traits_.gated) {
      product.matrix = key(gate);
      product.up = key(up);
    }
    return product;
  }

  void experts(Slot in) {
    backend::Experts step{.in = in,
                          .router = key(Role::router),
                          .hidden = hidden_product(Role::gate, Role::up),
                          .down = {.matrix = key(Role::down)},
                          .count = traits_.experts,
                          .used = traits_.experts_used,
                          .scores = traits_.expert_scores,
                          .groups = traits_.expert_groups,
                          .groups_used = traits_.expert_groups_used,
                          .two_judge_group = traits_.two_judge_group,
                          .normalize = traits_.norm_expert_weights,
                          .scale = traits_.expert_scale};
    if (traits_.choice_bias) step.choice_bias = key(Role::choice_bias);
    if (traits_.experts_beside) {
      step.router_in = Slot::routed;
      step.expert_scale = key(Role::expert_scale);
      step.down.out = Slot::from_experts;
    }
    if (facts(traits_.architecture).feed_forward_bias) {
      step.router_bias = key(Role::router_bias);
      step.hidden.bias = key(Role::gate_bias);
      step.hidden.up_bias = key(Role::up_bias);
      step.down.bias = key(Role::down_bias);
    }
    if (traits_.shared_feed_forward != 0 && !traits_.experts_beside) {
      backend::SharedExpert& shared = step.shared.emplace();
      shared.hidden = hidden_product(Role::shared_gate, Role::shared_up);
      shared.down.matrix = key(Role::shared_down);
      if (traits_.shared_router) shared.router = key(Role::shared_router);
    }
    steps_.push_back(step);
  }

  const Traits& traits_;
  std::size_t block_;
  std::vector<Step> steps_;
  std::size_t state_ = 0;
};

}  // namespace

backend::Program make_program(const Traits& traits) {
  backend::Program program{.sizes = {},
                           .embed = Writer(traits, 0).embed(),
                           .blocks = {},
                           .output = Writer(traits, 0).output(),
                           .head = Writer(traits, 0).head()};
  if (traits.layer_values != 0) {
    program.embed.layers = {.table = {Role::layer_embedding},
                            .projection = {Role::layer_projection},
                            .norm = {Role::layer_projection_norm},
                            .table_scale = std::sqrt(static_cast<float>(traits.layer_values)),
                            .projection_scale = 1 / std::sqrt(static_cast<float>(traits.width)),
                            .scale = 1 / std::sqrt(2.0F),
                            .eps = static_cast<float>(traits.norm_eps)};
  }
  if (traits.streams != 0) {
    program.embed.streams = backend::StartStreams{.count = traits.streams, .projection = {Role::stream_projection}};
  }
  for (std::size_t block = 0; block < traits.blocks; ++block) {
    program.blocks.push_back(Writer(traits, block).block());
    program.sizes.include(program.blocks.back().sizes);
  }
  return program;
}

}  // namespace imago::models
