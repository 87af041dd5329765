#include "convert/type_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <regex>

#include "base/names.h"
#include "base/pattern.h"
#include "guided/compensate.h"
#include "imago/codec.h"
#include "imago/error.h"
#include "imago/models.h"
#include "quant/packed_array.h"

namespace imago::convert {

namespace {

using models::TensorRecipe;
using models::TensorUse;

// Convolution kernels, gates and the like: below this, quantization saves next to nothing.
constexpr std::size_t kFewRows = 16;

struct Pattern {
  std::string text;
  std::regex expression;
  Format format;
};

std::size_t rows_of(const Shape& shape) {
  return shape.rank() < 2 ? 1 : shape.elements() / std::max<std::size_t>(shape.last(), 1);
}

}  // namespace

std::string rows_text(const TensorRecipe& recipe) {
  const WeightShape rows{.rows = rows_of(recipe.shape), .cols = recipe.shape.last()};
  return imago::rows_text(recipe.array.value_or(rows));
}

namespace {

std::vector<Pattern> compile(const ConvertOptions& options) {
  std::vector<Pattern> patterns;
  for (const auto& [text, format] : options.tensor_types) patterns.push_back({text, compile_pattern(text), format});
  return patterns;
}

/// The search for the least squared error looks at a sample of a tensor, but at every weight of a row or group: there,
/// 8 bits gain some 3 % of a small error from it, which is not worth its time.
Calibrator best_calibrator(const Scheme& scheme) {
  const bool searches =
      scheme.format.has_scales() && (scheme.granularity == Granularity::tensor || bits(scheme.format.dtype()) < 8);
  return searches ? Calibrator::mse : Calibrator::absmax;
}

Scheme scheme_of(Format format, const ConvertOptions& options) {
  Scheme scheme(format);
  scheme.granularity = options.granularity;
  scheme.group = options.granularity == Granularity::group ? options.group : 0;
  scheme.calibrator = options.calibrator.value_or(best_calibrator(scheme));
  scheme.percentile = options.percentile;
  scheme.zero_points = options.zero_points;
  return scheme;
}

/// The types of a plan file. Throws UsageError for a name that the model does not have, with those near to it.
std::map<std::string, Format> read_types(const std::string& path, const models::ModelRecipe& recipe) {
  std::vector<std::string> names;
  for (const TensorRecipe& tensor : recipe.tensors) names.push_back(tensor.known_as().name);
  std::map<std::string, Format> types;
  for (const auto& [name, type] : read_plan(path).tensors) {
    types.emplace(name, type);
    if (std::ranges::find(names, name) != names.end()) continue;
    std::string near;
    for (const std::string& candidate : near_names(name, names, 3)) {
      near += fmt::format("{}'{}'", near.empty() ? "; near to it are " : ", ", candidate);
    }
    throw UsageError(
        fmt::format("{}: the model has no tensor '{}'{}; does the plan belong to another model?", path, name, near));
  }
  return types;
}

/// The file format whose limits hold: networks bring their own packing to GGUF files, the one of safetensors.
FileForm holder(const models::ModelRecipe& recipe) {
  return recipe.is_network && recipe.target == FileForm::gguf ? FileForm::safetensors : recipe.target;
}

class Planner {
 public:
  Planner(const models::ModelRecipe& recipe, const ConvertOptions& options)
      : target_(holder(recipe)), is_network_(recipe.is_network), options_(options), patterns_(compile(options)) {
    tied_ = std::ranges::none_of(recipe.tensors, [](const TensorRecipe& t) { return t.use == TensorUse::output; });
    if (!options.plan.empty()) planned_ = read_types(options.plan, recipe);
  }

  PlannedTensor plan(const TensorRecipe& recipe) const {
    PlannedTensor planned;
    planned.recipe = &recipe;
    TypeChoice choice = choose(recipe);
    const TargetType type = planned.type = choice.type;
    planned.reason = std::move(choice.reason);
    planned.misfit = choice.misfit;
    if (type.format) planned.scheme = Scheme(*type.format);
    const files::StoredTensor& source = planned.source();
    const bool same_layout = recipe.parts.size() == 1 && recipe.transform == models::RowTransform::none &&
                             recipe.shape.elements() == source.shape.elements();
    planned.copied = recipe.array ? recipe.scheme->format == type.format : keeps_bytes(recipe, type) || !type.format;
    // Codes are copied only together with all of their scales, and only if nobody requested new ones.
    if (type.scaled && !(same_layout && choice.kept)) planned.copied = false;
    if (type.scaled) place_scales(planned);
    planned.code_bytes = code_bytes(planned);
    return planned;
  }

