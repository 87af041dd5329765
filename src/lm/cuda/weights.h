#pragma once

// The weights of a decoder's last blocks in device memory, and plain pointers to them for the pass.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "device/cuda/stream.h"
#include "kernels/cuda/matrix.h"
#include "lm/accelerator.h"
#include "models/matrix_names.h"
#include "models/traits.h"

namespace imago::lm::cuda {

using imago::cuda::Array;
using kernels::cuda::GpuMatrix;

struct NormView {
  const float* weight = nullptr;  ///< null: no norm here
  const float* bias = nullptr;
};

struct ProjectionView {
  const GpuMatrix* matrix = nullptr;  ///< null: the architecture has no such projection
  const float* bias = nullptr;
  /// Its products with few tokens read int8 activations, if arithmetic is fast; else float32.
  bool narrow = false;
};

struct FeedForwardView {
  ProjectionView gate, up, down;
};

struct BlockView {
  NormView attention_norm, attention_post_norm, feed_forward_norm, feed_forward_post_norm;
  ProjectionView query, key, value, attention_output, router;
  const float* query_norm = nullptr;
  const float* key_norm = nullptr;
  std::size_t query_norm_cols = 0, key_norm_cols = 0;
  std::vector<FeedForwardView> feed_forwards;
};

class Weights {
 public:
  Weights(std::shared_ptr<Device> device, const models::Traits& traits, const AcceleratorOptions& options);

  void take(const models::MatrixKey& key, const kernels::PackedMatrix& matrix);
  void take(const models::MatrixKey& key, std::span<const float> vector);
  /// Makes the views. Throws UsageError if a weight is missing that nothing runs without.
  void finish();

  const std::shared_ptr<Device>& device() const noexcept { return device_; }
  const models::Traits& traits() const noexcept { return traits_; }
  const AcceleratorOptions& options() const noexcept { return options_; }
  std::span<const BlockView> blocks() const noexcept { return blocks_; }  ///< from options().first_block on
  const NormView& output_norm() const noexcept { return output_norm_; }
  const ProjectionView& output() const noexcept { return output_; }
  const GpuMatrix* embedding() const noexcept { return embedding_; }  ///< null: the host embeds
  const float* positions() const noexcept { return positions_; }      ///< [positions][width]; null: none
  std::uint64_t bytes() const noexcept;
  std::uint64_t step_bytes() const noexcept;

 private:
  const GpuMatrix* matrix(models::Role role, std::size_t block, std::size_t expert = 0) const;
  const float* vector(models::Role role, std::size_t block = 0) const;
  std::size_t vector_size(models::Role role, std::size_t block) const;
  ProjectionView projection(models::Role role, std::size_t block, std::size_t expert = 0) const;
  ProjectionView projection(models::Role role, models::Role bias, std::size_t block, std::size_t expert = 0) const;
  BlockView block(std::size_t index) const;

  std::shared_ptr<Device> device_;
  models::Traits traits_;
  AcceleratorOptions options_;
  std::map<models::MatrixKey, GpuMatrix> matrices_;
  std::map<models::MatrixKey, Array<float>> vectors_;
  std::vector<BlockView> blocks_;
  NormView output_norm_;
  ProjectionView output_;
  const GpuMatrix* embedding_ = nullptr;
  const float* positions_ = nullptr;
};

}  // namespace imago::lm::cuda
