#pragma once

// The last blocks of a decoder and its output on another device. Host code holds one of these or none, and asks no
// further.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "imago/device.h"
#include "imago/lm.h"
#include "kernels/matrix.h"
#include "kernels/ops.h"
#include "lm/accelerator_cache.h"
#include "lm/kv_cache.h"
#include "models/matrix_names.h"
#include "models/traits.h"

namespace imago::lm {

/// How a token is chosen where the logits are. Temperature 0: the most likely one, and nothing else matters.
struct TokenChoice {
  float temperature = 0;
  int top_k = 0;
  float top_p = 1, min_p = 0;
  double random = 0;  ///< in [0, 1)
};

/// Tokens on their way through the accelerator, and what is wanted of them there.
struct AcceleratorBatch {
  std::span<const TokenId> ids;
  /// [tokens][width], what the blocks in front have made; empty where the accelerator embeds.
  std::span<const float> x;
  std::span<const Segment> segments;  ///< as run_blocks has them
  const kernels::RopeTable* rope = nullptr;

  std::span<float> output_rows = {};  ///< [tokens][width], what the output reads; empty: not wanted
  std::size_t first_row = 0;          ///< of those whose logits are wanted
  std::size_t rows = 0;
  std::span<float> logits = {};         ///< [rows][vocabulary]; empty: they stay there
  const TokenChoice* choice = nullptr;  ///< from the last of these rows
};

/// Weights are given once, then `finish`; after that it is safe from many threads, one of which computes at a time.
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  /// Lays the weights out for the device and uploads them. Throw DeviceError if they do not fit, and as
  /// kernels::RunMatrix.
  virtual void take(const models::MatrixKey& key, const kernels::PackedMatrix& matrix) = 0;
  virtual void take(const models::MatrixKey& key, std::span<const float> vector) = 0;
  /// All weights are there.
  virtual void finish() = 0;

  virtual const std::shared_ptr<Device>& device() const noexcept = 0;
  virtual std::size_t first_block() const noexcept = 0;   ///< those in front of it run on the host
  virtual bool embeds() const noexcept = 0;               ///< has the token embedding; only with first_block 0
  virtual std::uint64_t bytes() const noexcept = 0;       ///< of its matrices in the memory of the device
  virtual std::uint64_t step_bytes() const noexcept = 0;  ///< what a step of one token reads of them

  /// Throws DeviceError if it does not fit, saying how many tokens would.
  virtual std::unique_ptr<AcceleratorCache> make_cache(const kernels::CacheShape& shape) = 0;
  /// Returns the chosen token, -1 without a choice or if no token can follow. REQUIRES: as run_blocks; all caches are
  /// of this accelerator. Throws DeviceError.
  virtual TokenId run(const AcceleratorBatch& batch) = 0;
  /// Logits of rows that `run` put out: [rows][vocabulary].
  virtual void compute_logits(std::span<const float> output_rows, std::span<float> logits) = 0;
  /// Whether steps are recorded and replayed; they are from the start. For tests.
  virtual void use_graphs(bool use) = 0;

 protected:
  Accelerator() = default;
  Accelerator(const Accelerator&) = default;
  Accelerator& operator=(const Accelerator&) = default;
};

struct AcceleratorOptions {
  std::size_t first_block = 0;
  bool embeds = true;
  bool fast = true;  ///< as LanguageModelOptions
};

/// Throws UnsupportedError if this build cannot use `device`.
std::unique_ptr<Accelerator> make_accelerator(std::shared_ptr<Device> device, const models::Traits& traits,
                                              const AcceleratorOptions& options);
/// Tokens of a prompt that an accelerator runs together where nobody says otherwise.
inline constexpr std::size_t kAcceleratorBatch = 2048;

}  // namespace imago::lm
