#include "precision/plan_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "convert/target_types.h"
#include "files/json_writer.h"
#include "imago/error.h"
#include "precision/matrix_trials.h"
#include "precision/sensitivity.h"

namespace imago::precision {

namespace {

using enum BlockFormat;

/// The best type of each size.
constexpr std::array kUsualBlocks = {q2_k, q3_k, iq4_xs, q4_k, iq4_nl, q5_k, q6_k, q8_0};

/// A type that exceeds the budgeted bits by more than this is never worth its bytes.
constexpr double kBitsAbove = 3;

std::vector<Format> usual_types(const DecoderMatrices& matrices, double bits) {
  std::vector<Format> all(kUsualBlocks.begin(), kUsualBlocks.end()), near;
  all.emplace_back(DType::float16);
  std::ranges::copy_if(all, std::back_inserter(near), [&](Format type) { return type.bits() <= bits + kBitsAbove; });
  const bool enough = std::ranges::all_of(matrices.all(), [&](const DecoderMatrix& matrix) {
    return std::ranges::any_of(near, [&](Format type) { return fits(matrix, type); });
  });
  return enough ? near : all;
}

void check_types(const DecoderMatrices& matrices, std::span<const Format> types) {
  for (const Format type : types) {
    if (type.has_scales()) {
      throw UsageError(fmt::format(
          "{} cannot be planned for a language model: its scales have no place in a GGUF file; choose block "
          "formats, float16, bfloat16 or float32",
          type.name()));
    }
  }
  for (const DecoderMatrix& matrix : matrices.all()) {
    if (std::ranges::any_of(types, [&](Format type) { return fits(matrix, type); })) continue;
    throw UsageError(
        fmt::format("none of these types fits '{}', whose rows have {} weights; add q8_0 or float16 to them",
                    matrix.name, matrix.cols));
  }
}

double bits_of(std::uint64_t bytes, std::uint64_t weights) {
  return weights == 0 ? 0 : 8 * static_cast<double>(bytes) / static_cast<double>(weights);
}

}  // namespace

std::uint64_t budget_bytes(const PlanOptions& options, std::uint64_t weights, std::uint64_t others) {
  if (options.bits.has_value() == options.size.has_value()) {
    throw UsageError("a plan needs a budget: either bits per weight or bytes");
  }
  if (options.bits) {
    if (!std::isfinite(*options.bits) || *options.bits <= 0 || *options.bits > 64) {
      throw UsageError(fmt::format("{} bits per weight; give more than 0 and at most 64", *options.bits));
    }
    return static_cast<std::uint64_t>(*options.bits * static_cast<double>(weights) / 8);
  }
  if (*options.size < others) {
    throw UsageError(
        fmt::format("{} bytes do not even hold the tensors that keep their type, which are {}", *options.size, others));
  }
  return *options.size - others;
}

void require_budget(std::uint64_t budget, std::uint64_t smallest, std::uint64_t weights, std::uint64_t others) {
  if (budget >= smallest) return;
  throw UsageError(
      fmt::format("{:.4g} bits per weight ({} bytes) cannot be met with these types: the smallest possible is {:.4g} "
                  "bits per weight (--bits {}), {} bytes in all",
                  bits_of(budget, weights), budget + others, bits_of(smallest, weights),
                  std::ceil(bits_of(smallest, weights) * 1000) / 1000, smallest + others));
}

PlanBudget plan_budget(const DecoderMatrices& matrices, const PlanOptions& options) {
  PlanBudget budget;
  std::uint64_t weights = 0, smallest = 0;
  for (const DecoderMatrix& matrix : matrices.all()) weights += matrix.weights;
  const std::uint64_t others = matrices.other_weights() * sizeof(float);
  budget.bytes = budget_bytes(options, weights, others);
  const double bits = bits_of(budget.bytes, weights);
  budget.types = options.types.empty() ? usual_types(matrices, bits) : options.types;
  check_types(matrices, budget.types);
  for (const DecoderMatrix& matrix : matrices.all()) {
    std::uint64_t least = UINT64_MAX;
    for (const Format type : budget.types) {
      if (fits(matrix, type)) least = std::min(least, bytes_in(matrix, type));
    }
    smallest += least;
  }
  require_budget(budget.bytes, smallest, weights, others);
  budget.measured = types_to_measure(budget.types, bits);
  return budget;
}

PlanWindows split_windows(std::span<const TokenId> ids, std::size_t context, std::size_t measured,
                          std::size_t calibrated) {
  const std::size_t windows = ids.size() / context;
  if (windows < 2) {
    throw UsageError(
        fmt::format("the text has {} tokens; a plan needs at least two windows of {}, one to measure and one to judge",
                    ids.size(), context));
  }
  const std::size_t measuring = std::clamp<std::size_t>(measured, 1, std::max<std::size_t>(1, windows / 3));
  const std::size_t judging = std::min(2 * measuring, windows - measuring);
  const std::size_t chosen = measuring + judging;
  PlanWindows split;
  std::vector<std::size_t> free;
  const auto append = [&](std::vector<TokenId>& to, std::size_t window) {
    const std::span<const TokenId> tokens = ids.subspan(window * context, context);
    to.insert(to.end(), tokens.begin(), tokens.end());
  };
  std::size_t next = 0;
  for (std::size_t window = 0; window < windows; ++window) {
    // Chosen windows are at next · windows / chosen; the middle one of three measures.
    const bool is_chosen = next < chosen && window == next * windows / chosen;
    const bool judges = is_chosen && (chosen < 3 ? next == 1 : next % 3 != 1);
    if (is_chosen) append(judges ? split.judge : split.measure, window);
    if (is_chosen) ++next;
    if (!judges) free.push_back(window);
  }
  const std::size_t count = std::min(calibrated, free.size());
  for (std::size_t i = 0; i < count; ++i) append(split.calibrate, free[i * free.size() / count]);
  return split;
}

namespace {

class FactWriter {
 public:
  explicit FactWriter(files::JsonWriter& writer) : writer_(writer) {}

