#include "backend/cpu/runner.h"

#include <algorithm>
#include <utility>

#include "backend/cpu/pass.h"
#include "base/checked.h"
#include "base/cpu.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/codec.h"

namespace imago::backend {

namespace {

std::vector<Buffer> allocate(std::span<const std::size_t> values, std::size_t slots) {
  std::vector<Buffer> made;
  for (const std::size_t of_block : values) {
    made.push_back(
        host_device()->allocate(checked_mul(checked_mul(of_block, sizeof(float), "states"), slots, "states")));
  }
  return made;
}

std::vector<Buffer> allocate(std::span<const kernels::CacheShape> shapes, std::size_t pages, CachePart part) {
  std::vector<Buffer> made;
  for (const kernels::CacheShape& shape : shapes) {
    if (part == CachePart::values && !shape.has_values) {
      made.push_back(host_device()->allocate(0));
      continue;
    }
    made.push_back(host_device()->allocate(checked_mul(shape.bytes(), pages, "cache")));
  }
  return made;
}

/// Moves rows of the stream to its front.
void gather(std::span<float> stream, std::size_t width, std::span<const std::uint32_t> rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != i) std::copy_n(stream.data() + rows[i] * width, width, stream.data() + i * width);
  }
}

}  // namespace

CpuCache::CpuCache(std::vector<kernels::CacheShape> shapes, std::size_t pages, std::vector<std::size_t> state_values,
                   std::size_t states, std::size_t first_block)
    : shapes_(std::move(shapes)),
      state_values_(std::move(state_values)),
      first_block_(first_block),
      keys_(allocate(shapes_, pages, CachePart::keys)),
      values_(allocate(shapes_, pages, CachePart::values)),
      states_(allocate(state_values_, states)) {}

std::span<float> CpuCache::state(std::size_t block, std::uint32_t slot) {
  const std::size_t index = block - first_block_, values = state_values_[index];
  return {reinterpret_cast<float*>(states_[index].host().data()) + slot * values, values};
}

void CpuCache::read_state(std::size_t block, std::uint32_t slot, std::span<float> to) const {
  const std::size_t index = block - first_block_, bytes = state_values_[index] * sizeof(float);
  std::ranges::copy(states_[index].host().subspan(slot * bytes, bytes), std::as_writable_bytes(to).begin());
}

void CpuCache::write_state(std::size_t block, std::uint32_t slot, std::span<const float> from) {
  std::ranges::copy(from, state(block, slot).begin());
}

void CpuCache::copy_state(std::uint32_t from, std::uint32_t to) {
  for (std::size_t i = 0; i < state_values_.size(); ++i) {
    std::ranges::copy(state(first_block_ + i, from), state(first_block_ + i, to).begin());
  }
}

void CpuCache::read(std::size_t block, CachePart part, std::span<const std::uint32_t> pages, std::size_t tokens,
                    std::span<std::byte> to) const {
  const auto from = (part == CachePart::keys ? keys_ : values_)[block - first_block_].host();
  for_each_stretch(page(block), pages, tokens, [&](std::size_t in_cache, std::size_t in_file, std::size_t bytes) {
    std::ranges::copy(from.subspan(in_cache, bytes), to.subspan(in_file, bytes).begin());
  });
}

void CpuCache::write(std::size_t block, CachePart part, std::span<const std::uint32_t> pages, std::size_t tokens,
                     std::span<const std::byte> from) {
  const auto to = (part == CachePart::keys ? keys_ : values_)[block - first_block_].host();
  for_each_stretch(page(block), pages, tokens, [&](std::size_t in_cache, std::size_t in_file, std::size_t bytes) {
    std::ranges::copy(from.subspan(in_file, bytes), to.subspan(in_cache, bytes).begin());
  });
}

void CpuCache::copy(std::uint32_t from, std::uint32_t to, std::size_t tokens) {
  for (std::vector<Buffer>* const part : {&keys_, &values_}) {
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      if (part == &values_ && !shapes_[i].has_values) continue;
      const std::span<std::byte> memory = (*part)[i].host();
      const std::size_t page_bytes = shapes_[i].bytes(), used = tokens * shapes_[i].row_bytes();
      for (std::size_t head = 0; head < shapes_[i].heads; ++head) {
        const std::size_t offset = head * shapes_[i].head_bytes();
        std::ranges::copy(memory.subspan(from * page_bytes + offset, used),
                          memory.subspan(to * page_bytes + offset, used).begin());
      }
    }
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
                     .first = first,
                     .zero_points = kernels::zero_points_of(matrix.scales)});
    }
  });
}

CpuRunner::CpuRunner(std::shared_ptr<const Program> program, const RunnerOptions& options)
    : program_(std::move(program)), options_(options), weights_(program_->blocks.size(), program_->sizes.copies()) {}

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

std::unique_ptr<LaidOut> CpuRunner::lay_out_table(const WeightKey& key, RowTable table) const {
  auto made = std::make_unique<StoredMatrices<kernels::RunMatrix>>();
  made->table = std::move(table);
  made->table_key = key;
  return made;
}

void CpuRunner::exchange(LaidOut& matrices) {
  auto& others = static_cast<StoredMatrices<kernels::RunMatrix>&>(matrices);
  weights_.exchange(others);
  if (others.table) std::swap(others.table_key == program_->embed.table ? table_ : layer_table_, *others.table);
}

