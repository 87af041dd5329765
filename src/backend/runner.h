#pragma once

// What runs consecutive blocks of a program on one device. A model holds one runner or several, first blocks first: the
// first of them embeds tokens, the last makes logits.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>

#include "backend/program.h"
#include "backend/workspace.h"
#include "imago/device.h"
#include "kernels/attention.h"
#include "kernels/matrix.h"
#include "kernels/ops.h"

namespace imago::backend {

using Token = std::int32_t;

inline constexpr std::size_t kNoSecondText = std::numeric_limits<std::size_t>::max();

enum class CachePart : std::uint8_t { keys, values };

/// Pages of keys and values in the blocks of one runner, which must outlive it, and slots of states. Sequences use
/// pages as kernels::CacheShape says, and one slot each; which pages and slots are whose is for the caller to know.
class Cache {
 public:
  virtual ~Cache() = default;

  /// The rows of the first `tokens` tokens of the sequence in `pages`, head after head, as files have them. Blocks are
  /// counted from the first one of the model. Throw DeviceError.
  virtual void read(std::size_t block, CachePart part, std::span<const std::uint32_t> pages, std::size_t tokens,
                    std::span<std::byte> to) const = 0;
  virtual void write(std::size_t block, CachePart part, std::span<const std::uint32_t> pages, std::size_t tokens,
                     std::span<const std::byte> from) = 0;
  /// Copies the rows of the first `tokens` tokens of a page to another one, in all blocks. Throws DeviceError.
  virtual void copy(std::uint32_t from, std::uint32_t to, std::size_t tokens) = 0;

  /// The states of a sequence in a block, Block::state values. Throw DeviceError.
  virtual void read_state(std::size_t block, std::uint32_t slot, std::span<float> to) const = 0;
  virtual void write_state(std::size_t block, std::uint32_t slot, std::span<const float> from) = 0;
  /// Copies the states of all blocks. Throws DeviceError.
  virtual void copy_state(std::uint32_t from, std::uint32_t to) = 0;

 protected:
  Cache() = default;
  Cache(const Cache&) = default;
  Cache& operator=(const Cache&) = default;
};

/// Consecutive tokens of one sequence in a batch.
struct Segment {
  Cache* cache = nullptr;
  std::span<const std::uint32_t> pages = kernels::kOnePage;  ///< pages of the sequence, with room for all of its tokens
  std::size_t past = 0;                                      ///< tokens in the pages before them
  std::size_t tokens = 0;                                    ///< in the batch, after those of the segments before
  /// The slot of its states, which those of `past` tokens are in; it does not matter what is there if that is 0.
  std::uint32_t state = 0;
  std::size_t kept_tokens = 0;              ///< after so many of the tokens, states are copied; 0: they are not
  std::uint32_t kept_state = 0;             ///< to this slot
  std::size_t second_text = kNoSecondText;  ///< the position where the second text of a pair begins
};

/// Calls each(offset in a memory of pages, offset in a file, bytes) for the rows of the first `tokens` tokens of a
/// sequence. A file has them head after head.
template <class Each>
void for_each_stretch(const kernels::CacheShape& page, std::span<const std::uint32_t> pages, std::size_t tokens,
                      Each each) {
  const std::size_t row_bytes = page.row_bytes(), page_bytes = page.bytes(), head_bytes = page.head_bytes();
  for (std::size_t head = 0; head < page.heads; ++head) {
    for (std::size_t first = 0; first < tokens; first += page.rows) {
      each(pages[first / page.rows] * page_bytes + head * head_bytes, (head * tokens + first) * row_bytes,
           std::min(page.rows, tokens - first) * row_bytes);
    }
  }
}

struct BlockRange {
  std::size_t begin = 0, end = 0;
};

/// How the keys (or the values) of each of these blocks lie in a page of `rows` tokens.
inline std::vector<kernels::CacheShape> page_shapes(const Program& program, BlockRange blocks, kernels::CacheType type,
                                                    std::size_t rows) {
  std::vector<kernels::CacheShape> shapes;
  for (std::size_t i = blocks.begin; i < blocks.end; ++i) {
    const Sizes& sizes = program.blocks[i].sizes;
    shapes.push_back({.type = type,
                      .heads = sizes.kv_heads,
                      .rows = rows,
                      .head_values = sizes.head_values,
                      .has_values = sizes.attended == 0});
  }
  return shapes;
}

/// Block::state of each of these blocks.
inline std::vector<std::size_t> state_values(const Program& program, BlockRange blocks) {
  std::vector<std::size_t> values;
  for (std::size_t i = blocks.begin; i < blocks.end; ++i) values.push_back(program.blocks[i].state);
  return values;
}

/// Tokens of a batch.
struct RowRange {
  std::size_t first = 0, count = 0;
};

/// From the first of ascending rows to the last.
inline RowRange span_of(std::span<const std::uint32_t> rows) noexcept {
  if (rows.empty()) return {};
  return {rows.front(), rows.back() + std::size_t{1} - rows.front()};
}

/// How a token is chosen on the device that has the logits. Temperature 0: the most likely one, and nothing else
/// matters.
struct TokenChoice {
  float temperature = 0;
  int top_k = 0;
  float top_p = 1, min_p = 0;
  double random = 0;  ///< in [0, 1)
};

/// One for each rotation that the model has, with a position for each token; null where it has fewer.
using Ropes = std::array<const kernels::RopeTable*, kRopes>;

/// Tokens on their way through a runner, and what the caller reads of them.
struct Batch {
  std::span<const Token> ids;
  std::span<const Segment> segments;  ///< they add up to the ids; no sequence twice
  Ropes ropes = {};
  /// Its stream holds what the runner before has made, and afterwards what the next one reads: all rows, unless this is
  /// the last runner and `all_rows` is false.
  Workspace& work;

