// A decoder on a CUDA device: one batch at a time, steps of few tokens as recorded graphs.

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "lm/accelerator.h"
#include "lm/cuda/kv_cache.h"
#include "lm/cuda/pass.h"
#include "lm/cuda/weights.h"

namespace imago::lm::cuda {

namespace {

using imago::cuda::Graph;
using kernels::cuda::kMatVecTokens;

/// Attention of recorded steps is laid out for a number of keys: powers of two from here on.
constexpr std::size_t kFewestKeys = 256;
/// Graphs that are kept; each takes some hundred KiB.
constexpr std::size_t kMostGraphs = 64;

/// Steps with the same key are the same work.
struct StepKey {
  std::size_t tokens = 0, sequences = 0, rows = 0, longest = 0, cache_rows = 0;
  kernels::CacheType type = kernels::CacheType::f16;
  auto operator<=>(const StepKey&) const = default;
};

std::size_t rounded_longest(const PlaceGroup& group) {
  return std::min(std::bit_ceil(std::max(kFewestKeys, group.longest + 1)), group.shape.rows) - 1;
}

class Decoder final : public Accelerator {
 public:
  Decoder(std::shared_ptr<Device> device, const models::Traits& traits, const AcceleratorOptions& options)
      : weights_(std::move(device), traits, options) {}

  void take(const models::MatrixKey& key, const kernels::PackedMatrix& matrix) override { weights_.take(key, matrix); }
  void take(const models::MatrixKey& key, std::span<const float> vector) override { weights_.take(key, vector); }
  void finish() override {
    weights_.finish();
    pass_.emplace(weights_);
    choice_ = Array<std::byte>(*device(), kChoiceScratch + kernels::cuda::sample_scratch_bytes(vocabulary()));
    host_choice_ = PinnedMemory(sizeof(std::int32_t));
    host_logits_ = PinnedMemory(kMatVecTokens * vocabulary() * sizeof(float));
  }

  const std::shared_ptr<Device>& device() const noexcept override { return weights_.device(); }
  std::size_t first_block() const noexcept override { return weights_.options().first_block; }
  bool embeds() const noexcept override { return weights_.options().embeds; }
  std::uint64_t bytes() const noexcept override { return weights_.bytes(); }
  std::uint64_t step_bytes() const noexcept override { return weights_.step_bytes(); }

  std::unique_ptr<AcceleratorCache> make_cache(const kernels::CacheShape& shape) override {
    return std::make_unique<cuda::KvCache>(device(), shape, first_block(), weights_.traits().blocks);
  }

  TokenId run(const AcceleratorBatch& batch) override {
    const std::lock_guard lock(mutex_);
    const std::size_t tokens = batch.ids.size();
    if (pass_->reserve(batch.segments, tokens, batch.rows, batch.rope)) graphs_.clear();
    pass_->places().fill(batch.ids, batch.segments);
    if (!batch.x.empty()) std::copy(batch.x.begin(), batch.x.end(), pass_->host_x(tokens).begin());

    const bool step = tokens <= kMatVecTokens && pass_->places().groups().size() == 1 && pass_->records() &&
                      batch.output_rows.empty() && batch.first_row + batch.rows <= tokens && use_graphs_;
    pass_->take_step_scratch(step);
    if (step) {
      run_step(batch, pass_->places().groups().front());
    } else {
      run_prompt(batch);
    }
    if (batch.choice != nullptr) queue_choice(*batch.choice, batch.rows - 1);
    pass_->stream().wait();
    if (step && !batch.logits.empty())
      std::memcpy(batch.logits.data(), host_logits_.bytes().data(), batch.logits.size_bytes());
    if (batch.choice == nullptr) return -1;
    std::int32_t chosen = -1;
    std::memcpy(&chosen, host_choice_.bytes().data(), sizeof chosen);
    return chosen >= 0 && static_cast<std::size_t>(chosen) < vocabulary() ? chosen : -1;
  }

  void compute_logits(std::span<const float> output_rows, std::span<float> logits) override {
    const std::lock_guard lock(mutex_);
    const std::size_t rows = output_rows.size() / weights_.traits().width;
    if (pass_->reserve({}, rows, rows, nullptr)) graphs_.clear();
    pass_->take_step_scratch(false);
    pass_->stream().copy_in(std::as_bytes(output_rows), pass_->x());
    queue_logits(0, rows, logits);
    pass_->stream().wait();
  }

  void use_graphs(bool use) override {
    const std::lock_guard lock(mutex_);
    use_graphs_ = use;
  }

 private:
  std::size_t vocabulary() const noexcept { return weights_.traits().vocabulary; }

