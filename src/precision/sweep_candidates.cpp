#include "precision/sweep_candidates.h"

#include <algorithm>

#include "convert/target_types.h"
#include "imago/error.h"

namespace imago::precision {

namespace {

std::uint64_t bytes_of(std::span<const convert::PlannedTensor> plan) {
  std::uint64_t bytes = 0;
  for (const convert::PlannedTensor& tensor : plan) bytes += tensor.bytes();
  return bytes;
}

}  // namespace

std::vector<TypedTensor> Candidate::types() const {
  std::vector<TypedTensor> types;
  for (const convert::PlannedTensor& tensor : tensors) {
    if (tensor.recipe->shape.rank() < 2) continue;
    types.push_back({tensor.recipe->name, convert::type_name(tensor.type, tensor.source()),
                     tensor.recipe->shape.elements(), tensor.bytes()});
  }
  return types;
}

Candidates::Candidates(const files::TensorFile& file, const SweepOptions& options)
    : gguf_(models::make_recipe(file, FileForm::gguf)),
      scaled_(gguf_),
      stored_(models::make_recipe(file, FileForm::safetensors)) {
  scaled_.target = FileForm::safetensors;
  for (const models::TensorRecipe& tensor : gguf_.tensors) parameters_ += tensor.shape.elements();
  for (const Format type : options.types.empty() ? default_sweep_types() : options.types) {
    ConvertOptions wanted{.type = type, .calibration = options.calibration, .pure = !options.mix};
    if (convert::has_scales(type)) {
      wanted.granularity = options.granularity;
      wanted.group = options.group;
      wanted.calibrator = options.calibrator;
    }
    candidates_.push_back(plan(wanted, std::string(type.name()), convert::can_hold(FileForm::gguf, type)));
  }
  for (const std::string& path : options.plans) {
    const TypePlan types = read_plan(path);
    const bool in_gguf = std::ranges::all_of(
        types.tensors, [](const auto& tensor) { return convert::can_hold(FileForm::gguf, tensor.second); });
    Candidate planned = plan({.calibration = options.calibration, .plan = path}, path, in_gguf);
    planned.is_plan = true;
    planned.rounding = types.rounding;
    candidates_.push_back(std::move(planned));
  }
}

Candidate Candidates::plan(const ConvertOptions& wanted, std::string name, bool in_gguf) const {
  Candidate candidate{.name = std::move(name)};
  candidate.tensors = convert::plan_types(in_gguf ? gguf_ : scaled_, wanted);
  // A file of another form has its own rules for vectors, so that one is asked for its size.
  candidate.bytes = bytes_of(in_gguf ? candidate.tensors : convert::plan_types(stored_, wanted));
  return candidate;
}

}  // namespace imago::precision
