#pragma once

// A decoder, loaded: its program and the runners that have its weights.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/runner.h"
#include "backend/runner.h"
#include "files/tensor_file.h"
#include "imago/lm.h"
#include "lm/matrix_encoder.h"
#include "models/traits.h"

namespace imago::lm {

struct DecoderWeights {
  std::string path;  ///< of the file
  models::Traits traits;
  std::shared_ptr<const backend::Program> program;
  /// One for each device, in the order of their blocks: the host first, the accelerator last.
  std::vector<std::unique_ptr<backend::Runner>> runners;
  std::size_t learned_positions = 0;  ///< rows of the table of positions; 0: the model rotates
  std::vector<float> rope_divisors;   ///< of GGUF files; empty: none

  std::string type;              ///< of most of the weights
  std::uint64_t parameters = 0;  ///< all weights, those of a tied output once
  std::uint64_t run_bytes = 0;   ///< of the matrices as products read them
  std::uint64_t step_bytes = 0;  ///< what a step of one token reads of them: of experts only those that it uses
  std::uint64_t fingerprint = 0;

  /// Sums up what the runners have. Call it once they are finished.
  void count_bytes();
};

/// Packs everything for this machine and its accelerator, where the options name one; pages of the file are given back
/// as soon as they are packed. Throws FormatError for weights that are missing, of wrong shapes or not finite,
/// UnsupportedError for types without products, DeviceError if the weights do not fit the device, saying how many
/// layers would. `encoder`, where it is not empty, packs the matrices instead (lm/matrix_encoder.h).
DecoderWeights load_decoder(files::TensorFile file, const LanguageModelOptions& options,
                            const MatrixEncoder& encoder = {});

}  // namespace imago::lm
