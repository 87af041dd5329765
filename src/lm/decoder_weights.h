#pragma once

// A decoder, loaded: its program and the runners that have its weights.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/runner.h"
#include "backend/runner.h"
#include "files/tensor_file.h"
#include "imago/lm.h"
#include "lm/matrix_encoder.h"
#include "lm/matrix_source.h"
#include "models/traits.h"

namespace imago::lm {

/// Matrices that are replaced together: one, or a gate and its `up`.
struct MatrixGroup {
  std::vector<backend::WeightKey> keys;
  std::size_t runner = 0;  ///< which one multiplies with them
  bool multiplied = true;  ///< false: an embedding that is not the output
  bool looked_up = false;  ///< the embedding: the first runner reads its rows
  std::vector<Format> formats = {};
};

/// A group in the layouts of its runners. Either may be absent.
struct LaidOutGroup {
  std::unique_ptr<backend::LaidOut> product, table;

  std::uint64_t bytes() const noexcept { return (product ? product->bytes() : 0) + (table ? table->bytes() : 0); }
};

struct DecoderWeights {
  std::string path;  ///< path of the file; empty: there is none that the matrices could be made from again
  std::optional<Format> loaded_type;     ///< that the options asked for
  std::shared_ptr<MatrixSource> source;  ///< null if its bytes are memory, too much to keep: it is opened again
  models::Traits traits;
  std::shared_ptr<const backend::Program> program;
  /// One for each device, in the order of their blocks: the host first, the accelerator last.
  std::vector<std::unique_ptr<backend::Runner>> runners;
  std::vector<MatrixGroup> groups;    ///< all matrices but routers
  std::size_t learned_positions = 0;  ///< rows of the table of positions; 0: the model rotates
  std::vector<float> rope_divisors;   ///< of GGUF files; empty: none

  std::string type;                     ///< of most of the weights in the groups
  std::vector<std::string> notes = {};  ///< what did not become as asked for, and what is left out
  std::uint64_t parameters = 0;         ///< all weights, those of a tied output once
  std::uint64_t run_bytes = 0;          ///< of the matrices as products read them
  std::uint64_t step_bytes = 0;         ///< what a step of one token reads of them: of experts only those that it uses
  std::uint64_t fingerprint = 0;

  /// Sums up what the runners have. Call it once they are finished, and when matrices have changed.
  void count_bytes();
  /// The file. Throws UnsupportedError if there is none, FormatError if another one has taken its place, IoError.
  std::shared_ptr<MatrixSource> open_source() const;
  /// The matrices of a group, in its order, for its runners. Throws as Runner::lay_out.
  LaidOutGroup lay_out(const MatrixGroup& group, std::vector<PreparedMatrix> prepared) const;
  /// Puts them in their places; `laid` then holds what was there. Nobody may run the model meanwhile.
  void exchange(const MatrixGroup& group, LaidOutGroup& laid) const;
};

/// Packs everything for this machine and its accelerator, where the options name one; pages of the file are given back
/// as soon as they are packed. Throws FormatError for weights that are missing, of wrong shapes or not finite,
/// UnsupportedError for types without products, DeviceError if the weights do not fit the device, saying how many
/// layers would. `encoder`, where it is not empty, packs the matrices instead (lm/matrix_encoder.h).
DecoderWeights load_decoder(files::TensorFile file, const LanguageModelOptions& options,
                            const MatrixEncoder& encoder = {});

}  // namespace imago::lm
