#pragma once

// What a calibration knows about the tensors of a plan, and the rounding that follows from it.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "convert/source.h"
#include "convert/type_plan.h"
#include "guided/calibration.h"
#include "models/tensor_layout.h"

namespace imago::convert {

/// The rounding of a conversion: the requested one; else error compensation if the calibration has the products that
/// it needs (not for tq1_0, which has no such rounding); else the one that the plan was measured with; else nearest.
/// Throws UsageError if the plan's rounding needs a calibration and none is given, and like read_plan.
Rounding choose_rounding(const ConvertOptions& options);

/// What is known about one tensor, and the factors its weights are multiplied by.
struct TensorGuide {
  /// Inputs of the matrices in it, in order; null: unknown. Empty: the tensor is rounded without a calibration.
  std::vector<std::shared_ptr<const guided::InputStatistics>> inputs = {};
  /// One per column and one per row; each value of a vector is a row. Empty: all 1.
  std::vector<float> column_factors = {}, row_factors = {};

  bool changes_weights() const noexcept { return !column_factors.empty() || !row_factors.empty(); }
  /// Multiplies weights of the tensor, from element `first` on, by their factors.
  void apply(std::size_t first, std::span<float> weights, const Shape& shape) const;
};

/// Reads the calibration of `options`, if any, and returns one guide per tensor of the plan. Tensors whose weights
/// change are no longer copied. Adds to `notes` which tensors the calibration does not know. Throws UsageError if it
/// knows none of them, belongs to another model or has other columns.
std::vector<TensorGuide> guide_tensors(const Source& source, std::span<PlannedTensor> plan,
                                       const ConvertOptions& options, std::vector<std::string>& notes);

/// Activation-aware scaling (AWQ): finds column factors for groups of matrices, and the row factors that undo them in
/// what feeds the group. Puts them into the guides, whose statistics become those that the scaled matrices see. Groups
/// that gain nothing are left alone. Reads the matrices of one group at a time. Throws UnsupportedError unless the
/// source is a language model.
void scale_columns(const Source& source, std::span<const PlannedTensor> plan, std::span<TensorGuide> guides,
                   std::vector<std::string>& notes);

}  // namespace imago::convert
