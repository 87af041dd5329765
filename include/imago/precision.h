#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "imago/format.h"
#include "imago/lm.h"
#include "imago/models.h"
#include "imago/train.h"

namespace imago {

// What precision costs, measured on the model at hand: which weights matter, which type each should have, and how far
// the outcome is from the original. Models are paths; language models are judged on a text, networks on a dataset.

// ---- calibrating

struct CalibrateOptions {
  std::size_t context = 512;
  /// Also the products of all pairs of columns, which Rounding::compensated needs. Memory and file grow by columns²
  /// floats per input.
  bool products = false;
  std::size_t batch = 256;                                                 ///< examples of a dataset that run together
  std::function<void(std::size_t done, std::size_t total)> progress = {};  ///< windows or examples
};

struct CalibrateReport {
  std::size_t windows = 0, rows = 0, matrices = 0;
  std::size_t resumed = 0;  ///< windows that an earlier run had done
  std::uint64_t bytes = 0;  ///< of the file
};

/// Runs the text through a language model and writes to `out` what ConvertOptions::calibration reads. A run that was
/// stopped goes on where it was if model, text and options are the same. Throws UsageError for a text shorter than a
/// window, FormatError for activations that are not finite, naming the matrix.
CalibrateReport calibrate_model(const std::string& model, std::string_view text, const std::string& text_name,
                                const std::string& out, const CalibrateOptions& options = {});
/// The same for a network of layers and the inputs of a dataset.
CalibrateReport calibrate_network(const std::string& model, const Dataset& data, const std::string& data_name,
                                  const std::string& out, const CalibrateOptions& options = {});

// ---- planning

// ---- comparing

// ---- sweeping

}  // namespace imago