void CpuRunner::take(const WeightKey& key, std::span<const float> vector) {
  weights_.put(key, std::vector<float>(vector.begin(), vector.end()));
}

void CpuRunner::finish() {
  for (std::size_t i = options_.blocks.begin; i < options_.blocks.end; ++i) weights_.require(program_->blocks[i].steps);
  if (has_output()) {
    weights_.require(program_->output);
    weights_.require(program_->head.steps);
  }
  if (options_.blocks.begin != 0) return;
  const auto& layers = program_->embed.layers;
  const bool whole = !layers || (layer_table_.matrix.rows != 0 && weights_.matrix(layers->projection) != nullptr &&
                                 weights_.vector(layers->norm) != nullptr);
  const auto& streams = program_->embed.streams;
  for (std::size_t i = 0; streams && i + 1 < streams->count; ++i) {
    if (weights_.matrix(streams->projection.of_expert(i)) == nullptr)
      throw UsageError("a decoder has no other streams");
  }
  if (table_.matrix.rows == 0 || !whole) throw UsageError("a decoder has no token embedding");
}

std::uint64_t CpuRunner::bytes(const WeightKey& matrix) const {
  const kernels::RunMatrix* const found = weights_.matrix(matrix);
  if (found != nullptr) return found->bytes();
  const auto& layers = program_->embed.layers;
  return matrix == program_->embed.table     ? table_.bytes()
         : layers && matrix == layers->table ? layer_table_.bytes()
                                             : 0;
}

std::size_t CpuRunner::alike() const {
  std::size_t least = kernels::kAnyBatch;  // routers see no more tokens at a time than is alike
  weights_.for_each_matrix(
      [&](const kernels::RunMatrix& matrix) { least = std::min(least, matrix.kernel().functions.alike); });
  return least;
}

std::uint64_t CpuRunner::step_bytes() const {
  std::uint64_t sum = has_output() ? weights_.step_bytes(program_->output) : 0;
  for (std::size_t i = options_.blocks.begin; i < options_.blocks.end; ++i) {
    sum += weights_.step_bytes(program_->blocks[i].steps);
  }
  return sum;
}

std::unique_ptr<Cache> CpuRunner::make_cache(kernels::CacheType type, std::size_t rows, std::size_t pages,
                                             std::size_t states) {
  return std::make_unique<CpuCache>(page_shapes(*program_, options_.blocks, type, rows), pages,
                                    state_values(*program_, options_.blocks), states, options_.blocks.begin);
}

void CpuRunner::run(const Batch& batch) {
  const std::size_t tokens = batch.ids.size();
  if (options_.blocks.begin == 0) embed(batch.ids, batch.segments, batch.work);
  if (!has_output()) {
    return run_blocks(options_.blocks, tokens, batch.segments, batch.ropes, batch.work, batch.singles);
  }
  const std::size_t last = options_.blocks.end - 1;
  run_blocks({options_.blocks.begin, last}, tokens, batch.segments, batch.ropes, batch.work, batch.singles);
  const RowRange read = batch.all_rows ? RowRange{0, tokens} : span_of(batch.rows);
  CpuPass(*this, batch.work, tokens, batch.singles).run_block(last, read, batch.segments, batch.ropes);
  if (batch.rows.empty()) return;
  const bool together = read.count == batch.rows.size();
  if (!together) gather(batch.work.stream(), program_->sizes.width, batch.rows);
  const RowRange rows{together ? read.first : 0, batch.rows.size()};
  // Logits are wanted of one token of a sequence at a time, so they are what each gets alone.
  const auto singles = batch.singles ? std::optional(rows.first + rows.count) : std::nullopt;
  CpuPass(*this, batch.work, rows.count, singles).run_output(rows, batch.logits);
}

void CpuRunner::compute_logits(Workspace& work, std::size_t first, std::size_t rows, std::span<float> logits) {
  CpuPass(*this, work, rows).run_output({first, rows}, logits);
}

void CpuRunner::compute_hidden(Workspace& work, std::size_t first, std::size_t rows, std::span<float> hidden) {
  CpuPass(*this, work, rows).run_output_input({first, rows}, hidden);
}

void CpuRunner::embed(std::span<const Token> ids, std::span<const Segment> segments, Workspace& work) const {
  CpuPass(*this, work, ids.size()).embed(ids, table_, layer_table_, segments);
}

void CpuRunner::run_blocks(BlockRange range, std::size_t tokens, std::span<const Segment> segments, const Ropes& ropes,
                           Workspace& work, std::optional<std::size_t> singles) const {
  for (std::size_t i = range.begin; i < range.end; ++i) {
    CpuPass(*this, work, tokens, singles).run_block(i, {0, tokens}, segments, ropes);
  }
}

void CpuRunner::run_head(std::span<const float> pooled, Workspace& work, std::span<float> results) {
  std::ranges::copy(pooled, sized(work.stream(), pooled.size()).begin());
  CpuPass(*this, work, pooled.size() / program_->sizes.width).run_head(results);
}

void CpuRunner::show_output_input(Workspace& work, std::size_t rows) const {
  CpuPass(*this, work, rows).run_output({0, rows}, {});
}

}  // namespace imago::backend
