#include "checkpoint/layer_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace imago::checkpoint {

namespace {

using C = LayerConfig;

constexpr LayerField kLayerFields[] = {
    {"z", &Coordinates::z},
    {"y", &Coordinates::y},
    {"x", &Coordinates::x},
    {"l", &Coordinates::l},
    {"type", &C::type},
    {"activation", &C::activation},
    {"dtype", &C::dtype},
    {"input_height", &C::input_height},
    {"input_width", &C::input_width},
    {"input_depth", &C::input_depth},
    {"output_height", &C::output_height},
    {"output_width", &C::output_width},
    {"output_depth", &C::output_depth},
    {"input_channels", &C::input_channels},
    {"filters", &C::filters},
    {"kernel_size", &C::kernel_size},
    {"stride", &C::stride},
    {"padding", &C::padding},
    {"output_padding", &C::output_padding},
    {"num_heads", &C::num_heads},
    {"num_kv_heads", &C::num_kv_heads},
    {"head_dim", &C::head_dim},
    {"query_dim", &C::query_dim},
    {"d_model", &C::d_model},
    {"seq_length", &C::seq_length},
    {"rope_freq_base", &C::rope_freq_base},
    {"vocab_size", &C::vocab_size},
    {"embedding_dim", &C::embedding_dim},
    {"num_clusters", &C::num_clusters},
    {"kmeans_temperature", &C::kmeans_temperature},
    {"output_mode", &C::output_mode},
    {"softmax_type", &C::softmax_type},
    {"temperature", &C::temperature},
    {"softmax_rows", &C::softmax_rows},
    {"softmax_cols", &C::softmax_cols},
    {"entmax_alpha", &C::entmax_alpha},
    {"gumbel_noise", &C::gumbel_noise},
    {"weights", WeightKey::weights},
    {"native", WeightKey::native},
    {"scale", WeightKey::scale},
    {"parallel_branches", &Layer::branches},
    {"combine_mode", &C::combine_mode},
    {"sequential_layers", &Layer::sub_layers},
    {"use_tiling", &C::use_tiling},
    {"tile_size", &C::tile_size},
    {"is_disabled", &C::is_disabled},
    {"meta_rules", &Layer::rules},
    {"meta_observed_layer", &Layer::observed},
    // imago's own, after all that the original knows [C2]
    {"rms_norm_eps", &C::rms_norm_eps},
    {"max_seq_len", &C::max_seq_len},
    {"q_norm", &C::q_norm},
    {"k_norm", &C::k_norm},
    {"inner_norm", &C::inner_norm},
    {"mask", &C::mask},
    {"hierarchy_levels", &C::hierarchy_levels},
    {"is_remote_link", &C::is_remote_link},
    {"target_z", TargetField{&Coordinates::z}},
    {"target_y", TargetField{&Coordinates::y}},
    {"target_x", TargetField{&Coordinates::x}},
    {"target_l", TargetField{&Coordinates::l}},
    {"filter_gate", &Layer::filter_gate},
    {"meta_source", &C::meta_source},
    {"meta_effect", &C::meta_effect},
    {"meta_network", &Layer::meta_network},
    {"granularity", &C::granularity},
    {"group", &C::group},
    {"scales", WeightKey::scales},
    {"no_rope", &C::no_rope},
    {"no_bias", &C::no_bias},
    {"zero_point", WeightKey::zero_point},
    {"zeros", WeightKey::zeros},
    {"block_format", WeightKey::block_format},
    {"blocks", WeightKey::blocks},
};

constexpr RuleField kRuleFields[] = {
    {"Condition", &MetaRule::condition}, {"Threshold", &MetaRule::threshold}, {"Command", &MetaRule::command},
    {"Param", &MetaRule::param},         {"Cooldown", &MetaRule::cooldown},   {"SelfOnly", &MetaRule::self_only},
};

}  // namespace

std::span<const LayerField> layer_fields() noexcept { return kLayerFields; }

const LayerField* find_layer_field(std::string_view key) noexcept {
  const auto found = std::ranges::find(kLayerFields, key, &LayerField::key);
  return found == std::end(kLayerFields) ? nullptr : found;
}

std::span<const RuleField> rule_fields() noexcept { return kRuleFields; }

std::string child_path(std::string_view parent, std::string_view key, std::size_t index) {
  return fmt::format("{}{}{}.{}", parent, parent.empty() ? "" : ".", key, index);
}

}  // namespace imago::checkpoint
