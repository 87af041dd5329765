#include "convert/run_conversion.h"

#include "convert/executor.h"
#include "convert/target_writer.h"
#include "convert/type_plan.h"

namespace imago::convert {

ConvertReport run_conversion(const models::ModelRecipe& recipe, const std::string& out, const ConvertOptions& options,
                             const Guidance& guidance) {
  std::vector<PlannedTensor> plan = plan_types(recipe, options);
  std::vector<std::string> notes = recipe.notes;
  const std::vector<TensorGuide> guides = guide_tensors(guidance, plan, options, notes);
  std::vector<std::optional<TensorError>> errors(plan.size());
  if (options.dry_run) {
    lay_out(recipe, plan);  // what the form cannot hold is said now as well
  } else {
    TargetWriter target(out, recipe, plan, options.shard_bytes);
    errors = execute(plan, guides, target, options);
    target.commit();
  }
  ConvertReport report;
  report.notes = std::move(notes);
  std::optional<TensorError> all;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const PlannedTensor& planned = plan[i];
    ConvertedTensor tensor;
    tensor.name = planned.recipe->name;
    tensor.from_type = type_name(planned.source());
    tensor.to_type = type_name(planned.type, planned.source());
    tensor.shape = planned.recipe->shape;
    tensor.from_bytes = source_bytes(planned);
    tensor.to_bytes = planned.bytes();
    tensor.reason = planned.reason;
    if (errors[i]) {
      tensor.relative_rmse = errors[i]->relative_rmse();
      all = {all.value_or(TensorError()).signal + errors[i]->signal,
             all.value_or(TensorError()).noise + errors[i]->noise};
    }
    report.from_bytes += tensor.from_bytes;
    report.to_bytes += tensor.to_bytes;
    report.parameters += tensor.shape.elements();
    report.tensors.push_back(std::move(tensor));
  }
  if (all) report.relative_rmse = all->relative_rmse();
  return report;
}

}  // namespace imago::convert