 private:
  static bool keeps_bytes(const TensorRecipe& recipe, const TargetType& type) {
    const files::StoredTensor& source = *recipe.parts.front().tensor;
    const bool moves_rows = recipe.transform == models::RowTransform::none || models::permutes_rows(recipe.transform);
    const bool boolean_as_int8 = source.safetensors_type == SafetensorsType::boolean && type.format == DType::int8;
    return moves_rows && (boolean_as_int8 ||
                          (type.format && type.format == source.format && type.scaled == (source.scale_group != 0)));
  }

  static std::size_t code_bytes(const PlannedTensor& planned) {
    const std::optional<Format> format = planned.type.format;
    if (planned.recipe->array) return packed_bytes(*format, *planned.recipe->array);
    if (format) return packed_bytes(*format, planned.recipe->shape.elements());
    std::size_t bytes = 0;
    for (const models::SourceRows& part : planned.recipe->parts) {
      const std::size_t rows = std::max<std::size_t>(part.tensor->rows(), 1);
      bytes += part.tensor->bytes.size() / rows * part.rows;
    }
    return bytes;
  }

  /// Groups must divide the rows; where they do not, there is one scale per row.
  Scheme scheme_for(Format format, const Shape& shape) const {
    Scheme scheme = checked_scheme(scheme_of(format, options_));
    const auto group = static_cast<std::size_t>(std::max(scheme.group, 1));
    if (scheme.granularity == Granularity::group && shape.last() % group != 0) {
      scheme.granularity = Granularity::row;
      scheme.group = 0;
    }
    return scheme;
  }

  void place_scales(PlannedTensor& planned) const {
    const Shape& shape = planned.recipe->shape;
    if (planned.copied) {
      const files::StoredTensor& source = planned.source();
      planned.scales = {source.scale_values.size(), source.scale_group};
      planned.zero_points = !source.zero_points.empty();
      if (source.scale_values.size() > 1) {
        const bool rows = source.scale_group == shape.last();
        planned.scheme.granularity = rows ? Granularity::row : Granularity::group;
        planned.scheme.group = rows ? 0 : static_cast<int>(source.scale_group);
      }
      return;
    }
    planned.scheme = scheme_for(*planned.type.format, shape);
    if (planned.scheme.granularity != options_.granularity) {
      planned.reason += fmt::format("; one scale per row: {} is not a multiple of {}", shape.last(), options_.group);
    }
    planned.scales = scale_layout(planned.scheme, rows_of(shape), shape.last());
    planned.zero_points = has_zero_points(planned.scheme);
  }

  TypeChoice choose(const TensorRecipe& recipe) const {
    const files::StoredTensor& source = *recipe.parts.front().tensor;
    for (const Pattern& pattern : patterns_) {
      if (!std::regex_search(recipe.name, pattern.expression)) continue;
      require_decodable(source, pattern.format);
      return fitted(pattern.format, recipe, fmt::format("asked for by '{}'", pattern.text));
    }
    const auto planned = planned_.find(recipe.known_as().name);
    if (planned != planned_.end()) return as_planned(planned->second, recipe);
    if (!options_.type) return prefers(recipe) ? preferred(recipe) : keep(recipe);
    if (is_network_) {
      // Block formats are for matrices; a dtype is for any array.
      const bool fits = recipe.array->matrix_count() != 0 || fitting_type(*options_.type, *recipe.array);
      return fits ? fitted(*options_.type, recipe, "asked for") : keep(recipe, "vectors stay wide");
    }
    if (source.format && source.format->has_scales() && source.scale_group == 0 &&
        info(source.format->dtype()).kind != NumberKind::narrow_float) {
      return keep(recipe, "integers stay as they are");
    }
    if (source.safetensors_type == SafetensorsType::boolean) return keep(recipe, "masks stay as they are");
    if (!files::is_decodable(source)) return keep(recipe, "imago cannot decode it");

    const bool decoder = recipe.blocks != 0;
    if (recipe.shape.rank() < 2) return wide(recipe, "vectors stay wide");
    if (!decoder) return fitted(*options_.type, recipe, "asked for");
    if (options_.pure) return fitted(*options_.type, recipe, "asked for, pure");
    if (recipe.use == TensorUse::vector) return wide(recipe, "norms and biases stay wide");
    if (recipe.use == TensorUse::router) return wide(recipe, "routers stay wide");
    if (rows_of(recipe.shape) < kFewRows) return wide(recipe, "small matrices stay wide");
    const std::optional<Format> mixed = mixed_type(*options_.type, recipe, tied_);
    if (!mixed) return wide(recipe, fmt::format("{} leaves it wide", role_of(recipe)));
    if (*mixed == *options_.type) return fitted(*mixed, recipe, "asked for");
    return fitted(*mixed, recipe, fmt::format("{} in the mix of {}", role_of(recipe), options_.type->name()));
  }

