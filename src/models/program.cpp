#include "models/program.h"

#include <cmath>
#include <utility>

#include "models/architectures.h"

namespace imago::models {

namespace {

using backend::Product;
using backend::Role;
using backend::Slot;
using backend::Step;
using backend::WeightKey;

backend::Sizes sizes_of(const Traits& traits, std::size_t index) {
  const BlockTraits& block = traits.block[index];
  backend::Sizes sizes{.width = traits.width,
                       .heads = traits.heads,
                       .kv_heads = block.cache ? 0 : kv_heads_of(traits, index),
                       .head_values = head_values_of(traits, index),
                       .feed_forward = block.feed_forward,
                       .vocabulary = traits.vocabulary,
                       .experts = block.experts ? traits.experts : 0,
                       .experts_used = block.experts ? traits.experts_used : 0,
                       .shared_feed_forward = block.experts ? traits.shared_feed_forward : 0,
                       .layer_inputs = traits.layer_values * traits.blocks,
                       .layer_values = traits.layer_values};
  if (traits.latent != 0) {
    sizes.kv_heads = 1;
    sizes.head_values = traits.latent + traits.rotary;
    sizes.query_values = traits.head_values;
    sizes.query_low = traits.query_low;
    sizes.attended = traits.heads * traits.latent_values;
  }
  return sizes;
}

/// Writes the steps of one block, or of the output.
class Writer {
 public:
  Writer(const Traits& traits, std::size_t block) : traits_(traits), block_(block) {}

  /// Attention and feed-forward layer, each a branch whose result is added to the stream.
  backend::Block block() {
    attend(enter(Role::attention_norm, Role::attention_norm_bias));
    if (traits_.parallel) {
      // The stream stays as it is until both branches have read it.
      hide(traits_.shared_norm ? enter(Role::attention_norm, Role::attention_norm_bias)
                               : enter(Role::feed_forward_norm, Role::feed_forward_norm_bias));
      finish_attention();
      finish_feed_forward();
    } else {
      finish_attention();
      feed_forward(enter(Role::feed_forward_norm, Role::feed_forward_norm_bias));
    }
    if (traits_.layer_values != 0) add_layer_input();
    if (facts(traits_.architecture).block_scale) {
      steps_.push_back(backend::ScaleStream{.factor = key(Role::block_scale)});
    }
    return {sizes_of(traits_, block_), std::move(steps_)};
  }

  std::vector<Step> output() {
    norm(Slot::stream, Slot::normed, Role::output_norm, Role::output_norm_bias);
    products(Slot::normed,
             {{.matrix = {traits_.tied_output ? Role::token_embedding : Role::output},
               .bias = facts(traits_.architecture).output_bias ? std::optional(key(Role::output_bias)) : std::nullopt,
               .out = Slot::logits}});
    if (traits_.logit_scale != 1 || traits_.logit_cap != 0) {
      steps_.push_back(backend::AdjustLogits{.scale = traits_.logit_scale, .cap = traits_.logit_cap});
    }
    return std::move(steps_);
  }

 private:
  WeightKey key(Role role) const { return {role, block_, 0}; }
  float eps() const { return static_cast<float>(traits_.norm_eps); }

