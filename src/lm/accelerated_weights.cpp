#include "lm/accelerated_weights.h"

#include <algorithm>
#include <vector>

#include "imago/error.h"
#include "lm/device_plan.h"

namespace imago::lm {

namespace {

using models::DecoderTensors;
using models::MatrixKey;
using models::Role;
using models::Traits;

constexpr Role kBlockMatrices[] = {Role::query, Role::key, Role::value, Role::attention_output, Role::router};
constexpr Role kExpertMatrices[] = {Role::gate, Role::up, Role::down};
constexpr Role kBlockNorms[] = {Role::attention_norm,         Role::attention_post_norm, Role::feed_forward_norm,
                                Role::feed_forward_post_norm, Role::query_norm,          Role::key_norm};
constexpr Role kBlockBiases[] = {
    Role::attention_norm_bias, Role::feed_forward_norm_bias, Role::query_bias, Role::key_bias,
    Role::value_bias,          Role::attention_output_bias,  Role::up_bias,    Role::down_bias};

/// Calls each(key) for the matrices of a block that are there.
template <class Each>
void for_each_matrix(const DecoderTensors& tensors, const Traits& traits, std::size_t block, Each&& each) {
  for (const Role role : kBlockMatrices) {
    if (const auto slice = tensors.find(role, block)) each(MatrixKey{role, block, 0}, *slice);
  }
  for (std::size_t expert = 0; expert < std::max<std::size_t>(1, traits.experts); ++expert) {
    for (const Role role : kExpertMatrices) {
      if (const auto slice = tensors.find(role, block, expert)) each(MatrixKey{role, block, expert}, *slice);
    }
  }
}

void give_vector(const DecoderTensors& tensors, Role role, std::size_t block, float offset, MatrixLoader& matrices,
                 Accelerator& accelerator) {
  const auto slice = tensors.find(role, block);
  if (!slice) return;
  std::vector<float> values = matrices.vector(*slice);
  for (float& value : values) value += offset;
  accelerator.take(MatrixKey{role, block, 0}, values);
}

}  // namespace

std::unique_ptr<Accelerator> plan_accelerator(const DecoderTensors& tensors, const Traits& traits,
                                              const MatrixLoader& matrices, const LanguageModelOptions& options) {
  if (options.device == nullptr || options.device->is_host() || options.gpu_layers == 0) return nullptr;
  const auto bytes_of = [&](const models::WeightSlice& slice) {
    return device_matrix_bytes(matrices.planned_format(slice), slice.rows, slice.cols);
  };
  std::vector<std::uint64_t> blocks(traits.blocks);
  for (std::size_t i = 0; i < traits.blocks; ++i) {
    for_each_matrix(tensors, traits, i, [&](const MatrixKey&, const auto& slice) { blocks[i] += bytes_of(slice); });
  }
  const std::uint64_t embedding = bytes_of(tensors.require(Role::token_embedding));
  const DecoderBytes bytes{
      .blocks = blocks,
      .output = traits.tied_output ? embedding : bytes_of(tensors.require(Role::output)),
      .embedding = traits.tied_output ? 0 : embedding,
      .work = device_work_bytes(traits, std::min(kAcceleratorBatch, std::max<std::size_t>(1, traits.context)))};
  const std::string name = options.device->name();
  const DevicePlan plan = plan_device(bytes, options.gpu_layers, free_memory(name), name);
  return make_accelerator(options.device, traits,
                          {.first_block = plan.first_block, .embeds = plan.embeds, .fast = options.fast});
}

void load_accelerator(const DecoderTensors& tensors, const Traits& traits, MatrixLoader& matrices,
                      Accelerator& accelerator) {
  for (std::size_t i = accelerator.first_block(); i < traits.blocks; ++i) {
    for (const Role role : kBlockNorms) give_vector(tensors, role, i, traits.norm_offset, matrices, accelerator);
    for (const Role role : kBlockBiases) give_vector(tensors, role, i, 0, matrices, accelerator);
    for_each_matrix(tensors, traits, i, [&](const MatrixKey& key, const models::WeightSlice& slice) {
      // A router decides which experts run: it keeps its type.
      matrices.give(key, key.role == Role::router ? matrices.prepare_as_stored(slice) : matrices.prepare(key, slice),
                    accelerator);
    });
  }
  give_vector(tensors, Role::output_norm, 0, traits.norm_offset, matrices, accelerator);
  give_vector(tensors, Role::output_norm_bias, 0, 0, matrices, accelerator);
  const auto give = [&](Role role) {
    const MatrixKey key{role, 0, 0};
    matrices.give(key, matrices.prepare(key, tensors.require(role)), accelerator);
  };
  if (!traits.tied_output) give(Role::output);
  if (traits.tied_output || accelerator.embeds()) give(Role::token_embedding);
  if (traits.learned_positions && accelerator.embeds()) {
    give_vector(tensors, Role::position_embedding, 0, 0, matrices, accelerator);
  }
  accelerator.finish();
}

}  // namespace imago::lm