  static void require_decodable(const files::StoredTensor& source, Format format) {
    if (files::is_decodable(source)) return;
    throw UnsupportedError(fmt::format("{}: tensor '{}' is {}, which imago cannot decode, so it cannot become {}",
                                       source.file, source.name, source.type, format.name()));
  }

  /// The planned type or an error: a plan was measured as it stands.
  TypeChoice as_planned(Format format, const TensorRecipe& recipe) const {
    require_decodable(*recipe.parts.front().tensor, format);
    if (fitting(format, recipe) != format) {
      throw UsageError(fmt::format("{}: '{}' cannot be {}: its {} are not a multiple of the block of {}", options_.plan,
                                   recipe.known_as().name, format.name(), rows_text(recipe), format.block_values()));
    }
    return requested(format, recipe, "planned");
  }

  std::string_view role_of(const TensorRecipe& recipe) const {
    switch (recipe.use) {
      case TensorUse::embedding: return tied_ ? "embedding and output" : "embedding";
      case TensorUse::output: return "output";
      case TensorUse::attention_value: return "attention values";
      case TensorUse::down: return "down projection";
      case TensorUse::matrix:
      case TensorUse::vector:
      case TensorUse::router: break;
    }
    return "this tensor";
  }

  TypeChoice keep(const TensorRecipe& recipe, std::string_view why = "kept") const {
    if (recipe.scheme && has_parts(recipe.scheme->format, *recipe.array))
      return {{recipe.scheme->format, false}, std::string(why), true};
    TypeChoice choice = keep_type(target_, *recipe.parts.front().tensor);
    if (choice.reason.empty()) choice = {choice.type, std::string(why), true};
    return choice;
  }

  /// The requested type. A layer that has this very scheme keeps its codes and scales, unless a calibration may find
  /// better ones.
  TypeChoice requested(Format format, const TensorRecipe& recipe, std::string reason) const {
    if (format == BlockFormat::q4_0 && recipe.has_entity_blocks) format = BlockFormat::entity_q4_0;
    TypeChoice choice{{format, format.has_scales()}, std::move(reason)};
    if (!recipe.scheme || !format.has_scales() || !options_.calibration.empty()) return choice;
    Scheme wanted = scheme_for(format, recipe.shape);
    if (!options_.calibrator) wanted.calibrator = recipe.scheme->calibrator;
    choice.kept = recipe.scheme == wanted;
    return choice;
  }

  /// Whether the recipe's preferred type applies: from GGUF back to a folder, only if nothing is lost.
  static bool prefers(const TensorRecipe& recipe) {
    if (!recipe.preferred || recipe.preferred == recipe.parts.front().tensor->format) return false;
    return !recipe.preferred_if_exact || holds_exactly(recipe, *recipe.preferred);
  }
  TypeChoice preferred(const TensorRecipe& recipe) const {
    return {{recipe.preferred, false}, fmt::format("as {} models have it", name(target_))};
  }

  static bool holds_exactly(const TensorRecipe& recipe, Format format) {
    std::vector<float> values(recipe.shape.elements()), back(values.size());
    models::apply_recipe(recipe, values);
    std::vector<std::byte> codes(packed_bytes(format, values.size()));
    encode(format.dtype(), values, {}, codes);
    decode(format.dtype(), codes, {}, back);
    return std::memcmp(values.data(), back.data(), values.size() * sizeof(float)) == 0;
  }

