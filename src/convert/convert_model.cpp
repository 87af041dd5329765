// Converts any model file to any other: opens a source, plans types, streams tensors to the target, reports.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "convert/executor.h"
#include "convert/guidance.h"
#include "convert/source.h"
#include "convert/target_writer.h"
#include "convert/type_plan.h"
#include "imago/error.h"
#include "imago/models.h"

namespace imago {

namespace convert {

namespace {

FileForm output_format(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path target(path);
  std::string extension = target.extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (extension.empty() || std::filesystem::is_directory(target, ignored)) return FileForm::huggingface;
  if (extension == ".gguf") return FileForm::gguf;
  if (extension == ".safetensors") return FileForm::safetensors;
  if (extension == ".json") return FileForm::checkpoint;
  if (extension == ".entity") return FileForm::entity;
  throw UsageError(
      fmt::format("{}: '{}' is not the extension of a model file; use .gguf, .safetensors, .json or .entity, or a name "
                  "that ends with / for a Hugging Face folder",
                  path, extension));
}

}  // namespace

namespace {

/// The type and size that a tensor has in the source.
std::string original_type(const PlannedTensor& planned) {
  return planned.recipe->scheme ? std::string(planned.recipe->scheme->format.name()) : type_name(planned.source());
}
std::size_t original_bytes(const PlannedTensor& planned) {
  return planned.recipe->scheme ? planned.recipe->layer_bytes : models::source_bytes(*planned.recipe);
}

/// What a user who asked for a type would not expect: tensors that did not take it, and others that made all of them
/// together larger.
void note_surprises(std::span<const PlannedTensor> plan, std::optional<Format> type, std::vector<std::string>& notes) {
  std::map<std::pair<std::string, std::string>, std::size_t> misfits;  // by rows and type
  const PlannedTensor* largest = nullptr;
  std::size_t grown = 0, added = 0, before_all = 0, after_all = 0;
  for (const PlannedTensor& planned : plan) {
    if (planned.misfit) ++misfits[{rows_text(*planned.recipe), type_name(planned.type, planned.source())}];
    const std::size_t before = original_bytes(planned);
    before_all += before;
    after_all += planned.bytes();
    if (planned.bytes() <= before || planned.type.format == type) continue;
    ++grown;
    added += planned.bytes() - before;
    if (largest == nullptr || planned.bytes() - before > largest->bytes() - original_bytes(*largest)) {
      largest = &planned;
    }
  }
  for (const auto& [what, count] : misfits) {
    notes.push_back(fmt::format("{} of {} tensors have {}, which fit no block of the type asked for: they are {}",
                                count, plan.size(), what.first, what.second));
  }
  if (grown != 0 && after_all > before_all + before_all / 100) {  // vectors of a decoder are float32 in GGUF
    notes.push_back(fmt::format("{} tensors of other types grew by {} bytes in all, most of them '{}': {} → {}", grown,
                                added, largest->recipe->name, original_type(*largest),
                                type_name(largest->type, largest->source())));
  }
}

}  // namespace

ConvertReport convert_source(const Source& source, const std::string& out, const ConvertOptions& options) {
  std::vector<PlannedTensor> plan = plan_types(source.recipe, options);
  ConvertReport report;
  report.from = source.format;
  report.to = source.recipe.target;
  report.notes = source.recipe.notes;
  const std::vector<TensorGuide> guides = guide_tensors(source, plan, options, report.notes);
  note_surprises(plan, options.type, report.notes);
  std::vector<std::optional<TensorError>> errors(plan.size());
  if (options.dry_run) {
    lay_out(source.recipe, plan);  // a dry run also reports what the target cannot hold
  } else {
    TargetWriter target(out, source, plan, options.shard_bytes);
    errors = execute(plan, guides, target, options);
    target.commit();
  }
  std::optional<TensorError> all;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const PlannedTensor& planned = plan[i];
    ConvertedTensor tensor;
    tensor.name = planned.recipe->name;
    tensor.from_type = original_type(planned);
    tensor.to_type = type_name(planned.type, planned.source());
    tensor.shape = planned.recipe->shape;
    tensor.from_bytes = original_bytes(planned);
    tensor.to_bytes = planned.bytes();
    tensor.reason = planned.reason;
    if (const auto stored = planned.recipe->stored_as; stored && stored != planned.type.format) {
      tensor.to_type = stored->name();
      tensor.to_bytes = packed_bytes(*stored, tensor.shape.elements());
      tensor.reason = fmt::format("{} files hold it in {}", name(report.to), tensor.to_type);
    } else if (errors[i]) {
      tensor.relative_rmse = errors[i]->relative_rmse();
      if (!all) all.emplace();
      *all += *errors[i];
    }
    if (planned.type.scaled && !planned.copied) report.calibrator = planned.scheme.calibrator;
    report.from_bytes += tensor.from_bytes;
    report.to_bytes += tensor.to_bytes;
    report.parameters += tensor.shape.elements();
    report.tensors.push_back(std::move(tensor));
  }
  if (all) report.relative_rmse = all->relative_rmse();
  if (plan.empty() && options.type) report.notes.push_back("there are no weights that could take another type");
  return report;
}

}  // namespace convert

ConvertReport convert_model(const std::string& in, const std::string& out, const ConvertOptions& requested) {
  ConvertOptions options = requested;
  options.rounding = convert::choose_rounding(requested);
  const FileForm target = convert::output_format(out);
  // What GGUF can hold depends on the source: plan_types checks it.
  convert::check_type_options(target == FileForm::gguf ? FileForm::safetensors : target, options);
  return convert::convert_source(convert::open_source(in, target, options), out, options);
}

}  // namespace imago
