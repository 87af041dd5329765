#include "lm/decoder_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/file.h"
#include "imago/error.h"
#include "lm/accelerated_weights.h"
#include "lm/fingerprint.h"
#include "lm/matrix_loader.h"
#include "models/decoder_tensors.h"

namespace imago::lm {

namespace {

using files::StoredTensor;
using models::DecoderTensors;
using models::Role;
using models::Traits;
using models::WeightSlice;

class DecoderLoader {
 public:
  DecoderLoader(const DecoderTensors& tensors, const Traits& traits, MatrixLoader& matrices)
      : tensors_(tensors), traits_(traits), matrices_(matrices) {}

  Vector vector(Role role, std::size_t block = 0, std::size_t expert = 0) {
    const auto slice = tensors_.find(role, block, expert);
    return slice ? matrices_.vector(*slice) : Vector();
  }

  Norm norm(Role weight, Role bias, std::size_t block = 0) {
    return {shifted(vector(weight, block)), vector(bias, block)};
  }
  Norm norm(Role weight, std::size_t block) { return {shifted(vector(weight, block)), {}}; }

  Vector shifted(Vector weights) const {
    for (float& weight : weights) weight += traits_.norm_offset;
    return weights;
  }

  Projection projection(Role role, std::size_t block, std::size_t expert = 0) {
    Projection made;
    if (const auto slice = tensors_.find(role, block, expert)) {
      made.matrix.emplace(matrices_.matrix(matrices_.prepare({role, block, expert}, *slice)));
    }
    return made;
  }
  Projection projection(Role role, Role bias, std::size_t block, std::size_t expert = 0) {
    Projection made = projection(role, block, expert);
    made.bias = vector(bias, block, expert);
    return made;
  }

  PreparedMatrix prepare(Role role, std::size_t block = 0, std::size_t expert = 0) {
    return matrices_.prepare({role, block, expert}, tensors_.require(role, block, expert));
  }

  FeedForward feed_forward(std::size_t block, std::size_t expert) {
    FeedForward made;
    if (traits_.gated) {
      // One region for both, so one arithmetic.
      const PreparedMatrix gate = prepare(Role::gate, block, expert), up = prepare(Role::up, block, expert);
      const auto arithmetic = matrices_.arithmetic({gate.format, up.format});
      made.gate.matrix.emplace(matrices_.matrix(gate, arithmetic));
      made.up.matrix.emplace(matrices_.matrix(up, arithmetic));
    } else {
      made.up = projection(Role::up, Role::up_bias, block, expert);
    }
    made.down = projection(Role::down, Role::down_bias, block, expert);
    return made;
  }

  Block block(std::size_t index) {
    Block made;
    made.attention_norm = norm(Role::attention_norm, Role::attention_norm_bias, index);
    made.attention_post_norm = norm(Role::attention_post_norm, index);
    made.feed_forward_norm = norm(Role::feed_forward_norm, Role::feed_forward_norm_bias, index);
    made.feed_forward_post_norm = norm(Role::feed_forward_post_norm, index);
    made.query = projection(Role::query, Role::query_bias, index);
    made.key = projection(Role::key, Role::key_bias, index);
    made.value = projection(Role::value, Role::value_bias, index);
    made.attention_output = projection(Role::attention_output, Role::attention_output_bias, index);
    made.query_norm = shifted(vector(Role::query_norm, index));
    made.key_norm = shifted(vector(Role::key_norm, index));
    // A router is a few rows that decide which experts run: another type would save nothing and change everything.
    if (const auto router = tensors_.find(Role::router, index)) {
      made.router.matrix.emplace(matrices_.matrix(matrices_.prepare_as_stored(*router)));
    }
    const std::size_t count = std::max<std::size_t>(1, traits_.experts);
    for (std::size_t expert = 0; expert < count; ++expert) made.feed_forwards.push_back(feed_forward(index, expert));
    return made;
  }