  void norm(Slot in, Slot out, Role weight, std::optional<Role> bias) {
    backend::Norm step{.in = in, .out = out, .weight = key(weight), .kind = traits_.norm, .eps = eps()};
    if (bias && facts(traits_.architecture).norm_bias) step.bias = key(*bias);
    steps_.push_back(step);
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

  void leave(Role post_norm) {
    if (traits_.post_norms) norm(Slot::branch, Slot::branch, post_norm, std::nullopt);
    steps_.push_back(backend::Add{.factor = traits_.residual_scale});
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
    products(in, std::move(list));
    if (facts(traits_.architecture).value_norm && has_keys) {
      steps_.push_back(backend::NormValues{.from = block.keys_are_values ? Slot::key : Slot::value, .eps = eps()});
    }
    const bool other_rope = traits_.window_rope && block.window != 0;
    if (traits_.query_norm != QueryNorm::none && !turned) {
      steps_.push_back(backend::NormHeads{.at = Slot::query, .weight = key(Role::query_norm), .eps = eps()});
      if (has_keys) steps_.push_back(backend::NormHeads{.at = Slot::key, .weight = key(Role::key_norm), .eps = eps()});
    }
    backend::Attend step{.rotary = other_rope ? traits_.window_rope->rotary : traits_.rotary,
                         .rope = other_rope ? 1U : 0U,
                         .pairs = traits_.rope_pairs,
                         .window = block.window,
                         .scale = traits_.attention_scale,
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
  }

  /// A narrow layer of the stream, gated by the input of this block.
  void add_layer_input() {
    products(Slot::stream, {{.matrix = key(Role::layer_gate), .out = Slot::layer_hidden}});
    steps_.push_back(backend::TakeLayerInput{.activation = traits_.activation});
    products(Slot::layer_hidden, {{.matrix = key(Role::layer_output)}});
    leave(Role::layer_post_norm);
  }

  void finish_attention() {
    products(traits_.latent != 0 ? Slot::attended : Slot::query,
             {{.matrix = key(Role::attention_output), .bias = key(Role::attention_output_bias)}});
    leave(Role::attention_post_norm);
  }

  void feed_forward(Slot in) {
    if (traits_.block[block_].experts) {
      experts(in);
      return leave(Role::feed_forward_post_norm);
    }
    hide(in);
    finish_feed_forward();
  }

  void hide(Slot in) {
    Product hidden = hidden_product(Role::gate, Role::up);
    if (!traits_.gated) hidden.bias = key(Role::up_bias);
    products(in, {hidden});
  }

  void finish_feed_forward() {
    products(Slot::hidden, {{.matrix = key(Role::down), .bias = key(Role::down_bias)}});
    leave(Role::feed_forward_post_norm);
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
    if (facts(traits_.architecture).feed_forward_bias) {
      step.router_bias = key(Role::router_bias);
      step.hidden.bias = key(Role::gate_bias);
      step.hidden.up_bias = key(Role::up_bias);
      step.down.bias = key(Role::down_bias);
    }
    if (traits_.shared_feed_forward != 0) {
      backend::SharedExpert& shared = step.shared.emplace();
      shared.hidden = hidden_product(Role::shared_gate, Role::shared_up);
      shared.down.matrix = key(Role::shared_down);
      if (traits_.shared_router) shared.router = key(Role::shared_router);
    }
    steps_.push_back(std::move(step));
  }

  const Traits& traits_;
  std::size_t block_;
  std::vector<Step> steps_;
};

}  // namespace

backend::Program make_program(const Traits& traits) {
  backend::Program program{.sizes = {},
                           .embed = {.table = {Role::token_embedding}, .scale = traits.embedding_scale},
                           .blocks = {},
                           .output = Writer(traits, 0).output()};
  if (traits.learned_positions) program.embed.positions = WeightKey{Role::position_embedding};
  if (traits.layer_values != 0) {
    program.embed.layers = {.table = {Role::layer_embedding},
                            .projection = {Role::layer_projection},
                            .norm = {Role::layer_projection_norm},
                            .table_scale = std::sqrt(static_cast<float>(traits.layer_values)),
                            .projection_scale = 1 / std::sqrt(static_cast<float>(traits.width)),
                            .scale = 1 / std::sqrt(2.0F),
                            .eps = static_cast<float>(traits.norm_eps)};
  }
  for (std::size_t block = 0; block < traits.blocks; ++block) {
    program.blocks.push_back(Writer(traits, block).block());
    program.sizes.include(program.blocks.back().sizes);
  }
  return program;
}

}  // namespace imago::models
