// Blocks of a program on a CUDA device: one batch at a time, steps of few tokens as recorded graphs.

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

#include "backend/cuda/pass.h"
#include "backend/runner.h"
#include "imago/error.h"

namespace imago::backend::cuda {

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
  std::size_t page_numbers = 0;
  auto operator<=>(const StepKey&) const = default;
};

std::size_t rounded_longest(const PlaceGroup& group) {
  const std::size_t keys = std::bit_ceil(std::max(kFewestKeys, group.longest + 1));
  return (group.paged ? keys : std::min(keys, group.page_rows)) - 1;
}

bool is_narrow(Format format) {
  return kernels::choose_matrix_kernel(format, kernels::Arithmetic::fast, CpuFeatures()) != nullptr;
}

class CudaRunner final : public Runner {
 public:
  CudaRunner(std::shared_ptr<Device> device, std::shared_ptr<const Program> program, const RunnerOptions& options)
      : part_{.device = std::move(device),
              .program = program,
              .options = options,
              .fused = fuse(*program, options.blocks),
              .weights = {program->blocks.size(), program->sizes.copies()}} {}

  std::unique_ptr<LaidOut> lay_out(std::span<const KeyedMatrix> matrices) const override {
    auto made = std::make_unique<StoredMatrices<DeviceMatrix>>();
    for (const KeyedMatrix& one : matrices) {
      made->matrices.emplace_back(one.key, DeviceMatrix{.matrix = GpuMatrix(part_.device, one.matrix),
                                                        .narrow = part_.options.fast && is_narrow(one.matrix.format)});
    }
    return made;
  }
  std::unique_ptr<LaidOut> lay_out_table(const WeightKey& key, RowTable table) const override {
    const KeyedMatrix one{key, table.matrix};
    return lay_out({&one, 1});
  }
  void exchange(LaidOut& matrices) override {
    const std::lock_guard lock(mutex_);
    part_.weights.exchange(static_cast<StoredMatrices<DeviceMatrix>&>(matrices));
    // Recorded steps read the old matrices, and kernels of another type need a first run without recording.
    graphs_.clear();
    warm_.clear();
    if (pass_) pass_->forget_tables();
  }
  void take(const WeightKey& key, std::span<const float> vector) override {
    Array<float> values(*part_.device, vector.size());
    part_.device->upload(std::as_bytes(vector), values.buffer(), 0);
    part_.weights.put(key, std::move(values));
  }
  void finish() override {
    const BlockRange blocks = part_.options.blocks;
    for (std::size_t i = blocks.begin; i < blocks.end; ++i) part_.weights.require(part_.program->blocks[i].steps);
    part_.weights.require(part_.program->output);
    part_.weights.require(part_.program->head.steps);
    const Embed& embed = part_.program->embed;
    const auto has_layers = [&](const LayerInputs& layers) {
      return part_.weights.matrix(layers.table) != nullptr && part_.weights.matrix(layers.projection) != nullptr &&
             part_.weights.vector(layers.norm) != nullptr;
    };
    const bool whole = part_.weights.matrix(embed.table) != nullptr && (!embed.layers || has_layers(*embed.layers));
    if (part_.embeds() && !whole) throw UsageError("a decoder has no token embedding");
    pass_.emplace(part_);
    chosen_ = Array<std::int32_t>(*device(), pass_->most_logit_rows());
    host_chosen_ = PinnedMemory(pass_->most_logit_rows() * sizeof(std::int32_t));
    host_logits_ = PinnedMemory(kMatVecTokens * vocabulary() * sizeof(float));
  }

  const std::shared_ptr<Device>& device() const noexcept override { return part_.device; }
  BlockRange blocks() const noexcept override { return part_.options.blocks; }
  bool chooses() const noexcept override { return true; }
  std::size_t alike() const override { return 0; }  // how keys are split depends on how many tokens there are
  std::uint64_t bytes() const noexcept override { return part_.weights.bytes(); }
  std::uint64_t bytes(const WeightKey& matrix) const override {
    const DeviceMatrix* const found = part_.weights.matrix(matrix);
    return found != nullptr ? found->bytes() : 0;
  }
  std::uint64_t step_bytes() const override {
    std::uint64_t sum = part_.weights.step_bytes(part_.program->output);
    for (std::size_t i = blocks().begin; i < blocks().end; ++i) {
      sum += part_.weights.step_bytes(part_.program->blocks[i].steps);
    }
    return sum;
  }