 private:
  const DecoderTensors& tensors_;
  const Traits& traits_;
  MatrixLoader& matrices_;
};

/// From the file itself if that is its type and its rows can be read one by one there; else from memory.
EmbeddingTable load_embedding(PreparedMatrix prepared, MatrixLoader& matrices) {
  const WeightSlice& slice = prepared.slice;
  const StoredTensor& tensor = *slice.tensor;
  if (prepared.encoded) return EmbeddingTable(slice.rows, slice.cols, std::move(*prepared.encoded));
  if (slice.transposed || slice.first_row != 0 || !EmbeddingTable::fits(tensor)) {
    return EmbeddingTable(slice.rows, slice.cols, matrices.encode(slice, DType::float32));
  }
  EmbeddingTable table(tensor);
  if (!release_pages(tensor.bytes)) table.own_bytes();
  return table;
}

std::uint64_t bytes_of(const Projection& projection) { return projection.matrix ? projection.matrix->bytes() : 0; }

std::uint64_t step_bytes(const DecoderWeights& weights) {
  std::uint64_t bytes = bytes_of(weights.output);
  for (const Block& block : weights.blocks) {
    for (const Projection* one : {&block.query, &block.key, &block.value, &block.attention_output, &block.router}) {
      bytes += bytes_of(*one);
    }
    std::uint64_t experts = 0;
    for (const FeedForward& one : block.feed_forwards) {
      experts += bytes_of(one.gate) + bytes_of(one.up) + bytes_of(one.down);
    }
    const Traits& traits = weights.traits;
    bytes += traits.experts == 0 ? experts : experts * traits.experts_used / traits.experts;
  }
  return bytes;
}

/// Tells models apart by names, shapes, types and the first and last bytes of every tensor: reading all of a large
/// model would take longer than loading it.
std::uint64_t fingerprint(const files::TensorFile& file, const LanguageModelOptions& options) {
  constexpr std::size_t kBytes = 64;
  Fingerprint hash;
  for (const StoredTensor& tensor : file.tensors()) {
    hash.add(tensor.name);
    hash.add(tensor.type);
    for (const std::size_t extent : tensor.shape.extents()) hash.add(extent);
    hash.add(tensor.bytes.first(std::min(kBytes, tensor.bytes.size())));
    hash.add(tensor.bytes.last(std::min(kBytes, tensor.bytes.size())));
  }
  hash.add(options.type ? options.type->name() : std::string_view());
  return hash.value();
}

/// All that no accelerator takes over.
void load_host_part(DecoderWeights& weights, const DecoderTensors& tensors, DecoderLoader& loader,
                    MatrixLoader& matrices) {
  const Traits& traits = weights.traits;
  const Accelerator* const accelerator = weights.accelerator.get();
  if (accelerator != nullptr && accelerator->embeds()) return;
  if (traits.learned_positions) {
    weights.positions = matrices.vector(tensors.require(Role::position_embedding));
  }
  const std::size_t blocks = accelerator != nullptr ? accelerator->first_block() : traits.blocks;
  for (std::size_t i = 0; i < blocks; ++i) weights.blocks.push_back(loader.block(i));
  const bool has_output = accelerator == nullptr;
  if (has_output) weights.output_norm = loader.norm(Role::output_norm, Role::output_norm_bias);
  if (has_output && !traits.tied_output) weights.output.matrix.emplace(matrices.matrix(loader.prepare(Role::output)));
  PreparedMatrix embedding = loader.prepare(Role::token_embedding);
  if (has_output && traits.tied_output) weights.output.matrix.emplace(matrices.matrix(embedding));
  weights.embedding = load_embedding(std::move(embedding), matrices);
}

}  // namespace

DecoderWeights load_decoder(files::TensorFile file, const LanguageModelOptions& options, const MatrixEncoder& encoder) {
  DecoderWeights weights;
  weights.traits = models::read_traits(file);
  const Traits& traits = weights.traits;
  const DecoderTensors tensors(file, traits);
  std::uint64_t total = 0;
  for (const StoredTensor& tensor : file.tensors()) {
    total += tensor.bytes.size();
    weights.parameters += tensor.shape.elements();
  }
  MatrixLoader matrices(options, encoder, total);
  DecoderLoader loader(tensors, traits, matrices);

  weights.accelerator = plan_accelerator(tensors, traits, matrices, options);
  if (traits.learned_positions) weights.learned_positions = tensors.require(Role::position_embedding).rows;
  weights.rope_divisors = loader.vector(Role::rope_factors);
  load_host_part(weights, tensors, loader, matrices);
  if (weights.accelerator != nullptr) load_accelerator(tensors, traits, matrices, *weights.accelerator);

  weights.type = matrices.main_type();
  weights.run_bytes = matrices.run_bytes();
  weights.step_bytes = step_bytes(weights);
  if (weights.accelerator != nullptr) {
    weights.run_bytes += weights.accelerator->bytes();
    weights.step_bytes += weights.accelerator->step_bytes();
  }
  weights.fingerprint = fingerprint(file, options);
  for (const StoredTensor& tensor : file.tensors()) release_pages(tensor.bytes);
  const bool embeds_here = weights.accelerator == nullptr || !weights.accelerator->embeds();
  if (embeds_here && weights.embedding.bytes() == 0) weights.file.emplace(std::move(file));
  return weights;
}

}  // namespace imago::lm
