#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "imago/files.h"
#include "imago/format.h"
#include "imago/tensor.h"
#include "imago/weights.h"

namespace imago {

// ---- looking

/// A tensor of a model file, without its values.
struct TensorSummary {
  std::string name;  ///< of the weights of a layer: its path, `layers.0.sequential_layers.1`
  std::string type;  ///< as the file's form spells it; a dtype in checkpoints
  Shape shape;
  std::uint64_t bytes = 0;  ///< scales included where they belong to the tensor
};

/// What a model file says about itself.
struct ModelSummary {
  FileForm form = FileForm::checkpoint;
  std::string architecture;      ///< of a language model, as the file names it; empty for other files
  std::uint64_t parameters = 0;  ///< of an architecture: the weights that its layers would have
  std::uint64_t bytes = 0;       ///< of all tensors, without the rest of the file
  std::uint64_t file_bytes = 0;
  std::vector<std::pair<std::string, std::string>> metadata;  ///< in the order of the file; values are JSON texts
  std::vector<TensorSummary> tensors;                         ///< in the order of the file
  std::vector<std::string> notes;                             ///< oddities that do no harm, a sentence each

  /// 8 · bytes / parameters; 0 without weights in the file.
  double bits_per_weight() const noexcept;
};

/// Looks into a file of any form that imago knows. Sizes are checked against each other and against the file as a
/// loader would; values are not looked at, and nothing is decoded. Throws IoError, FormatError.
ModelSummary inspect_model(const std::string& path);

// ---- converting

/// How weights become codes where calibration says what they multiply.
enum class Rounding : std::uint8_t {
  nearest,      ///< each by itself; columns that matter weigh more when scales are chosen
  compensated,  ///< column by column, later columns make up for the error of earlier ones (GPTQ)
  scaled,       ///< columns that matter are made larger first, what feeds them smaller (AWQ), then `nearest`
};

/// How a model is rewritten. Behaviour first, then what it may cost.
struct ConvertOptions {
  /// The type that weights take; none: each keeps its own where the target can hold it.
  std::optional<Format> type = std::nullopt;
  Calibrator calibrator = Calibrator::absmax;  ///< of dtypes with scales
  double percentile = 0.999;
  Granularity granularity = Granularity::tensor;
  int group = 32;  ///< with Granularity::group
  /// Patterns (ECMAScript, found anywhere in the name of the tensor in the target) and the types they ask for; the
  /// first that fits decides, before every other rule.
  std::vector<std::pair<std::string, Format>> tensor_types = {};
  /// A file of `calibrate_model` or an importance matrix of llama.cpp; empty: none. Matrices that it knows nothing of
  /// are encoded plainly, with a note. One of another model is a UsageError.
  std::string calibration = {};
  Rounding rounding = Rounding::nearest;
  /// A plan (imago/precision.h): the types of its tensors come before every other rule but `tensor_types`. Empty: none.
  std::string plan = {};
  /// No usual mix: every tensor of two or more dimensions whose rows are a multiple of the block takes `type`.
  bool pure = false;
  bool allow_nonfinite = false;  ///< else weights and scales that are not finite are refused
  bool dry_run = false;          ///< plans, and writes nothing
  bool measure_error = false;    ///< fills the errors of the report; costs a decoding of what was written
  LoadOptions load = {};
  std::uint64_t shard_bytes = std::uint64_t{4} << 30;  ///< of Hugging Face folders

  /// Called as it goes on, from the calling thread: bytes of the source done, bytes in all.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};

struct ConvertedTensor {
  std::string name;  ///< in the target
  std::string from_type, to_type;
  Shape shape;
  std::uint64_t from_bytes = 0, to_bytes = 0;
  std::string reason;                                  ///< why it has this type: "asked for", "norms stay float32"
  std::optional<double> relative_rmse = std::nullopt;  ///< with measure_error, where the type changed
};

struct ConvertReport {
  FileForm from = FileForm::safetensors, to = FileForm::safetensors;
  std::uint64_t from_bytes = 0, to_bytes = 0;  ///< of the tensors
  std::uint64_t parameters = 0;
  std::vector<ConvertedTensor> tensors;
  std::vector<std::string> notes;                      ///< what was lost or left out, a sentence each
  std::optional<double> relative_rmse = std::nullopt;  ///< of all tensors whose error was measured, as if they were one
};

/// Rewrites model `in` as `out`, whose form is that of its extension (`.gguf .safetensors .json .entity`); a name
/// without one is a Hugging Face folder. Streams: memory is a few pieces of tensors, not the model. `out` appears whole
/// or not at all, and may be `in`. Throws IoError, FormatError, UnsupportedError if the target cannot hold a type that
/// was asked for, UsageError for options without meaning.
ConvertReport convert_model(const std::string& in, const std::string& out, const ConvertOptions& options = {});

}  // namespace imago
