#pragma once

// What a calibration says of the tensors of a plan.

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "convert/type_plan.h"
#include "files/tensor_file.h"
#include "guided/calibration.h"
#include "imago/models.h"
#include "models/matrix_names.h"

namespace imago::convert {

/// A calibration, and under which names it knows the tensors of the target.
struct Guidance {
  std::optional<guided::Calibration> calibration = std::nullopt;  ///< none: everything is encoded plainly
  std::map<std::string, models::NamedMatrices> names = {};        ///< of tensors of the target that hold matrices
  std::optional<models::Traits> traits = std::nullopt;            ///< of a decoder
  models::Naming naming = {};                                     ///< of the target, if it is a decoder
};

/// Reads the calibration that `options` name, if any. Throws UsageError if it is of another model than `file`.
Guidance read_guidance(const files::TensorFile& file, FileForm target, const ConvertOptions& options);

/// What is known of one tensor and done to it.
struct TensorGuide {
  /// Of the matrices in it, one behind the other; null: nothing is known. Empty: it is encoded plainly.
  std::vector<std::shared_ptr<const guided::InputStatistics>> inputs = {};
  /// Weights are multiplied by those of their column and their row; the values of a vector are rows. Empty: by none.
  std::vector<float> column_factors = {}, row_factors = {};

  bool changes_weights() const noexcept { return !column_factors.empty() || !row_factors.empty(); }
  /// Multiplies weights of the tensor, from element `first` on, by their factors.
  void apply(std::size_t first, std::span<float> weights, const Shape& shape) const;
};

/// One per tensor of the plan. Tensors that take new weights are no longer copied. Adds to `notes` which matrices the
/// calibration does not know. Throws UsageError if it knows none, or other columns.
std::vector<TensorGuide> guide_tensors(const Guidance& guidance, std::span<PlannedTensor> plan,
                                       const ConvertOptions& options, std::vector<std::string>& notes);

}  // namespace imago::convert
