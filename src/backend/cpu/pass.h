#pragma once

// Steps of a program on the CPU: each is a call of kernels or two.

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "backend/cpu/runner.h"

namespace imago::backend {

/// Keys, values and states in host memory. It is asked for at once and comes from the system as tokens fill it.
class CpuCache final : public Cache {
 public:
  /// One shape of a page and one number of values per block.
  CpuCache(std::vector<kernels::CacheShape> shapes, std::size_t pages, std::vector<std::size_t> state_values,
           std::size_t states, std::size_t first_block);

  void read(std::size_t block, CachePart part, std::span<const std::uint32_t> pages, std::size_t tokens,
            std::span<std::byte> to) const override;
  void write(std::size_t block, CachePart part, std::span<const std::uint32_t> pages, std::size_t tokens,
             std::span<const std::byte> from) override;
  void copy(std::uint32_t from, std::uint32_t to, std::size_t tokens) override;
  void read_state(std::size_t block, std::uint32_t slot, std::span<float> to) const override;
  void write_state(std::size_t block, std::uint32_t slot, std::span<const float> from) override;
  void copy_state(std::uint32_t from, std::uint32_t to) override;

  const kernels::CacheShape& page(std::size_t block) const { return shapes_[block - first_block_]; }
  std::span<std::byte> keys(std::size_t block) { return keys_[block - first_block_].host(); }
  std::span<std::byte> values(std::size_t block) { return values_[block - first_block_].host(); }
  std::span<float> state(std::size_t block, std::uint32_t slot);

 private:
  std::vector<kernels::CacheShape> shapes_;
  std::vector<std::size_t> state_values_;
  std::size_t first_block_;
  std::vector<Buffer> keys_, values_;  // one per block: all pages
  std::vector<Buffer> states_;         // one per block: all slots
};

/// Tokens whose rows a thread copies at a time.
inline constexpr std::size_t kTokensToCopy = 8;

/// Runs steps over the activations of a workspace.
class CpuPass {
 public:
  /// `singles`: as in Batch.
  CpuPass(const CpuRunner& runner, Workspace& work, std::size_t tokens,
          std::optional<std::size_t> singles = std::nullopt)
      : runner_(runner),
        sizes_(&runner.program().sizes),
        work_(work),
        singles_(singles),
        tokens_(tokens),
        live_{0, tokens},
        read_{0, tokens} {}

  /// `layers`: the table of inputs of layers, where the program has them.
  void embed(std::span<const Token> ids, const RowTable& table, const RowTable& layers,
             std::span<const Segment> segments);
  /// All tokens go into the caches. After its attention, the block goes on with the rows that are `read`; the others
  /// keep in the stream what the block was given.
  void run_block(std::size_t block, RowRange read, std::span<const Segment> segments, const Ropes& ropes);
  /// For these rows of the stream. Without logits, only the observer is shown what the output matrix multiplies.
  void run_output(RowRange rows, std::span<float> logits);
  /// What the product of the output reads: [rows][width].
  void run_output_input(RowRange rows, std::span<float> hidden);
  /// What the head makes of each row of the stream.
  void run_head(std::span<float> results);

 private:
  /// One row for each live token; of queries one for each that is read.
  std::span<float> values(Slot slot);
  void make_layer_inputs(const LayerInputs& step, std::span<const Token> ids, const RowTable& table);
  const kernels::RunMatrix& matrix(const WeightKey& key) const { return *runner_.weights().matrix(key); }
  std::span<const float> vector(const std::optional<WeightKey>& key) const;
  /// How many of some live rows, counted from the first of them, are of single tokens; none if that does not matter.
  std::optional<std::size_t> singles_of(RowRange rows) const;
  kernels::Product product_of(const Product& step, std::size_t expert, std::span<float> y, RowRange rows,
                              std::optional<std::size_t> singles);
  void show(std::span<const Product> products, std::size_t expert, std::span<const float> x, std::size_t tokens) const;

  void run(std::span<const Step> steps);
  void run(const Norm& step);
  void run(const Products& step);
  void run(const NormHeads& step);
  void run(const Attend& step);
  void run(const Experts& step);
  /// Products of a router, which also shows what it reads.
  void run_router(const WeightKey& router, const std::optional<WeightKey>& bias, std::span<const float> in,
                  std::span<float> to);
  void run(const Add& step);
  void run(const AdjustLogits& step);
  void run(const ShortConv& step);
  void run(const LinearScan& step);
  void run(const ChannelScan& step);
  void run(const Gate& step);
  void run(const LatentAttend& step);
  /// y = W x for each head with a matrix of its own: x is [heads][tokens][cols], y [heads][tokens][rows].
  void multiply_heads(const WeightKey& weight, std::size_t heads, std::size_t tokens, std::size_t cols,
                      std::size_t rows, std::span<const float> x, std::span<float> y);
  void run(const NormValues& step);
  void run(const TakeLayerInput& step);
  void run(const ScaleStream& step);
  void run(const Scale& step);
  void run(const SparseGate& step);
  void start_streams(const StartStreams& step);
  void run(const PredictStreams& step);
  void run(const CorrectStreams& step);
  void run(const MergeStreams& step);
  /// What PredictStreams and CorrectStreams call m: [tokens][streams]. `gathered`: room for the norm of the stream.
  template <class Step>
  std::span<const float> mixing(const Step& step, std::span<float> gathered);
  /// Each of `count` matrices, numbered as those of experts, times rows of its own: [matrices][tokens][width].
  std::span<float> multiply_streams(const WeightKey& first, std::size_t count,
                                    std::span<const std::span<const float>> x);
  /// Calls run(segment, its first token in the batch) for all segments: those of one token side by side.
  template <class Run>
  void for_each_segment(Run&& run);
  /// Runs a step that passes states on. Calls run(tokens of the batch, state, first token with a result, row of that
  /// result) for each piece of a segment at whose end its states are those that are kept, or from where on no results
  /// are wanted. The state is `values` long, from `at` on in those of the block.
  template <class Run>
  void pass_states(std::size_t at, std::size_t values, bool all_results, Run&& run);

  const CpuRunner& runner_;
  const Sizes* sizes_;  // sizes of the current block, or of the output
  Workspace& work_;
  const std::optional<std::size_t> singles_;
  const std::size_t tokens_;
  RowRange live_;            // rows of the stream that steps work on
  RowRange read_;            // those of the live rows that later steps need
  std::span<float> logits_;  // logits of the live rows; empty: the output is not computed

  // For attention.
  std::size_t block_ = 0;
  std::span<const Segment> segments_;
  Ropes ropes_ = {};
  std::span<const Step> after_;  // the step that runs
};

}  // namespace imago::backend
