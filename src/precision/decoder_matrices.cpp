#include "precision/decoder_matrices.h"
#include "models/open_model.h"

#include <algorithm>
#include <array>

namespace imago::precision {

namespace {

using models::MatrixKey;
using models::Role;

constexpr std::array kBlockRoles = {Role::query,     Role::key,        Role::value,    Role::query_low,
                                    Role::latent,    Role::key_up,     Role::value_up, Role::attention_output,
                                    Role::gate,      Role::up,         Role::down,     Role::shared_gate,
                                    Role::shared_up, Role::shared_down};

}  // namespace

DecoderMatrices::DecoderMatrices(const std::string& path)
    : file_(models::open_model(path)), traits_(models::read_traits(file_)), tensors_(file_, traits_) {
  const auto add = [&](const MatrixKey& key) {
    const auto slice = tensors_.find(key.role, key.block, key.expert);
    if (!slice) return;
    const std::string name = models::matrix_name(traits_, key.role, key.block);
    auto found = std::ranges::find(matrices_, name, &DecoderMatrix::name);
    if (found == matrices_.end()) {
      const std::size_t first = key.role == Role::output ? traits_.blocks : key.block;
      matrices_.push_back({.name = name, .parts = {}, .cols = slice->cols, .weights = 0, .first_block = first});
      found = matrices_.end() - 1;
    }
    found->parts.push_back(key);
    found->weights += std::uint64_t{slice->rows} * slice->cols;
  };
  add({Role::token_embedding, 0, 0});
  for (std::size_t block = 0; block < traits_.blocks; ++block) {
    for (const Role role : kBlockRoles) {
      // Files may have keys and values for blocks that attend to those of others; they are never used.
      if (traits_.block[block].cache && (role == Role::key || role == Role::value)) continue;
      const bool of_experts =
          traits_.block[block].experts && (role == Role::gate || role == Role::up || role == Role::down);
      const bool of_heads = role == Role::key_up || role == Role::value_up;
      const std::size_t count = of_experts ? traits_.experts : of_heads ? traits_.heads : 1;
      for (std::size_t expert = 0; expert < count; ++expert) add({role, block, expert});
    }
  }
  if (!traits_.tied_output) add({Role::output, 0, 0});
  for (const files::StoredTensor& tensor : file_.tensors()) other_weights_ += tensor.shape.elements();
  for (const DecoderMatrix& matrix : matrices_) other_weights_ -= std::min(other_weights_, matrix.weights);
}

std::uint64_t DecoderMatrices::product_bytes() const noexcept {
  // Query, key and value read the same inputs, as do gate and up; an embedding that is not the output reads none.
  std::uint64_t bytes = 0;
  for (const DecoderMatrix& matrix : matrices_) {
    for (const MatrixKey& key : matrix.parts) {
      const bool is_up = key.role == Role::up || key.role == Role::shared_up;
      const bool shares =
          key.role == Role::key || key.role == Role::value || key.role == Role::latent || (is_up && traits_.gated);
      const bool none = key.role == Role::token_embedding && !traits_.tied_output;
      if (!shares && !none) bytes += std::uint64_t{matrix.cols} * matrix.cols * sizeof(float);
    }
  }
  return bytes;
}

std::vector<float> DecoderMatrices::weights(const MatrixKey& key) const {
  const models::WeightSlice slice = tensors_.require(key.role, key.block, key.expert);
  std::vector<float> weights(slice.rows * slice.cols);
  models::decode_slice(slice, weights);
  return weights;
}

}  // namespace imago::precision
