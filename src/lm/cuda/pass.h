#pragma once

// One batch through the blocks of an accelerator, as work on a stream.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "device/cuda/stream.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/matrix.h"
#include "kernels/cuda/ops.h"
#include "kernels/ops.h"
#include "lm/cuda/places.h"
#include "lm/cuda/weights.h"
#include "lm/decoder.h"

namespace imago::lm::cuda {

using kernels::cuda::Activations;
using kernels::cuda::ProductScratch;

/// Memory of a pass, and the pass itself. Buffers grow to the largest batch and are then used again. Not thread-safe.
class Pass {
 public:
  explicit Pass(const Weights& weights);
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  Stream& stream() noexcept { return stream_; }
  Places& places() noexcept { return places_; }
  /// Makes room for a batch with logits of `rows` of its tokens, and brings the rope table over if it has grown. True
  /// if anything has moved, which voids recorded work.
  bool reserve(std::span<const Segment> segments, std::size_t tokens, std::size_t rows, const kernels::RopeTable* rope);
  /// Room for what attention of the groups of `places` needs; likewise.
  bool reserve_attention(std::span<const PlaceGroup> groups);
  /// Pinned, [tokens][width]: what the host's blocks have made.
  std::span<float> host_x(std::size_t tokens);

  /// Steps that may be recorded have scratch of their own: it must not be lost to a long prompt.
  void take_step_scratch(bool step) noexcept { scratch_ = step ? &step_scratch_ : &prompt_scratch_; }
  /// Queues the batch that `places` holds: all blocks, with attention as long as `groups` says. Rows of x that are not
  /// `read` afterwards may be left out behind the last attention; returns where those that are begin then.
  std::size_t queue_blocks(std::size_t tokens, RowRange read, std::span<const PlaceGroup> groups);
  /// Queues logits of rows of x, the stream behind the blocks, into `logits`.
  void queue_output(std::size_t first, std::size_t rows);
  /// Adds what the last block has left to add, so that x is what the output reads.
  void settle();

  float* x() const noexcept { return x_.data(); }
  float* logits() const noexcept { return logits_.data(); }
  /// As many rows of logits as there is ever room for.
  std::size_t most_logit_rows() const noexcept;
  bool records() const noexcept { return weights_.traits().experts == 0; }  ///< experts are chosen by the host

 private:
  /// A sum that is left to the norm behind it.
  struct Pending {
    const float* branch = nullptr;
    float factor = 1;
  };

  Activations normed(const NormView& norm, std::size_t first, std::size_t rows,
                     std::initializer_list<const ProjectionView*> readers, bool floats = false);
  void multiply(std::span<const kernels::cuda::GpuProduct> products, const Activations& in);
  /// A product that ends a branch: onto x where nothing is in between, else into `branch`, left pending.
  void finish_branch(const ProjectionView& last, const Activations& in, const NormView& post_norm);
  void end_branch(const NormView& post_norm);
  /// Returns what the attention's output multiplies.
  Activations queue_attention(const BlockView& block, std::size_t index, std::span<const PlaceGroup> groups);
  /// Goes on with these rows alone, which become the first.
  Activations keep(RowRange rows, Activations attended);
  void queue_feed_forward(const BlockView& block);
  void queue_experts(const BlockView& block);
  kernels::cuda::GpuProduct hidden_product(const FeedForwardView& layer, float* y) const;
  kernels::cuda::Int8Out int8() const noexcept { return {int8_.data(), int8_scales_.data()}; }
  /// Products with few tokens read int8 forms.
  bool few(std::size_t tokens) const noexcept;

  const Weights& weights_;
  Stream stream_;
  Places places_;
  ProductScratch step_scratch_, prompt_scratch_;
  ProductScratch* scratch_ = &prompt_scratch_;
  std::size_t tokens_ = 0, room_ = 0;
  Pending pending_;

  Array<float> x_, normed_, branch_;   // [tokens][width]
  Array<float> q_, k_, v_, attended_;  // [tokens][heads or kv_heads][head_values]
  Array<float> hidden_;                // [tokens][feed_forward], of experts [slots][…]
  Array<std::int8_t> int8_;            // of the widest activations, few tokens
  Array<kernels::cuda::float2_pod> int8_scales_;
  Array<float> logits_;  // [rows][vocabulary]
  Array<std::byte> attention_scratch_;
  Array<float> rope_;  // [positions][rotary]
  std::size_t rope_positions_ = 0;
  PinnedMemory host_x_;

  // Of experts.
  Workspace routing_;
  Array<float> scores_, gathered_, results_;  // [tokens][experts]; [slots][width]
  Array<std::byte> slots_;                    // slot tokens, slots of tokens, weights: [slots] each, 4 bytes
  PinnedMemory host_scores_, host_slots_;
};

}  // namespace imago::lm::cuda
