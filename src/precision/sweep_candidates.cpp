#include "precision/sweep_candidates.h"

#include <algorithm>
#include <vector>

#include "convert/target_types.h"
#include "guided/encode_matrix.h"
#include "imago/error.h"
#include "models/tensor_layout.h"

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
    if (type.has_scales()) {
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
  // Each file format has its own rules for vectors, so the size comes from a plan for that format.
  candidate.bytes = bytes_of(in_gguf ? candidate.tensors : convert::plan_types(stored_, wanted));
  return candidate;
}

namespace {

/// The scales as matrix products read them: a single scale is repeated for each row.
lm::EncodedWeights for_products(guided::EncodedMatrix matrix, Format format, std::size_t rows, std::size_t cols) {
  lm::EncodedWeights encoded{.format = format, .packed = host_device()->allocate(matrix.codes.size())};
  host_device()->upload(matrix.codes, encoded.packed, 0);
  encoded.scales = std::move(matrix.scales);
  encoded.scale_group = matrix.scale_group;
  if (encoded.scales.size() == 1) {
    encoded.scales.assign(rows, encoded.scales.front());
    encoded.scale_group = cols;
  }
  return encoded;
}

}  // namespace

PlannedEncoder::PlannedEncoder(const models::Traits& traits, std::span<const convert::PlannedTensor> plan,
                               const guided::Calibration& calibration, Rounding rounding)
    : traits_(traits), calibration_(calibration), rounding_(rounding) {
  for (const convert::PlannedTensor& planned : plan) {
    if (planned.copied || !planned.type.format) continue;
    schemes_.emplace(planned.recipe->name, planned.scheme);
  }
}

std::optional<lm::EncodedWeights> PlannedEncoder::encode(const models::MatrixKey& key, std::span<const float> weights,
                                                         std::size_t rows, std::size_t cols) {
  const std::string name = models::matrix_name(traits_, key.role, key.block);
  const auto found = schemes_.find(name);
  if (found == schemes_.end()) return std::nullopt;
  const Scheme& scheme = found->second;
  const guided::InputStatistics* known = calibration_.find(name, key.expert);
  if (known != nullptr) known = &calibration_.require(name, key.expert, cols);
  guided::EncodedMatrix matrix =
      guided::encode_matrix(weights, rows, cols, scheme, known == nullptr ? Rounding::nearest : rounding_, known);
  change_.add(weights, guided::decode_matrix(matrix, scheme, rows, cols));
  return for_products(std::move(matrix), scheme.format, rows, cols);
}

}  // namespace imago::precision
