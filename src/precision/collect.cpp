#include "precision/collect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/workspace.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "lm/forward.h"
#include "lm/language_model_state.h"
#include "math/products.h"
#include "models/tensor_layout.h"

namespace imago::precision {

namespace {

/// Columns of a panel; a pair of panels is one task. Only the panels on the diagonal compute both symmetric halves:
/// smaller panels waste less there, larger ones reuse each load more often.
constexpr std::size_t kPanel = 128;

}  // namespace

InputSums::InputSums(std::size_t columns, bool products)
    : columns_(columns), squares_(columns), products_(products ? columns * columns : 0) {}

void InputSums::add(std::span<const float> x, std::size_t rows) {
  parallel_for(columns_, 64, [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = 0; row < rows; ++row) {
      const float* values = x.data() + row * columns_;
      for (std::size_t i = begin; i < end; ++i) {
        const double value = static_cast<double>(values[i]);
        squares_[i] += value * value;
      }
    }
  });
  if (!products_.empty()) add_products(x, rows);
  rows_ += rows;
}

bool InputSums::is_finite() const noexcept {
  return std::ranges::all_of(squares_, [&](double sum) { return std::isfinite(static_cast<float>(sum)); });
}

void InputSums::add_products(std::span<const float> x, std::size_t rows) {
  const std::size_t panels = (columns_ + kPanel - 1) / kPanel;
  const auto width = [&](std::size_t panel) { return std::min(kPanel, columns_ - panel * kPanel); };
  const auto panel_values = [&](std::size_t panel) {
    return std::span<float>(panels_).subspan(panel * kPanel * rows, width(panel) * rows);
  };
  panels_.resize(columns_ * rows);
  parallel_for(panels, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t panel = begin; panel < end; ++panel) {
      const std::span<float> out = panel_values(panel);
      for (std::size_t row = 0; row < rows; ++row) {
        std::copy_n(x.data() + row * columns_ + panel * kPanel, width(panel), out.data() + row * width(panel));
      }
    }
  });
  // A sum over a batch is float32; each element of the totals belongs to one task.
  parallel_for_dynamic(panels * panels, 1, [&](std::size_t task, std::size_t) {
    const std::size_t above = task / panels, left = task % panels;
    if (left < above) return;
    std::vector<float> tile(width(above) * width(left));
    math::gemm({.m = width(above), .n = width(left), .k = rows, .a = math::Transpose::yes}, panel_values(above),
               panel_values(left), tile);
    for (std::size_t i = 0; i < width(above); ++i) {
      float* total = products_.data() + (above * kPanel + i) * columns_ + left * kPanel;
      for (std::size_t j = 0; j < width(left); ++j) total[j] += tile[i * width(left) + j];
    }
  });
}

guided::InputStatistics InputSums::statistics() const {
  guided::InputStatistics found;
  found.second_moments.resize(columns_);
  if (!products_.empty()) found.products.resize(products_.size());
  add_to(found);
  return found;
}

void InputSums::add_to(guided::InputStatistics& earlier) const {
  if (earlier.second_moments.size() != columns_ || earlier.products.size() < products_.size()) {
    throw UsageError(fmt::format("earlier statistics are of {} columns{}, these of {}{}", earlier.second_moments.size(),
                                 earlier.products.empty() ? "" : " with products", columns_,
                                 products_.empty() ? "" : " with products"));
  }
  if (rows_ == 0) return;
  const std::uint64_t rows = earlier.rows + rows_;
  const double share = static_cast<double>(earlier.rows) / static_cast<double>(rows);
  const double factor = 1 / static_cast<double>(rows);
  const auto merged = [&](float mean, double sum) {
    return static_cast<float>(share * static_cast<double>(mean) + factor * sum);
  };
  earlier.rows = rows;
  earlier.feedback = nullptr;
  for (std::size_t i = 0; i < columns_; ++i) earlier.second_moments[i] = merged(earlier.second_moments[i], squares_[i]);
  if (products_.empty()) {
    earlier.products.clear();  // they would cover only some of the inputs
    return;
  }
  parallel_for(columns_, 8, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      for (std::size_t j = 0; j < columns_; ++j) {
        // Panels on the diagonal are complete; those below it mirror the upper half.
        const double sum = static_cast<double>(i < j ? products_[i * columns_ + j] : products_[j * columns_ + i]);
        float& mean = earlier.products[i * columns_ + j];
        mean = merged(mean, sum);
      }
    }
  });
}

namespace {

using guided::Calibration;
using guided::InputStatistics;
using models::Role;

/// Sums the inputs of the matrices of a decoder. Roles that are reported together read the same inputs and share sums.
class DecoderInputs final : public backend::InputObserver {
 public:
  DecoderInputs(const lm::LoadedModel& model, bool products) : model_(model), products_(products) {}

  void see(std::span<const Role> roles, std::size_t block, std::size_t expert, std::span<const float> x,
           std::size_t tokens) override {
    const auto [place, is_new] = inputs_.try_emplace({roles.front(), block, expert});
    Inputs& inputs = place->second;
    if (is_new) {
      for (const Role role : roles) inputs.names.push_back(models::matrix_name(model_.weights.traits, role, block));
      inputs.expert = expert;
      inputs.sums = std::make_unique<InputSums>(x.size() / tokens, products_);
    }
    inputs.sums->add(x, tokens);
    if (!inputs.sums->is_finite()) {
      throw FormatError(
          model_.weights.path, 0,
          fmt::format("the inputs of '{}' are not finite when this text runs through the model: its weights are "
                      "damaged, or too large for float32",
                      inputs.names.front()));
    }
  }

  void add_to(Calibration& calibration) {
    for (auto& [key, inputs] : inputs_) {
      const std::shared_ptr<InputStatistics> merged = merge(calibration, inputs);
      merged->is_table = inputs.names.front() == guided::kTableName;
      for (const std::string& name : inputs.names) calibration.matrices[{name, inputs.expert}] = merged;
    }
  }

 private:
  struct Inputs {
    std::vector<std::string> names;
    std::size_t expert = 0;
    std::unique_ptr<InputSums> sums;
  };

  std::shared_ptr<InputStatistics> merge(const Calibration& calibration, const Inputs& inputs) const {
    const auto before = calibration.matrices.find({inputs.names.front(), inputs.expert});
    if (before == calibration.matrices.end()) return std::make_shared<InputStatistics>(inputs.sums->statistics());
    // Other calibrations may share the earlier statistics.
    auto merged = std::make_shared<InputStatistics>(*before->second);
    try {
      inputs.sums->add_to(*merged);
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("'{}': {}", inputs.names.front(), error.what()));
    }
    return merged;
  }

  const lm::LoadedModel& model_;
  bool products_;
  std::map<models::MatrixKey, Inputs> inputs_;
};

}  // namespace

void collect(const LanguageModel& model, std::span<const TokenId> ids, const CalibrateOptions& options,
             Calibration& calibration) {
  const std::size_t windows = options.context == 0 ? 0 : ids.size() / options.context;
  if (windows == 0) {
    throw UsageError(fmt::format("{} tokens do not fill a window of {}; take a longer text or a smaller window",
                                 ids.size(), options.context));
  }
  lm::ObservedRun run(model, options.context);
  DecoderInputs inputs(LanguageModelAccess::loaded(model), options.products.value_or(false));
  for (std::size_t window = 0; window < windows; ++window) {
    run.run(ids.subspan(window * options.context, options.context), inputs);
    if (options.progress) options.progress(window + 1, windows);
  }
  inputs.add_to(calibration);
  calibration.windows += windows;
  calibration.context = options.context;
}

}  // namespace imago::precision