  std::unique_ptr<Cache> make_cache(kernels::CacheType type, std::size_t rows, std::size_t pages,
                                    std::size_t states) override {
    return std::make_unique<DeviceCache>(device(), page_shapes(*part_.program, blocks(), type, rows), pages,
                                         state_values(*part_.program, blocks()), states, blocks().begin);
  }

  void run(const Batch& batch) override {
    const std::lock_guard lock(mutex_);
    const std::size_t tokens = batch.ids.size();
    if (pass_->reserve(batch.segments, tokens, batch.rows.size(), batch.ropes)) graphs_.clear();
    pass_->places().fill(batch.ids, batch.segments, batch.rows);
    if (!part_.embeds()) {
      std::copy_n(batch.work.stream().begin(), tokens * width(), pass_->host_x(tokens).begin());
      const std::span<float> inputs = pass_->host_layer_inputs(tokens);
      if (!inputs.empty()) {
        std::copy_n(batch.work.at(Slot::layer_inputs).begin(), inputs.size(), inputs.begin());
      }
    }

    const bool step = tokens <= kMatVecTokens && pass_->places().groups().size() == 1 && pass_->records() &&
                      !batch.all_rows && span_of(batch.rows).count == batch.rows.size() && use_graphs_;
    pass_->take_step_scratch(step);
    if (step) {
      run_step(batch, pass_->places().groups().front());
    } else {
      run_prompt(batch);
    }
    pass_->stream().wait();
    if (step && !batch.logits.empty())
      std::memcpy(batch.logits.data(), host_logits_.bytes().data(), batch.logits.size_bytes());
  }

  void compute_logits(Workspace& work, std::size_t first, std::size_t rows, std::span<float> logits) override {
    const std::lock_guard lock(mutex_);
    take_stream(work, first, rows);
    queue_logits(0, rows, logits);
    pass_->stream().wait();
  }

  void compute_hidden(Workspace& work, std::size_t first, std::size_t rows, std::span<float> hidden) override {
    const std::lock_guard lock(mutex_);
    take_stream(work, first, rows);
    pass_->stream().copy_out(pass_->queue_output_input(0, rows), std::as_writable_bytes(hidden));
    pass_->stream().wait();
  }

  void run_head(std::span<const float> pooled, Workspace&, std::span<float> results) override {
    const std::lock_guard lock(mutex_);
    const std::size_t rows = pooled.size() / width();
    if (pass_->reserve({}, rows, rows, {})) graphs_.clear();
    pass_->take_step_scratch(false);
    pass_->stream().copy_in(std::as_bytes(pooled), pass_->x());
    pass_->queue_head(rows);
    pass_->stream().copy_out(pass_->logits(), std::as_writable_bytes(results));
    pass_->stream().wait();
  }

  void use_graphs(bool use) override {
    const std::lock_guard lock(mutex_);
    use_graphs_ = use;
  }

 private:
  std::size_t vocabulary() const noexcept { return part_.sizes().vocabulary; }
  std::size_t width() const noexcept { return part_.sizes().width; }

  /// Rows of the stream that a batch has left on the host.
  void take_stream(Workspace& work, std::size_t first, std::size_t rows) {
    if (pass_->reserve({}, rows, rows, {})) graphs_.clear();
    pass_->take_step_scratch(false);
    const std::span<const float> stream = std::span(work.stream()).subspan(first * width(), rows * width());
    pass_->stream().copy_in(std::as_bytes(stream), pass_->x());
  }

  /// Calls use(begin, count) for rows of logits, as many at a time as there is room for, after queueing them.
  template <class Use>
  void for_each_output(std::size_t first, std::size_t rows, Use use) {
    const std::size_t most = pass_->most_logit_rows();
    if (rows > most) pass_->settle();  // the output norm adds what is left, of all rows or of none
    for (std::size_t done = 0; done < rows; done += most) {
      const std::size_t count = std::min(most, rows - done);
      pass_->queue_output(first + done, count);
      use(done, count);
    }
  }

  /// Logits for the host.
  void queue_logits(std::size_t first, std::size_t rows, std::span<float> logits) {
    for_each_output(first, rows, [&](std::size_t begin, std::size_t count) {
      pass_->stream().copy_out(pass_->logits(),
                               std::as_writable_bytes(logits.subspan(begin * vocabulary(), count * vocabulary())));
    });
  }