  template <class T>
  void fact(std::string_view name, const T& value) {
    writer_.key(name);
    writer_.value(value);
  }
  void number(std::string_view name, double value) {
    writer_.key(name);
    std::isfinite(value) ? writer_.value(value) : writer_.raw("null");
  }
  void quality(std::string_view name, const PlanQuality& quality, bool network) {
    writer_.key(name);
    writer_.begin_object();
    number(network ? "loss_added" : "kl", quality.added);
    number(network ? "loss" : "perplexity", quality.level);
    if (quality.accuracy) number("accuracy", *quality.accuracy);
    writer_.end_object();
  }

 private:
  files::JsonWriter& writer_;
};

}  // namespace

std::string plan_facts(const PlanReport& report, const std::string& model, const std::string& measured_on,
                       const PlanOptions& options) {
  const bool network = report.windows == 0;
  files::StringSink sink;
  files::JsonWriter writer(sink, files::JsonStyle::compact);
  FactWriter facts(writer);
  writer.begin_object();
  facts.fact("model", std::string_view(model));
  facts.fact(network ? "data" : "text", std::string_view(measured_on));
  if (!network) {
    facts.fact("calibration", std::string_view(options.plain                 ? "none"
                                               : options.calibration.empty() ? "the text"
                                                                             : options.calibration));
    facts.fact("context", std::uint64_t{options.context});
    facts.fact("windows_measured", std::uint64_t{report.windows});
    facts.fact("windows_judged", std::uint64_t{report.judged_windows});
  }
  facts.fact("weights", report.weights);
  facts.fact("budget_bytes", report.budget_bytes);
  facts.fact("bytes", report.bytes);
  facts.number("bits_per_weight", report.bits_per_weight());
  facts.number("predicted", report.predicted);
  facts.quality("original", report.original, network);
  facts.quality("measured", report.measured, network);
  if (report.uniform_type) {
    facts.fact("uniform_type", report.uniform_type->name());
    facts.fact("uniform_bytes", report.uniform_bytes);
    facts.quality("uniform", report.uniform, network);
    facts.fact("kept_uniform", report.kept_uniform);
  }
  writer.key("added_by_tensor");
  writer.begin_object();
  for (const TensorChoice& tensor : report.tensors) facts.number(tensor.name, tensor.added);
  writer.end_object();
  writer.end_object();
  return std::move(sink.text());
}

}  // namespace imago::precision
