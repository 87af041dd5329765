// Compares two files tensor by tensor.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>
#include <vector>

#include "convert/target_types.h"
#include "imago/error.h"
#include "imago/precision.h"
#include "models/open_model.h"
#include "precision/compare_text.h"
#include "precision/measures.h"
#include "precision/model_tensors.h"

namespace imago {

namespace {

using files::TensorFile;
using models::TensorRecipe;

// Elements of each tensor decoded at a time: 2 · 8 MiB as float32.
constexpr std::size_t kComparedPiece = std::size_t{1} << 21;

precision::DistortionSums tensor_distance(const TensorRecipe& a, const TensorRecipe& b) {
  models::RecipeReader reader_a(a), reader_b(b);
  if (reader_a.needs_whole()) reader_a.load_whole();
  if (reader_b.needs_whole()) reader_b.load_whole();
  const std::size_t elements = reader_a.elements();
  const std::size_t unit = std::lcm(reader_a.unit(), reader_b.unit());
  const std::size_t piece = std::max(unit, kComparedPiece / unit * unit);
  std::vector<float> values_a(std::min(piece, elements)), values_b(values_a.size());
  precision::DistortionSums sums;
  for (std::size_t first = 0; first < elements; first += piece) {
    const std::size_t count = std::min(piece, elements - first);
    const std::span<float> part_a = std::span(values_a).first(count), part_b = std::span(values_b).first(count);
    reader_a.read(first, part_a);
    reader_b.read(first, part_b);
    sums.add(part_a, part_b);
  }
  return sums;
}

bool is_readable(const TensorRecipe& tensor) {
  return std::ranges::all_of(tensor.parts, [](const auto& part) { return files::is_decodable(*part.tensor); });
}

/// The type of its parts; "mixed" if they differ.
std::string stored_type(const TensorRecipe& tensor) {
  std::string type;
  for (const models::SourceRows& part : tensor.parts) {
    const std::string own = convert::type_name(*part.tensor);
    type = type.empty() || type == own ? own : "mixed";
  }
  return type;
}

/// Why two tensors of one name cannot be compared; empty if they can.
std::string obstacle(const TensorRecipe& a, const TensorRecipe& b) {
  if (!(a.shape == b.shape)) return fmt::format("shapes {} and {}", a.shape.to_string(), b.shape.to_string());
  for (const TensorRecipe* tensor : {&a, &b}) {
    if (!is_readable(*tensor)) return fmt::format("imago cannot decode {}", stored_type(*tensor));
  }
  return a.shape.elements() == 0 ? "no elements" : "";
}

ComparedTensor compare_tensor(const TensorRecipe& a, const TensorRecipe& b, precision::DistortionSums& total) {
  ComparedTensor row{.name = a.name, .type_a = stored_type(a), .type_b = stored_type(b)};
  row.weights = a.shape.elements();
  row.bytes_a = models::source_bytes(a);
  row.bytes_b = models::source_bytes(b);
  row.is_vector = a.shape.rank() < 2;
  row.problem = obstacle(a, b);
  if (!row.problem.empty()) return row;
  const precision::DistortionSums sums = tensor_distance(a, b);
  if (sums.not_finite() != 0) {
    // The finite rest says nothing about a model that has such weights.
    row.problem = fmt::format("{} of {} pairs of values are not finite", sums.not_finite(), row.weights);
    return row;
  }
  row.cosine = sums.cosine();
  row.rmse = sums.rmse();
  row.relative_rmse = sums.relative_rmse();
  total += sums;
  return row;
}

ComparedModel describe_file(const TensorFile& file, std::span<const TensorRecipe> tensors) {
  ComparedModel model{.path = file.path(), .type = {}};
  std::map<std::string, std::uint64_t> weights;
  for (const TensorRecipe& tensor : tensors) {
    model.parameters += tensor.shape.elements();
    model.bytes += models::source_bytes(tensor);
    weights[stored_type(tensor)] += tensor.shape.elements();
  }
  model.type = precision::main_type(weights);
  return model;
}

void check_architectures(const TensorFile& a, const TensorFile& b) {
  const std::string ours = precision::architecture_of(a), theirs = precision::architecture_of(b);
  if (ours.empty() || theirs.empty() || ours == theirs) return;
  throw UnsupportedError(fmt::format(
      "{} is a {} and {} a {}: models of different architectures cannot be compared; give two versions of one "
      "model",
      a.path(), ours, b.path(), theirs));
}

}  // namespace

ModelComparison compare_models(const std::string& a, const std::string& b, const CompareOptions& options) {
  const TensorFile file_a = models::open_model(a), file_b = models::open_model(b);
  check_architectures(file_a, file_b);
  // A bare safetensors file has the names of the folder it was taken from.
  const bool bag = file_a.form() == FileForm::safetensors || file_b.form() == FileForm::safetensors;
  const auto tensors_of = bag ? precision::stored_tensors : precision::canonical_tensors;
  const std::vector<TensorRecipe> tensors_a = tensors_of(file_a), tensors_b = tensors_of(file_b);

  ModelComparison comparison;
  comparison.a = describe_file(file_a, tensors_a);
  comparison.b = describe_file(file_b, tensors_b);
  comparison.architecture = precision::architecture_of(file_a);
  std::unordered_map<std::string_view, const TensorRecipe*> others;
  for (const TensorRecipe& tensor : tensors_b) others.emplace(tensor.name, &tensor);
  precision::DistortionSums total;
  std::uint64_t done = 0;
  for (const TensorRecipe& tensor : tensors_a) {
    const auto found = others.find(tensor.name);
    if (found == others.end()) {
      comparison.a.only.push_back(tensor.name);
    } else {
      comparison.tensors.push_back(compare_tensor(tensor, *found->second, total));
      others.erase(found);
    }
    done += tensor.shape.elements();
    if (options.progress) options.progress("weights", done, std::max<std::uint64_t>(comparison.a.parameters, 1));
  }
  for (const TensorRecipe& tensor : tensors_b) {
    if (others.contains(tensor.name)) comparison.b.only.push_back(tensor.name);
  }
  if (comparison.tensors.empty()) {
    throw UnsupportedError(fmt::format("{} and {} have no tensor in common; give two versions of one model", a, b));
  }
  comparison.overall = total.cosine().value_or(0);
  if (options.text) comparison.divergence = precision::compare_on_text(a, b, options);
  return comparison;
}

}  // namespace imago