  void run_prompt(const Batch& batch) {
    const auto groups = pass_->places().groups();
    if (pass_->reserve_attention(groups)) graphs_.clear();
    const std::size_t tokens = batch.ids.size();
    const RowRange read = span_of(batch.rows);
    const bool together = read.count == batch.rows.size();
    const bool all = batch.all_rows || !together;  // rows far apart are gathered once all have been computed
    const std::size_t first = pass_->queue_blocks(tokens, all ? RowRange{0, tokens} : read, groups);
    if (batch.all_rows) {
      pass_->settle();
      pass_->stream().copy_out(pass_->x(), std::as_writable_bytes(sized(batch.work.stream(), tokens * width())));
    }
    if (batch.rows.empty()) return;
    if (!together) pass_->gather(batch.rows.size());
    if (!batch.logits.empty()) return queue_logits(first, batch.rows.size(), batch.logits);
    for_each_output(first, batch.rows.size(), [&](std::size_t begin, std::size_t count) {
      choose(batch.choices.subspan(begin, count), batch.chosen.subspan(begin, count));
    });
  }

  void queue_step(const Batch& batch, const PlaceGroup& group) {
    pass_->queue_blocks(batch.ids.size(), {0, batch.ids.size()}, {&group, 1});
    if (!batch.rows.empty()) pass_->queue_output(batch.rows.front(), batch.rows.size());
  }

  void run_step(const Batch& batch, PlaceGroup group) {
    group.longest = rounded_longest(group);
    if (pass_->reserve_attention({&group, 1})) graphs_.clear();
    const StepKey key{.tokens = batch.ids.size(),
                      .sequences = batch.segments.size(),
                      // Which rows depends on the first one too; steps read all or the last.
                      .rows = batch.rows.size() * (kMatVecTokens + 1) + span_of(batch.rows).first,
                      .longest = group.longest,
                      .cache_rows = group.page_rows,
                      .type = group.type,
                      .page_numbers = group.paged ? pass_->places().page_numbers() : 0};
    if (warm_.insert(key).second) {
      // Once without recording: scratch grows and kernels are loaded, which a recording must not do. Graphs recorded
      // before may have lost their scratch.
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
    } else if (!batch.choices.empty()) {
      choose(batch.choices, batch.chosen);
    }
  }

  /// Chooses from the rows of logits, and waits.
  void choose(std::span<const TokenChoice> choices, std::span<Token> to) {
    Stream& stream = pass_->stream();
    const auto is_greedy = [](const TokenChoice& choice) { return choice.temperature == 0; };
    if (std::ranges::all_of(choices, is_greedy)) {
      kernels::cuda::argmax(pass_->logits(), choices.size(), vocabulary(), chosen_.data(), stream);
    } else {
      std::vector<kernels::cuda::SampleChoice> rows;
      for (const TokenChoice& choice : choices) {
        rows.push_back({.temperature = choice.temperature,
                        .top_p = choice.top_p,
                        .min_p = choice.min_p,
                        .top_k = choice.top_k,
                        .random = choice.random});
      }
      kernels::cuda::sample(pass_->logits(), rows, vocabulary(), chosen_.data(), stream);
    }
    const std::span<std::byte> bytes = host_chosen_.bytes().first(choices.size() * sizeof(std::int32_t));
    stream.copy_out(chosen_.data(), bytes);
    stream.wait();
    std::memcpy(to.data(), bytes.data(), bytes.size());
    for (Token& chosen : to) {
      if (chosen < 0 || static_cast<std::size_t>(chosen) >= vocabulary()) chosen = -1;
    }
  }

  Part part_;
  std::optional<Pass> pass_;
  std::mutex mutex_;
  std::set<StepKey> warm_;
  std::map<StepKey, Graph> graphs_;
  bool use_graphs_ = true;
  Array<std::int32_t> chosen_;
  PinnedMemory host_chosen_, host_logits_;
};

}  // namespace

}  // namespace imago::backend::cuda

namespace imago::backend {

std::unique_ptr<Runner> make_cuda_runner(std::shared_ptr<Device> device, std::shared_ptr<const Program> program,
                                         const RunnerOptions& options) {
  return std::make_unique<cuda::CudaRunner>(std::move(device), std::move(program), options);
}

}  // namespace imago::backend
