#pragma once

// One batch through the blocks of a runner, as work on a stream.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/cuda/fuse.h"
#include "backend/cuda/places.h"
#include "backend/weight_store.h"
#include "device/cuda/stream.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/expert_products.h"
#include "kernels/cuda/matrix.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/recurrent.h"
#include "kernels/ops.h"

namespace imago::backend::cuda {

using kernels::cuda::Activations;
using kernels::cuda::GpuMatrix;
using kernels::cuda::ProductScratch;

struct DeviceMatrix {
  GpuMatrix matrix;
  /// Its products with few tokens read int8 activations, if arithmetic is fast; else float32.
  bool narrow = false;

  std::size_t bytes() const noexcept { return matrix.bytes(); }
};

/// What a pass runs.
struct Part {
  std::shared_ptr<Device> device;
  std::shared_ptr<const Program> program;
  RunnerOptions options;
  FusedProgram fused;
  WeightStore<DeviceMatrix, Array<float>> weights;

  bool embeds() const noexcept { return options.blocks.begin == 0; }
  bool has_states() const {
    return std::ranges::any_of(state_values(*program, options.blocks), [](std::size_t values) { return values != 0; });
  }
  const Sizes& sizes() const noexcept { return program->sizes; }
  const DeviceMatrix& matrix(const WeightKey& key) const { return *weights.matrix(key); }
  /// Null if there is none.
  const float* vector(const std::optional<WeightKey>& key) const {
    const Array<float>* const found = weights.vector(key);
    return found != nullptr ? found->data() : nullptr;
  }
};

kernels::cuda::TokenPlaces places_of(const Places& places, const PlaceGroup& group);

/// Whether gate and `up` are products of their own, which an activation joins afterwards.
bool splits(const Product& product) noexcept;

/// Memory of a pass, and the pass itself. Buffers grow to the largest batch and are then used again. Not thread-safe.
class Pass {
 public:
  explicit Pass(const Part& part);
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  Stream& stream() noexcept { return stream_; }
  Places& places() noexcept { return places_; }
  /// Makes room for a batch with logits of `rows` of its tokens, and uploads rope tables that have grown. True if
  /// anything has moved, which voids recorded work.
  bool reserve(std::span<const Segment> segments, std::size_t tokens, std::size_t rows, const Ropes& ropes);
  /// Room for what attention of the groups of `places` needs; likewise.
  bool reserve_attention(std::span<const PlaceGroup> groups);
  /// Pinned, [tokens][width]: the stream that the runner before has made.
  std::span<float> host_x(std::size_t tokens);
  /// Likewise, [tokens][layer_inputs].
  std::span<float> host_layer_inputs(std::size_t tokens);

  /// Steps that may be recorded have scratch of their own: it must not be lost to a long prompt.
  void take_step_scratch(bool step) noexcept { scratch_ = step ? &step_scratch_ : &prompt_scratch_; }
  /// Queues the batch that `places` holds: all blocks, with attention as long as `groups` says. Rows of the stream that
  /// are not `read` afterwards may be left out after the last attention; returns where those that are begin then.
  std::size_t queue_blocks(std::size_t tokens, RowRange read, std::span<const PlaceGroup> groups);
  /// Makes the rows that `places` names the first ones of the stream after the blocks.
  void gather(std::size_t rows);
  /// Queues logits of rows of the stream after the blocks.
  void queue_output(std::size_t first, std::size_t rows);
  /// What the product of the output reads, in float32: [rows][width] on the device.
  const float* queue_output_input(std::size_t first, std::size_t rows) {
    return normed(part_.fused.output.norm, first, rows, {}, true).x;
  }
  /// Queues the steps of the head for rows of the stream, with logits of its own.
  void queue_head(std::size_t rows);
  /// Adds what the last block has left to add, so that x is what the output reads.
  void settle();

  /// Whether steps can be recorded: the host has no part in them. It has if experts of a block differ in format.
  bool records();
  /// Matrices have been exchanged.
  void forget_tables() noexcept { tables_.clear(); }

  float* x() const noexcept { return x_.data(); }
  float* logits() const noexcept { return logits_.data(); }
  /// As many rows of logits as there is ever room for.
  std::size_t most_logit_rows() const noexcept;

 private:
  /// A sum that is left to the norm after it.
  struct Pending {
    const float* branch = nullptr;
    float factor = 1;
  };