  // For the last runner; others ignore them.
  std::span<const std::uint32_t> rows = {};  ///< tokens of the batch whose logits are computed, ascending
  std::span<float> logits = {};              ///< [rows][vocabulary]; empty with choices: they stay on the device
  /// One for each of the rows, and where the tokens go: -1 if none can follow. Only if the runner `chooses`.
  std::span<const TokenChoice> choices = {};
  std::span<Token> chosen = {};
  bool all_rows = false;  ///< compute_logits or compute_hidden follows; there are no `rows` then

  /// So many tokens at the start, in segments of their own, get what each would get alone, and the others what they
  /// would get in a large batch: on the CPU no result then depends on what else is in the batch, bit for bit. None:
  /// what is fastest. GPUs ignore it.
  std::optional<std::size_t> singles = std::nullopt;
};

struct KeyedMatrix {
  WeightKey key;
  kernels::PackedMatrix matrix;
};

/// A packed matrix that is read row by row, with what keeps its bytes alive. Rows begin at whole bytes and blocks.
struct RowTable {
  kernels::PackedMatrix matrix;
  std::shared_ptr<const void> owner;

  std::uint64_t bytes() const noexcept { return packed_bytes(matrix.format, matrix.rows * matrix.cols); }
  /// out is [ids.size()][cols]. REQUIRES: 0 <= id < rows for all of them.
  void look_up(std::span<const Token> ids, std::span<float> out) const;
};

/// Matrices in the layout of a runner's device: those that it computes with, or others that can take their places.
class LaidOut {
 public:
  virtual ~LaidOut() = default;
  virtual std::uint64_t bytes() const noexcept = 0;

 protected:
  LaidOut() = default;
  LaidOut(const LaidOut&) = default;
  LaidOut& operator=(const LaidOut&) = default;
};

/// Weights are given once, then `finish`; after that it is safe from many threads, each with its own workspace.
/// Matrices may be exchanged later, while nobody runs it.
class Runner {
 public:
  virtual ~Runner() = default;

  /// Lays matrices out for the device: one, or a gate and its `up`, which share one arithmetic. Throws as
  /// kernels::RunMatrix, and DeviceError if they do not fit.
  virtual std::unique_ptr<LaidOut> lay_out(std::span<const KeyedMatrix> matrices) const = 0;
  /// The table of the token embedding; of a tied output besides the matrix.
  virtual std::unique_ptr<LaidOut> lay_out_table(const WeightKey& key, RowTable table) const = 0;
  /// Puts matrices of this runner's layout in their places. Afterwards `matrices` holds what was there before.
  virtual void exchange(LaidOut& matrices) = 0;
  virtual void take(const WeightKey& key, std::span<const float> vector) = 0;
  /// Throws UsageError if a weight of its steps is missing.
  virtual void finish() = 0;

  virtual const std::shared_ptr<Device>& device() const noexcept = 0;
  virtual BlockRange blocks() const noexcept = 0;
  virtual bool chooses() const noexcept = 0;  ///< can choose tokens where the logits are
  /// In a batch of up to so many tokens, each of another sequence, a sequence gets bit for bit what it gets alone; with
  /// kernels::kAnyBatch in any batch. 0: not even the same batch is promised to give the same again.
  virtual std::size_t alike() const = 0;
  virtual std::uint64_t bytes() const noexcept = 0;  ///< size of its matrices as products read them
  virtual std::uint64_t bytes(
      const WeightKey& matrix) const = 0;        ///< size of one of them, or of the rows of the embedding
  virtual std::uint64_t step_bytes() const = 0;  ///< what a step of one token reads of them

  /// Pages of `rows` tokens, and slots for the states of so many sequences. Throws DeviceError if they do not fit,
  /// saying how many tokens would; std::bad_alloc on the host.
  virtual std::unique_ptr<Cache> make_cache(kernels::CacheType type, std::size_t rows, std::size_t pages,
                                            std::size_t states) = 0;
  /// REQUIRES: all caches are of this runner, ids are in the vocabulary, segments have room. Throws DeviceError.
  virtual void run(const Batch& batch) = 0;
  /// Logits of rows first … first + rows - 1 of the stream: [rows][vocabulary].
  virtual void compute_logits(Workspace& work, std::size_t first, std::size_t rows, std::span<float> logits) = 0;
  /// What the output matrix reads for those rows, or would if there were one, in float32: [rows][width].
  virtual void compute_hidden(Workspace& work, std::size_t first, std::size_t rows, std::span<float> hidden) = 0;
  /// The head of the program on rows [rows][width]: [rows][its results]. REQUIRES: the program has one.
  virtual void run_head(std::span<const float> pooled, Workspace& work, std::span<float> results) = 0;
  /// Whether steps are recorded and replayed, where the device can; they are from the start. For tests.
  virtual void use_graphs(bool) {}

 protected:
  Runner() = default;
  Runner(const Runner&) = default;
  Runner& operator=(const Runner&) = default;
};

/// The part of a program that a runner has. It embeds tokens if it has the first block, and it has the output if it has
/// the last.
struct RunnerOptions {
  BlockRange blocks;
  bool fast = true;  ///< activations in int8 or bfloat16 where types allow; else float32 throughout
};

/// Throws UnsupportedError if this build cannot use `device`.
std::unique_ptr<Runner> make_cuda_runner(std::shared_ptr<Device> device, std::shared_ptr<const Program> program,
                                         const RunnerOptions& options);

/// Tokens of a prompt that a GPU runs together unless the caller says otherwise.
inline constexpr std::size_t kDeviceBatch = 2048;

}  // namespace imago::backend
