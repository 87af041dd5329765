#include "backend/cpu/runner.h"

#include <algorithm>
#include <utility>

#include "backend/cpu/pass.h"
#include "base/cpu.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/codec.h"

namespace imago::backend {

namespace {

std::vector<Buffer> allocate(std::size_t count, std::size_t bytes) {
  std::vector<Buffer> made;
  for (std::size_t i = 0; i < count; ++i) made.push_back(host_device()->allocate(bytes));
  return made;
}

}  // namespace

CpuCache::CpuCache(const kernels::CacheShape& shape, BlockRange blocks)
    : shape_(shape),
      first_block_(blocks.begin),
      keys_(allocate(blocks.end - blocks.begin, shape.bytes())),
      values_(allocate(blocks.end - blocks.begin, shape.bytes())) {}

void CpuCache::read(std::size_t block, CachePart part, std::size_t tokens, std::span<std::byte> to) const {
  const std::size_t used = tokens * shape_.row_bytes();
  const auto from = (part == CachePart::keys ? keys_ : values_)[block - first_block_].host();
  for (std::size_t head = 0; head < shape_.heads; ++head) {
    std::ranges::copy(from.subspan(head * shape_.head_bytes(), used), to.subspan(head * used, used).begin());
  }
}

void CpuCache::write(std::size_t block, CachePart part, std::size_t tokens, std::span<const std::byte> from) {
  const std::size_t used = tokens * shape_.row_bytes();
  const auto to = (part == CachePart::keys ? keys_ : values_)[block - first_block_].host();
  for (std::size_t head = 0; head < shape_.heads; ++head) {
    std::ranges::copy(from.subspan(head * used, used), to.subspan(head * shape_.head_bytes(), used).begin());
  }
}

void RowTable::look_up(std::span<const Token> ids, std::span<float> out) const {
  constexpr std::size_t kTokensPerPart = 8;
  static constexpr float kOne = 1;
  const std::size_t cols = matrix.cols;
  const bool scaled = !matrix.scales.values.empty();
  const kernels::CodecKernel& kernel = kernels::choose_codec(matrix.format, allowed_cpu_features());
  parallel_for(ids.size(), kTokensPerPart, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t first = static_cast<std::size_t>(ids[i]) * cols;
      kernel.decode({.packed = matrix.packed.data() + packed_bytes(matrix.format, first),
                     .count = cols,
                     .weights = out.data() + i * cols,
                     .scales = scaled ? matrix.scales.values.data() : &kOne,
                     .group = scaled ? matrix.scales.group : matrix.rows * cols + 1,
                     .first = first});
    }
  });
}

CpuRunner::CpuRunner(std::shared_ptr<const Program> program, const RunnerOptions& options)
    : program_(std::move(program)), options_(options), weights_(program_->blocks.size(), program_->sizes.experts) {}

std::unique_ptr<LaidOut> CpuRunner::lay_out(std::span<const KeyedMatrix> matrices) const {
  using kernels::Arithmetic;
  const bool fast =
      options_.fast && std::ranges::all_of(matrices, [](const KeyedMatrix& one) {
        return kernels::choose_matrix_kernel(one.matrix.format, Arithmetic::fast, allowed_cpu_features()) != nullptr;
      });
  auto made = std::make_unique<StoredMatrices<kernels::RunMatrix>>();
  for (const KeyedMatrix& one : matrices) {
    made->matrices.emplace_back(one.key, kernels::RunMatrix(one.matrix, fast ? Arithmetic::fast : Arithmetic::exact));
  }
  return made;
}

std::unique_ptr<LaidOut> CpuRunner::lay_out_table(const WeightKey&, RowTable table) const {
  auto made = std::make_unique<StoredMatrices<kernels::RunMatrix>>();
  made->table = std::move(table);
  return made;
}

void CpuRunner::exchange(LaidOut& matrices) {
  auto& others = static_cast<StoredMatrices<kernels::RunMatrix>&>(matrices);
  weights_.exchange(others);
  if (others.table) std::swap(table_, *others.table);
}

void CpuRunner::take(const WeightKey& key, std::span<const float> vector) {
  weights_.put(key, std::vector<float>(vector.begin(), vector.end()));
}

void CpuRunner::finish() {
  for (std::size_t i = options_.blocks.begin; i < options_.blocks.end; ++i) weights_.require(program_->blocks[i]);
  if (has_output()) weights_.require(program_->output);
  if (options_.blocks.begin == 0 && table_.matrix.rows == 0) throw UsageError("a decoder has no token embedding");
}

std::uint64_t CpuRunner::bytes(const WeightKey& matrix) const {
  const kernels::RunMatrix* const found = weights_.matrix(matrix);
  return found != nullptr ? found->bytes() : matrix == program_->embed.table ? table_.bytes() : 0;
}

std::uint64_t CpuRunner::step_bytes() const {
  std::uint64_t sum = has_output() ? weights_.step_bytes(program_->output) : 0;
  for (std::size_t i = options_.blocks.begin; i < options_.blocks.end; ++i) {
    sum += weights_.step_bytes(program_->blocks[i]);
  }
  return sum;
}

std::unique_ptr<Cache> CpuRunner::make_cache(const kernels::CacheShape& shape) {
  return std::make_unique<CpuCache>(shape, options_.blocks);
}

Token CpuRunner::run(const Batch& batch) {
  const std::size_t tokens = batch.ids.size();
  if (options_.blocks.begin == 0) embed(batch.ids, batch.segments, batch.work);
  if (!has_output()) {
    run_blocks(options_.blocks, tokens, batch.segments, batch.rope, batch.work);
    return -1;
  }
  const std::size_t last = options_.blocks.end - 1;
  run_blocks({options_.blocks.begin, last}, tokens, batch.segments, batch.rope, batch.work);
  RowRange read = {batch.first_row, batch.logits.empty() ? 0 : batch.rows};
  if (batch.all_rows) read = {0, tokens};
  CpuPass(*this, batch.work, tokens).run_block(last, read, batch.segments, batch.rope);
  if (!batch.logits.empty()) compute_logits(batch.work, batch.first_row, batch.rows, batch.logits);
  return -1;
}

void CpuRunner::compute_logits(Workspace& work, std::size_t first, std::size_t rows, std::span<float> logits) {
  CpuPass(*this, work, rows).run_output({first, rows}, logits);
}

void CpuRunner::embed(std::span<const Token> ids, std::span<const Segment> segments, Workspace& work) const {
  CpuPass(*this, work, ids.size()).embed(ids, table_, segments);
}

void CpuRunner::run_blocks(BlockRange range, std::size_t tokens, std::span<const Segment> segments,
                           const kernels::RopeTable* rope, Workspace& work) const {
  for (std::size_t i = range.begin; i < range.end; ++i) {
    CpuPass(*this, work, tokens).run_block(i, {0, tokens}, segments, rope);
  }
}

void CpuRunner::show_output_input(Workspace& work, std::size_t rows) const {
  CpuPass(*this, work, rows).run_output({0, rows}, {});
}

}  // namespace imago::backend
