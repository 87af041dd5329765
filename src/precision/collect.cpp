#include "precision/collect.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "imago/error.h"
#include "lm/input_observer.h"
#include "lm/language_model_state.h"
#include "lm/observed_run.h"
#include "models/matrix_names.h"
#include "precision/input_sums.h"

namespace imago::precision {

namespace {

using guided::Calibration;
using guided::InputStatistics;
using models::Role;

/// Sums what the matrices of a decoder see. Roles that are shown together read the same inputs and share the sums.
class DecoderInputs final : public lm::InputObserver {
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
          model_.path, 0,
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
    // Other calibrations may share the earlier figures.
    const auto merged = std::make_shared<InputStatistics>(*before->second);
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

void collect(const LanguageModel& model, std::span<const TokenId> ids, const CollectOptions& options,
             Calibration& calibration) {
  const std::size_t windows = options.context == 0 ? 0 : ids.size() / options.context;
  if (windows == 0) {
    throw UsageError(fmt::format("{} tokens do not fill a window of {}; take a longer text or a smaller window",
                                 ids.size(), options.context));
  }
  lm::ObservedRun run(model, options.context);
  DecoderInputs inputs(LanguageModelAccess::loaded(model), options.products);
  for (std::size_t window = 0; window < windows; ++window) {
    run.run(ids.subspan(window * options.context, options.context), inputs);
    if (options.progress) options.progress(window + 1, windows);
  }
  inputs.add_to(calibration);
  calibration.windows += windows;
  calibration.context = options.context;
}

}  // namespace imago::precision
