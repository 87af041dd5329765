// Any model file into any other.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "checkpoint/entity.h"
#include "convert/network_conversion.h"
#include "convert/run_conversion.h"
#include "convert/type_plan.h"
#include "files/tensor_file.h"
#include "imago/error.h"
#include "imago/models.h"
#include "models/recipe.h"

namespace imago {

namespace {

bool is_network(FileForm form) {
  return form == FileForm::checkpoint || form == FileForm::architecture || form == FileForm::entity;
}

FileForm output_form(const std::string& path) {
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
      fmt::format("{}: '{}' is no extension of a model file; use .gguf, .safetensors, .json or .entity, or a name that "
                  "ends with / for a Hugging Face folder",
                  path, extension));
}

/// A plan says which rounding it was measured with; what the caller asks for comes first.
ConvertOptions with_plan(const ConvertOptions& asked) {
  ConvertOptions options = asked;
  if (options.plan.empty() || options.rounding != Rounding::nearest) return options;
  options.rounding = read_plan(options.plan).rounding;
  if (options.rounding != Rounding::nearest && options.calibration.empty()) {
    throw UsageError(fmt::format(
        "{}: this plan was measured with a rounding that needs calibration; give it with --importance FILE, "
        "or set \"rounding\" to \"nearest\" in the plan",
        options.plan));
  }
  return options;
}

}  // namespace

ConvertReport convert_model(const std::string& in, const std::string& out, const ConvertOptions& asked) {
  const ConvertOptions options = with_plan(asked);
  const FileForm to = output_form(out);
  convert::check_type_options(to, options);
  const FileForm from = detect_form(in);
  ConvertReport report;
  if (from == FileForm::entity) {
    const MappedFile file = MappedFile::open(in, options.load.eager ? Reading::eager : Reading::automatic);
    report =
        convert::convert_network(checkpoint::read_entity(file.bytes(), in, options.load.fp4), in, out, to, options);
  } else if (is_network(from)) {
    checkpoint::Entity source{load_network(in, options.load), {}, {}};
    report = convert::convert_network(std::move(source), in, out, to, options);
  } else {
    const files::TensorFile file = files::TensorFile::open(in, options.load.eager);
    if (is_network(to)) {
      report = convert::convert_to_network(file, out, options);
    } else {
      const convert::Guidance guidance = convert::read_guidance(file, to, options);
      report = convert::run_conversion(models::make_recipe(file, to), out, options, guidance);
    }
  }
  report.from = from;
  report.to = to;
  return report;
}

}  // namespace imago
