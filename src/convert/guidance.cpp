#include "convert/guidance.h"

#include <fmt/format.h>

#include "convert/column_scaling.h"
#include "guided/sketch.h"
#include "imago/error.h"
#include "models/tensor_layout.h"

namespace imago::convert {

namespace {

/// As the recipe names the tensors of the target.
models::Naming target_naming(const files::TensorFile& file, const models::Traits& traits, FileForm target) {
  if (target == FileForm::gguf && file.folder() != nullptr) return models::usual_naming(traits, true);
  if (target == FileForm::huggingface && file.gguf() != nullptr) return models::usual_naming(traits, false);
  return models::naming_of(file, traits);
}

/// Types whose encoder has something to choose.
bool is_quantized(const PlannedTensor& planned) {
  return !planned.copied && planned.type.format && (planned.type.format->is_block() || planned.type.scaled);
}

/// Whether the matrices of a tensor can be encoded one by one: not if they share a scale or a byte.
bool can_part(const PlannedTensor& planned, std::size_t matrices) {
  if (matrices == 1) return true;
  if (planned.type.scaled && planned.scheme.granularity == Granularity::tensor) return false;
  return planned.code_bytes % matrices == 0 && planned.recipe->shape.elements() / matrices % 8 == 0;
}

TensorGuide guide_of(const guided::Calibration& calibration, const models::NamedMatrices& named,
                     const PlannedTensor& planned) {
  TensorGuide guide;
  bool known = false;
  for (std::size_t i = 0; i < named.experts; ++i) {
    const auto found = calibration.matrices.find({named.name, named.first_expert + i});
    const bool seen = found != calibration.matrices.end() && found->second->rows != 0;
    if (seen) calibration.require(named.name, named.first_expert + i, planned.recipe->shape.last());
    guide.inputs.push_back(seen ? found->second : nullptr);
    known = known || seen;
  }
  if (!known || !can_part(planned, named.experts)) guide.inputs.clear();
  return guide;
}

}  // namespace

Guidance read_guidance(const files::TensorFile& file, FileForm target, const ConvertOptions& options) {
  Guidance guidance;
  if (options.calibration.empty()) return guidance;
  guidance.calibration = guided::Calibration::read(options.calibration);
  guided::check_same_model(*guidance.calibration, guided::sketch_model(file), file.path());
  const bool decoder =
      file.folder() != nullptr || (file.gguf() != nullptr && file.gguf()->find("general.architecture") != nullptr);
  if (!decoder) {
    // In a bag of tensors each has its own name.
    for (const files::StoredTensor& tensor : file.tensors()) guidance.names[tensor.name] = {tensor.name, 0, 1};
    return guidance;
  }
  guidance.traits = models::read_traits(file);
  guidance.naming = target_naming(file, *guidance.traits, target);
  guidance.names = models::matrix_names(*guidance.traits, guidance.naming);
  return guidance;
}

void TensorGuide::apply(std::size_t first, std::span<float> weights, const Shape& shape) const {
  const std::size_t cols = shape.rank() < 2 ? 1 : shape.last();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::size_t row = (first + i) / cols, column = (first + i) % cols;
    if (!column_factors.empty()) weights[i] *= column_factors[column];
    if (!row_factors.empty()) weights[i] *= row_factors[row];
  }
}

std::vector<TensorGuide> guide_tensors(const Guidance& guidance, std::span<PlannedTensor> plan,
                                       const ConvertOptions& options, std::vector<std::string>& notes) {
  std::vector<TensorGuide> guides(plan.size());
  if (!guidance.calibration) return guides;
  std::size_t known = 0;
  std::vector<std::string> unknown;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    if (!is_quantized(plan[i])) continue;
    const auto named = guidance.names.find(plan[i].recipe->name);
    if (named != guidance.names.end()) guides[i] = guide_of(*guidance.calibration, named->second, plan[i]);
    if (guides[i].inputs.empty()) {
      unknown.push_back(plan[i].recipe->name);
    } else {
      ++known;
    }
  }
  if (known == 0 && !unknown.empty()) {
    throw UsageError(fmt::format("the calibration {} knows nothing of '{}' or any other tensor: it is of another model",
                                 guidance.calibration->path, unknown.front()));
  }
  if (!unknown.empty()) {
    notes.push_back(
        fmt::format("the calibration knows nothing of {} tensors, the first is '{}'; they are rounded plainly",
                    unknown.size(), unknown.front()));
  }
  if (options.rounding == Rounding::scaled) scale_columns(guidance, plan, guides, notes);
  for (std::size_t i = 0; i < plan.size(); ++i) {
    if (guides[i].changes_weights()) plan[i].copied = false;
  }
  return guides;
}

}  // namespace imago::convert