  /// float32 in a GGUF decoder, since its runners expect that of vectors; else its own type.
  TypeChoice wide(const TensorRecipe& recipe, std::string_view why) const {
    const files::StoredTensor& source = *recipe.parts.front().tensor;
    const bool own = source.format && source.format->is_wide();
    if (target_ == FileForm::gguf && recipe.blocks != 0) {
      const bool vector = recipe.shape.rank() < 2 || recipe.use == TensorUse::router;
      if (vector || !own) return {{DType::float32, false}, std::string(why)};
    }
    if (own && prefers(recipe)) return preferred(recipe);
    if (own) return {{source.format, false}, std::string(why)};
    return keep(recipe, why);
  }

  static std::optional<Format> fitting(Format format, const TensorRecipe& recipe) {
    return recipe.array ? fitting_type(format, *recipe.array) : fitting_type(format, recipe.shape.last());
  }

  /// `format` if it fits. Only the mix of a decoder and the layers of a network fall back to another quantized type; in
  /// a bag of tensors and with `pure`, a tensor takes the requested type or keeps its own.
  TypeChoice fitted(Format format, const TensorRecipe& recipe, std::string reason) const {
    const std::string misfit = fmt::format("{} fit no block of {}", rows_text(recipe), format.name());
    const std::optional<Format> nearest = fitting(format, recipe);
    if (nearest == format) return requested(format, recipe, std::move(reason));
    TypeChoice choice{{nearest, false}, fmt::format("{}; {}", reason, misfit)};
    if (options_.pure || (recipe.blocks == 0 && !(is_network_ && nearest))) {
      choice = prefers(recipe) ? preferred(recipe) : keep(recipe, misfit);
    } else if (!nearest) {
      choice = wide(recipe, misfit);
    }
    choice.misfit = true;
    return choice;
  }

  FileForm target_;
  bool is_network_;
  const ConvertOptions& options_;
  std::vector<Pattern> patterns_;
  std::map<std::string, Format> planned_;
  bool tied_ = false;
};

}  // namespace

void check_type_options(FileForm target, const ConvertOptions& options) {
  std::vector<Format> asked;  // by any option
  if (options.type) asked.push_back(*options.type);
  for (const auto& [pattern, format] : options.tensor_types) asked.push_back(format);
  if (!options.plan.empty()) {
    for (const auto& [tensor, format] : read_plan(options.plan).tensors) asked.push_back(format);
  }
  for (const Format format : asked) require_holdable(target, format);
  const bool plain = options.calibrator.value_or(Calibrator::absmax) == Calibrator::absmax &&
                     options.granularity == Granularity::tensor;
  const auto scaled = std::ranges::find_if(asked, &Format::has_scales);
  if (scaled != asked.end()) {
    for (const Format format : asked) {
      if (format.has_scales()) checked_scheme(scheme_of(format, options));
    }
  } else if (!plain) {
    if (asked.empty()) throw UsageError("a calibrator or a granularity needs a type to convert to");
    checked_scheme(scheme_of(asked.front(), options));
  }
  if (options.pure && !options.type) throw UsageError("'pure' needs a type to convert to");
  const Rounding rounding = options.rounding.value_or(Rounding::nearest);
  if (rounding != Rounding::nearest && options.calibration.empty()) {
    throw UsageError("error-compensating rounding and column scaling need a calibration");
  }
  if (!options.calibration.empty() && asked.empty() && options.plan.empty()) {
    throw UsageError("a calibration needs a type to convert to");
  }
  for (const Format format : asked) {
    if (rounding == Rounding::compensated && !format.is_wide() && !guided::can_compensate(format)) {
      throw UnsupportedError(fmt::format("{} has no error-compensating rounding", format.name()));
    }
  }
}

std::vector<PlannedTensor> plan_types(const models::ModelRecipe& recipe, const ConvertOptions& options) {
  check_type_options(holder(recipe), options);
  const Planner planner(recipe, options);
  std::vector<PlannedTensor> plan;
  plan.reserve(recipe.tensors.size());
  for (const TensorRecipe& tensor : recipe.tensors) plan.push_back(planner.plan(tensor));
  return plan;
}

}  // namespace imago::convert
