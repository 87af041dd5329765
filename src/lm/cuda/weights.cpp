#include "lm/cuda/weights.h"

#include <algorithm>
#include <utility>

#include "imago/error.h"

namespace imago::lm::cuda {

using models::MatrixKey;
using models::Role;

namespace {

bool is_narrow(Format format) {
  return kernels::choose_matrix_kernel(format, kernels::Arithmetic::fast, CpuFeatures()) != nullptr;
}

std::uint64_t bytes_of(const ProjectionView& projection) {
  return projection.matrix != nullptr ? projection.matrix->bytes() : 0;
}

}  // namespace

Weights::Weights(std::shared_ptr<Device> device, const models::Traits& traits, const AcceleratorOptions& options)
    : device_(std::move(device)), traits_(traits), options_(options) {}

void Weights::take(const MatrixKey& key, const kernels::PackedMatrix& matrix) {
  matrices_.emplace(key, GpuMatrix(device_, matrix));
}

void Weights::take(const MatrixKey& key, std::span<const float> vector) {
  Array<float> values(*device_, vector.size());
  device_->upload(std::as_bytes(vector), values.buffer(), 0);
  vectors_.emplace(key, std::move(values));
}

const GpuMatrix* Weights::matrix(Role role, std::size_t block, std::size_t expert) const {
  const auto found = matrices_.find({role, block, expert});
  return found == matrices_.end() ? nullptr : &found->second;
}

const float* Weights::vector(Role role, std::size_t block) const {
  const auto found = vectors_.find({role, block, 0});
  return found == vectors_.end() ? nullptr : found->second.data();
}

std::size_t Weights::vector_size(Role role, std::size_t block) const {
  const auto found = vectors_.find({role, block, 0});
  return found == vectors_.end() ? 0 : found->second.size();
}

ProjectionView Weights::projection(Role role, std::size_t block, std::size_t expert) const {
  const GpuMatrix* const found = matrix(role, block, expert);
  return {.matrix = found, .narrow = found != nullptr && options_.fast && is_narrow(found->format())};
}

ProjectionView Weights::projection(Role role, Role bias, std::size_t block, std::size_t expert) const {
  ProjectionView made = projection(role, block, expert);
  made.bias = vector(bias, block);
  return made;
}

BlockView Weights::block(std::size_t index) const {
  BlockView made;
  made.attention_norm = {vector(Role::attention_norm, index), vector(Role::attention_norm_bias, index)};
  made.attention_post_norm = {vector(Role::attention_post_norm, index)};
  made.feed_forward_norm = {vector(Role::feed_forward_norm, index), vector(Role::feed_forward_norm_bias, index)};
  made.feed_forward_post_norm = {vector(Role::feed_forward_post_norm, index)};
  made.query = projection(Role::query, Role::query_bias, index);
  made.key = projection(Role::key, Role::key_bias, index);
  made.value = projection(Role::value, Role::value_bias, index);
  made.attention_output = projection(Role::attention_output, Role::attention_output_bias, index);
  made.query_norm = vector(Role::query_norm, index);
  made.key_norm = vector(Role::key_norm, index);
  made.query_norm_cols = vector_size(Role::query_norm, index);
  made.key_norm_cols = vector_size(Role::key_norm, index);
  made.router = projection(Role::router, index);
  for (std::size_t expert = 0; expert < std::max<std::size_t>(1, traits_.experts); ++expert) {
    made.feed_forwards.push_back({.gate = projection(Role::gate, index, expert),
                                  .up = projection(Role::up, Role::up_bias, index, expert),
                                  .down = projection(Role::down, Role::down_bias, index, expert)});
  }
  return made;
}

void Weights::finish() {
  const auto require = [](const ProjectionView& projection) {
    if (projection.matrix == nullptr) throw UsageError("a matrix of the decoder was not given to the accelerator");
  };
  for (std::size_t i = options_.first_block; i < traits_.blocks; ++i) {
    blocks_.push_back(block(i));
    const BlockView& made = blocks_.back();
    for (const ProjectionView* one : {&made.query, &made.key, &made.value, &made.attention_output}) require(*one);
    for (const FeedForwardView& one : made.feed_forwards) {
      if (traits_.gated) require(one.gate);
      require(one.up);
      require(one.down);
    }
    if (traits_.experts != 0) require(made.router);
  }
  output_norm_ = {vector(Role::output_norm), vector(Role::output_norm_bias)};
  output_ = projection(traits_.tied_output ? Role::token_embedding : Role::output, 0);
  require(output_);
  if (options_.embeds) {
    embedding_ = matrix(Role::token_embedding, 0);
    require({.matrix = embedding_});
    positions_ = vector(Role::position_embedding);
  }
}

std::uint64_t Weights::bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (const auto& [key, matrix] : matrices_) bytes += matrix.bytes();
  return bytes;
}

std::uint64_t Weights::step_bytes() const noexcept {
  std::uint64_t bytes = bytes_of(output_);
  for (const BlockView& block : blocks_) {
    for (const ProjectionView* one : {&block.query, &block.key, &block.value, &block.attention_output, &block.router}) {
      bytes += bytes_of(*one);
    }
    std::uint64_t experts = 0;
    for (const FeedForwardView& one : block.feed_forwards) {
      experts += bytes_of(one.gate) + bytes_of(one.up) + bytes_of(one.down);
    }
    bytes += traits_.experts == 0 ? experts : experts * traits_.experts_used / traits_.experts;
  }
  return bytes;
}

}  // namespace imago::lm::cuda
