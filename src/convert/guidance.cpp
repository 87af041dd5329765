#include "convert/guidance.h"

#include <fmt/format.h>

#include "guided/sketch.h"
#include "imago/error.h"

namespace imago::convert {

namespace {

/// Types whose encoder has something to choose.
bool is_quantized(const PlannedTensor& planned) {
  return !planned.copied && planned.type.format && (planned.type.scaled || !planned.type.format->is_wide());
}

/// Whether the matrices of a tensor can be encoded one by one: not if they share a scale or a byte.
bool can_split(const PlannedTensor& planned, std::size_t matrices) {
  if (matrices == 1) return true;
  if (planned.type.scaled && planned.scheme.granularity == Granularity::tensor) return false;
  return planned.code_bytes % matrices == 0 && planned.recipe->shape.elements() / matrices % 8 == 0;
}

TensorGuide guide_of(const guided::Calibration& calibration, const PlannedTensor& planned) {
  const models::NamedMatrices named = planned.recipe->known_as();
  TensorGuide guide;
  bool known = false;
  for (std::size_t i = 0; i < named.experts; ++i) {
    const std::size_t expert = named.first_expert + i;
    const bool seen = calibration.find(named.name, expert, planned.recipe->shape.last()) != nullptr;
    guide.inputs.push_back(seen ? calibration.matrices.at({named.name, expert}) : nullptr);
    known = known || seen;
  }
  if (!known || !can_split(planned, named.experts)) guide.inputs.clear();
  return guide;
}

}  // namespace

Rounding choose_rounding(const ConvertOptions& options) {
  if (options.rounding) return *options.rounding;
  const bool calibrated = !options.calibration.empty() && options.type != Format(BlockFormat::tq1_0);
  if (calibrated && guided::has_products(options.calibration)) return Rounding::compensated;
  if (options.plan.empty()) return Rounding::nearest;
  const Rounding planned = read_plan(options.plan).rounding;
  if (planned != Rounding::nearest && options.calibration.empty()) {
    throw UsageError(fmt::format(
        "{}: this plan was measured with a rounding that needs a calibration; give it with --importance FILE, "
        "or set \"rounding\" to \"nearest\" in the plan",
        options.plan));
  }
  return planned;
}

void TensorGuide::apply(std::size_t first, std::span<float> weights, const Shape& shape) const {
  const std::size_t cols = shape.rank() < 2 ? 1 : shape.last();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::size_t row = (first + i) / cols, column = (first + i) % cols;
    if (!column_factors.empty()) weights[i] *= column_factors[column];
    if (!row_factors.empty()) weights[i] *= row_factors[row];
  }
}

std::vector<TensorGuide> guide_tensors(const Source& source, std::span<PlannedTensor> plan,
                                       const ConvertOptions& options, std::vector<std::string>& notes) {
  std::vector<TensorGuide> guides(plan.size());
  if (options.calibration.empty()) return guides;
  const guided::Calibration calibration = guided::Calibration::read(options.calibration);
  guided::check_same_model(calibration, source.sketch(), source.path);
  std::size_t known = 0;
  std::vector<std::string> unknown;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    if (!is_quantized(plan[i])) continue;
    guides[i] = guide_of(calibration, plan[i]);
    if (guides[i].inputs.empty()) {
      unknown.push_back(plan[i].recipe->name);
    } else {
      ++known;
    }
  }
  if (known == 0 && !unknown.empty()) {
    throw UsageError(
        fmt::format("the calibration {} does not know '{}' or any other tensor: it belongs to another model",
                    calibration.path, unknown.front()));
  }
  if (!unknown.empty()) {
    notes.push_back(
        fmt::format("the calibration does not know {} tensors, the first is '{}'; they are rounded without it",
                    unknown.size(), unknown.front()));
  }
  if (options.rounding == Rounding::scaled) scale_columns(source, plan, guides, notes);
  for (std::size_t i = 0; i < plan.size(); ++i) {
    if (guides[i].changes_weights()) plan[i].copied = false;
  }
  return guides;
}

}  // namespace imago::convert