  /// Logits that are wanted here, in pieces.
  void queue_logits(std::size_t first, std::size_t rows, std::span<float> logits) {
    const std::size_t most = pass_->most_logit_rows();
    if (rows > most) pass_->settle();  // the output norm adds what is left, of all rows or of none
    for (std::size_t done = 0; done < rows; done += most) {
      const std::size_t count = std::min(most, rows - done);
      pass_->queue_output(first + done, count);
      pass_->stream().copy_out(pass_->logits(),
                               std::as_writable_bytes(logits.subspan(done * vocabulary(), count * vocabulary())));
    }
  }

  void run_prompt(const AcceleratorBatch& batch) {
    const auto groups = pass_->places().groups();
    if (pass_->reserve_attention(groups)) graphs_.clear();
    const std::size_t tokens = batch.ids.size();
    const bool all = !batch.output_rows.empty();
    const RowRange read = all ? RowRange{0, tokens} : RowRange{batch.first_row, batch.rows};
    const std::size_t read_at = pass_->queue_blocks(tokens, read, groups);
    if (all) {
      pass_->settle();
      pass_->stream().copy_out(pass_->x(), std::as_writable_bytes(batch.output_rows));
    }
    if (batch.rows == 0) return;
    const std::size_t first = all ? batch.first_row : read_at;
    if (batch.logits.empty()) return pass_->queue_output(first, batch.rows);  // for a choice
    queue_logits(first, batch.rows, batch.logits);
  }

  void queue_step(const AcceleratorBatch& batch, const PlaceGroup& group) {
    pass_->queue_blocks(batch.ids.size(), {0, batch.ids.size()}, {&group, 1});
    if (batch.rows != 0) pass_->queue_output(batch.first_row, batch.rows);
  }

  void run_step(const AcceleratorBatch& batch, PlaceGroup group) {
    group.longest = rounded_longest(group);
    if (pass_->reserve_attention({&group, 1})) graphs_.clear();
    const StepKey key{.tokens = batch.ids.size(),
                      .sequences = batch.segments.size(),
                      // Which rows are a matter of the first one too; steps want all or the last.
                      .rows = batch.rows * (kMatVecTokens + 1) + batch.first_row,
                      .longest = group.longest,
                      .cache_rows = group.shape.rows,
                      .type = group.shape.type};
    if (warm_.insert(key).second) {
      // Once as it is: scratch grows and kernels are loaded, which a recording must not do. What others have recorded
      // may have lost its scratch.
      graphs_.clear();
      queue_step(batch, group);
    } else {
      if (graphs_.size() >= kMostGraphs) graphs_.clear();
      Graph& graph = graphs_[key];
      if (graph.empty()) graph = Graph(pass_->stream(), [&] { queue_step(batch, group); });
      graph.launch(pass_->stream());
    }
    if (!batch.logits.empty()) {
      pass_->stream().copy_out(pass_->logits(), host_logits_.bytes().first(batch.logits.size_bytes()));
    }
  }

  void queue_choice(const TokenChoice& choice, std::size_t row) {
    Stream& stream = pass_->stream();
    const float* const logits = pass_->logits() + row * vocabulary();
    auto* const chosen = reinterpret_cast<std::int32_t*>(choice_.data());
    if (choice.temperature == 0) {
      kernels::cuda::argmax(logits, 1, vocabulary(), chosen, stream);
    } else {
      // float rounds numbers just below 1 to 1.
      constexpr float kBelowOne = 0x1.fffffep-1f;
      kernels::cuda::sample({.logits = logits,
                             .count = vocabulary(),
                             .temperature = choice.temperature,
                             .top_p = choice.top_p,
                             .min_p = choice.min_p,
                             .top_k = choice.top_k,
                             .random = std::min(static_cast<float>(choice.random), kBelowOne),
                             .scratch = choice_.data() + kChoiceScratch,
                             .out = chosen},
                            stream);
    }
    stream.copy_out(chosen, host_choice_.bytes());
  }

  static constexpr std::size_t kChoiceScratch = 256;  // behind the token, aligned

  Weights weights_;
  std::optional<Pass> pass_;
  std::mutex mutex_;
  std::set<StepKey> warm_;
  std::map<StepKey, Graph> graphs_;
  bool use_graphs_ = true;
  Array<std::byte> choice_;
  PinnedMemory host_choice_, host_logits_;
};

}  // namespace

}  // namespace imago::lm::cuda

namespace imago::lm {

std::unique_ptr<Accelerator> make_accelerator(std::shared_ptr<Device> device, const models::Traits& traits,
                                              const AcceleratorOptions& options) {
  return std::make_unique<cuda::Decoder>(std::move(device), traits, options);
}

}  // namespace imago::lm
