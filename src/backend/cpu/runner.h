#pragma once

// Programs on the CPU, step by step.

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/runner.h"
#include "backend/weight_store.h"

namespace imago::backend {

class CpuRunner final : public Runner {
 public:
  CpuRunner(std::shared_ptr<const Program> program, const RunnerOptions& options);

  std::unique_ptr<LaidOut> lay_out(std::span<const KeyedMatrix> matrices) const override;
  std::unique_ptr<LaidOut> lay_out_table(const WeightKey& key, RowTable table) const override;
  void exchange(LaidOut& matrices) override;
  void take(const WeightKey& key, std::span<const float> vector) override;
  void finish() override;

  const std::shared_ptr<Device>& device() const noexcept override { return device_; }
  BlockRange blocks() const noexcept override { return options_.blocks; }
  bool chooses() const noexcept override { return false; }
  std::size_t alike() const override;
  std::uint64_t bytes() const noexcept override { return weights_.bytes(); }
  std::uint64_t bytes(const WeightKey& matrix) const override;
  std::uint64_t step_bytes() const override;

  std::unique_ptr<Cache> make_cache(kernels::CacheType type, std::size_t rows, std::size_t pages,
                                    std::size_t states) override;
  void run(const Batch& batch) override;
  void compute_logits(Workspace& work, std::size_t first, std::size_t rows, std::span<float> logits) override;
  void compute_hidden(Workspace& work, std::size_t first, std::size_t rows, std::span<float> hidden) override;
  void run_head(std::span<const float> pooled, Workspace& work, std::span<float> results) override;

  // The parts of `run`, for code that looks into a model: sweeps and calibration.

  /// Fills the stream with what block 0 reads.
  void embed(std::span<const Token> ids, std::span<const Segment> segments, Workspace& work) const;
  /// Runs some of its blocks on the stream, all rows.
  void run_blocks(BlockRange range, std::size_t tokens, std::span<const Segment> segments, const Ropes& ropes,
                  Workspace& work, std::optional<std::size_t> singles = std::nullopt) const;
  /// Shows the observer what the output matrix would multiply for the first rows of the stream.
  void show_output_input(Workspace& work, std::size_t rows) const;

  using Weights = WeightStore<kernels::RunMatrix, std::vector<float>>;
  const Program& program() const noexcept { return *program_; }
  const Weights& weights() const noexcept { return weights_; }

 private:
  bool has_output() const noexcept { return options_.blocks.end == program_->blocks.size(); }

  std::shared_ptr<const Program> program_;
  RunnerOptions options_;
  std::shared_ptr<Device> device_ = host_device();
  Weights weights_;
  RowTable table_, layer_table_;
};

}  // namespace imago::backend