  float* buffer(Slot slot) const noexcept;
  /// The rows of a slot as products read them: those of the tokens that are kept.
  Activations activations(Slot slot) const noexcept;
  /// Rows of the stream through a norm, as products with these matrices read them. `floats`: in float32 in any case.
  Activations normed(const std::optional<Norm>& norm, std::size_t first, std::size_t rows,
                     std::span<const Product> readers, bool floats = false);
  kernels::cuda::GpuProduct product_of(const Product& product, float* y, std::size_t expert = 0) const;
  void multiply(std::span<const kernels::cuda::GpuProduct> products, const Activations& in);
  void embed(std::size_t tokens);
  void make_layer_inputs(const LayerInputs& step, std::size_t tokens);
  void run(const StreamProducts& step);
  void run(const SlotProducts& step);
  void run(const PlaceAndAttend& step);
  void run(const Convolve& step);
  void run(const Scan& step);
  void run(const FinishBranch& step);
  void run(const ExpertsBranch& step);
  void run(const Norm& step);
  void run(const LatentAttend& step);
  void run(const TakeLayerInput& step);
  void run(const ScaleStream& step);
  void run(const Scale& step);
  /// Multiplies each head with a matrix of its own: the first values of its row of x into the first of its row of y.
  /// Rows are [tokens][heads], so many values apart.
  void multiply_heads(const WeightKey& weight, std::size_t heads, const float* x, std::size_t x_stride, float* y,
                      std::size_t y_stride);
  /// Through the norm after a branch, if there is one; its sum is left pending.
  void end_branch(const std::optional<Norm>& post_norm, float factor);
  /// Continues with these rows alone, which become the first.
  void keep(RowRange rows);
  /// A product with an expert, or the shared one, into hidden_ from `at` on.
  void multiply_hidden(const Product& product, std::size_t expert, std::size_t at, std::size_t cols,
                       const Activations& in);
  /// The matrices of all experts, for kernels that read those that the device has chosen. No format: they have several.
  struct ExpertTable {
    std::optional<Format> format;
    Array<kernels::cuda::ExpertMatrices> experts;
  };
  const ExpertTable& table_of(const Product& product, std::size_t count);
  static kernels::cuda::ExpertLayer layer_of(const ExpertTable& table, const Product& product, std::size_t rows,
                                             std::size_t cols);
  // What the experts make of `in`, into results_: of up to kMatVecTokens tokens; of many, on tensor cores; and expert
  // by expert, for other formats or where they differ. The last needs the host, and waits for it.
  void multiply_few(const Experts& experts, const ExpertTable& hidden, const ExpertTable& down, const Activations& in);
  void multiply_tiles(const Experts& experts, const ExpertTable& hidden, const ExpertTable& down,
                      const Activations& in);
  void multiply_one_by_one(const Experts& experts, const Activations& in);
  /// Puts the rows of each expert together, on the host.
  void arrange_rows(const Experts& experts);
  kernels::cuda::Int8Out int8() const noexcept { return {int8_.data(), int8_scales_.data()}; }
  /// Products with few tokens read int8 activations.
  bool few(std::size_t tokens) const noexcept;

  const Part& part_;
  Stream stream_;
  Places places_;
  ProductScratch step_scratch_, prompt_scratch_;
  ProductScratch* scratch_ = &prompt_scratch_;
  std::size_t tokens_ = 0, room_ = 0;
  std::size_t first_token_ = 0;         // the token of the batch that rows begin with
  const Sizes* sizes_ = nullptr;        // sizes of the current block
  std::size_t index_ = 0;               // its number in the runner
  std::span<const PlaceGroup> groups_;  // groups of the batch
  Pending pending_;
  Activations attention_;  // results of the last attention

  Array<float> x_, normed_, branch_;   // [tokens][width]
  Array<float> q_, k_, v_, attended_;  // [tokens][heads or kv_heads][head_values]
  Array<float> hidden_;                // [tokens][feed_forward], of experts [rows][…]
  Array<float> layer_inputs_, layer_projected_, layer_hidden_;
  Array<std::int32_t> layer_ids_;                  // [tokens]: rows of the table of layer inputs
  Array<float> query_low_, latent_, latent_rows_;  // latent_: [tokens][heads][rank + rotary]; rows: [heads][tokens][…]
  std::size_t first_ = 0;  // the row of the first token in slots that were filled before rows were dropped
  Array<float> channels_, convolved_, input_gate_, output_gate_, step_, step_low_, scanned_;  // [tokens][of the slot]
  bool is_convolved_ = false;  // the channels are those that a convolution has made: it does not work in place
  Array<std::int8_t> int8_;    // quantized activations of few tokens, the widest ones
  Array<kernels::cuda::float2_pod> int8_scales_;
  Array<float> logits_;  // [rows][vocabulary]
  Array<std::byte> attention_scratch_;
  struct DeviceRope {
    Array<float> table;  // [positions][rotary]
    std::size_t positions = 0;
  };
  std::array<DeviceRope, kRopes> ropes_;
  PinnedMemory host_x_, host_layer_inputs_;

  // For experts. A row is one token at one of its experts.
  std::map<WeightKey, ExpertTable> tables_;  // by the first expert's matrix
  Array<float> up_;                          // as hidden_, if gate and `up` are products of their own
  bool has_splits_ = false;
  Routing routing_;
  Array<float> scores_, gathered_;  // [tokens][experts]; [rows][width]
  Array<float> results_;            // [rows][width], then [tokens][width] of the shared expert
  Array<std::int32_t> chosen_;      // [tokens][used]
  Array<float> expert_weights_;     // likewise
  Array<std::int32_t> rows_;        // the rows of each token; where the host arranges them, after the token of each row
  PinnedMemory host_rows_;
  Array<std::int8_t> expert_int8_;  // [rows][feed_forward], few tokens
  Array<kernels::cuda::float2_pod> expert_int8_scales_;
  Array<kernels::cuda::ExpertTile> tiles_;
  Array<std::int32_t> tile_rows_;  // the token of each row of a tile, then its place among all rows
};

}  // namespace imago::backend::cuda
