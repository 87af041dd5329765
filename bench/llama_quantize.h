#pragma once

// llama.cpp's quantizer as a yardstick, where its program is on PATH.

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "imago/format.h"

namespace imago::bench {

/// Runs `llama-quantize` on one float32 matrix in a temporary folder, which the destructor removes.
class LlamaQuantize {
 public:
  static constexpr std::size_t kColumns = 4096;

  /// Writes the matrix as a GGUF file. REQUIRES: weights.size() is a multiple of kColumns.
  explicit LlamaQuantize(std::span<const float> weights);
  ~LlamaQuantize();
  LlamaQuantize(const LlamaQuantize&) = delete;
  LlamaQuantize& operator=(const LlamaQuantize&) = delete;

  static bool available();

  struct Result {
    double seconds;                 ///< as the program reports: reading, encoding, writing
    std::vector<std::byte> packed;  ///< the matrix it wrote
  };
  /// nullopt if the program does not know the type or fails.
  std::optional<Result> run(BlockFormat format, int threads) const;

 private:
  std::filesystem::path folder_;
  std::size_t count_;
};

}  // namespace imago::bench
