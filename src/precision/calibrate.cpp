// Runs a text through a language model, or the examples of a dataset through a network, and writes statistics of the
// inputs of its matrices.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "base/system.h"
#include "files/tensor_file.h"
#include "guided/sketch.h"
#include "imago/error.h"
#include "imago/files.h"
#include "imago/precision.h"
#include "lm/fingerprint.h"
#include "lm/language_model_state.h"
#include "lm/scored_windows.h"
#include "models/open_model.h"
#include "network/network_state.h"
#include "precision/collect.h"
#include "precision/measures.h"

namespace imago {

namespace {

using guided::Calibration;

/// Windows between two checkpoints of a run. Sums are rounded to float32 at each, so that the result does not depend on
/// where a run was interrupted.
constexpr std::size_t kChunkWindows = 8;
constexpr std::chrono::seconds kSaveEvery{30};

/// The checkpoint of an earlier run with the same model, text and options.
std::optional<Calibration> find_partial(const std::string& path, const Calibration& wanted, bool products) {
  if (!std::filesystem::is_regular_file(path)) return std::nullopt;
  try {
    Calibration found = Calibration::read(path);
    const bool same = found.text_hash == wanted.text_hash && found.context == wanted.context &&
                      found.sketch == wanted.sketch && found.windows % kChunkWindows == 0 &&
                      found.matrices.begin()->second->products.empty() != products;
    if (same) return found;
  } catch (const Error&) {
    // A damaged file counts as none.
  }
  return std::nullopt;
}

CalibrateReport report_of(const Calibration& calibration, std::size_t resumed, const std::string& out) {
  CalibrateReport report;
  report.windows = calibration.windows;
  report.rows = calibration.windows * calibration.context;
  report.matrices = calibration.matrices.size();
  report.resumed = resumed;
  report.products = !calibration.matrices.begin()->second->products.empty();
  report.bytes = std::filesystem::file_size(out);
  return report;
}

/// Whether products of so many values in all fit into memory, if nobody says whether they are wanted. While they are
/// written there are the sums, the means of this run, and those merged with earlier ones.
bool products_fit(double values) {
  constexpr double kCopies = 4;
  const auto free = static_cast<double>(inspect_machine().available_bytes);
  return kCopies * values * sizeof(float) <= free / 2;
}

double product_values(const models::Traits& traits) {
  const auto squared = [](std::size_t columns) { return static_cast<double>(columns) * static_cast<double>(columns); };
  double values = squared(traits.width);
  for (const models::BlockTraits& block : traits.block) {
    const auto experts = static_cast<double>(block.experts ? traits.experts : 1);
    values += squared(traits.width) + squared(traits.heads * traits.head_values) +
              experts * (squared(traits.width) + squared(block.feed_forward));
    if (block.experts) values += squared(traits.shared_feed_forward);
  }
  return values;
}

double product_values(const Network& network) {
  double values = 0;
  for (const NamedLayer& named : named_layers(network)) {
    if (!named.layer->weights || named.layer->weights->rows() < 2) continue;  // not a single matrix
    const auto columns = static_cast<double>(named.layer->weights->cols());
    values += columns * columns;
  }
  return values;
}

/// Sums the inputs of the layers whose weights are a single matrix.
class NetworkInputs final : public layers::MatrixObserver {
 public:
  NetworkInputs(const Network& network, std::string path, bool products) : path_(std::move(path)), products_(products) {
    for (const NamedLayer& named : named_layers(network)) names_[named.layer] = named.path;
  }

  void see(const Layer& layer, std::span<const float> x, std::size_t rows) override {
    precision::InputSums& sums = sums_.try_emplace(&layer, x.size() / rows, products_).first->second;
    sums.add(x, rows);
    if (!sums.is_finite()) {
      throw FormatError(
          path_, 0,
          fmt::format("the inputs of '{}' are not finite when this data runs through the network", names_[&layer]));
    }
  }

  void add_to(Calibration& calibration) const {
    for (const auto& [layer, sums] : sums_) {
      const auto named = names_.find(layer);
      if (named == names_.end()) continue;  // a layer of a network inside a meta network
      calibration.matrices[{named->second, 0}] = std::make_shared<guided::InputStatistics>(sums.statistics());
    }
  }

 private:
  std::string path_;
  bool products_;
  std::map<const Layer*, std::string> names_;
  std::map<const Layer*, precision::InputSums> sums_;
};

}  // namespace

CalibrateReport calibrate_model(const std::string& model, std::string_view text, const std::string& text_name,
                                const std::string& out, const CalibrateOptions& options) {
  Calibration calibration;
  calibration.sketch = guided::sketch_model(models::open_model(model));
  const LanguageModel loaded = LanguageModel::load(model);
  const std::vector<TokenId> ids = lm::window_tokens(text, loaded.require_tokenizer(), options.context);
  const std::size_t windows = ids.size() / options.context;
  lm::Fingerprint hash;
  hash.add(text);
  calibration.text_hash = hash.value();
  calibration.context = options.context;
  calibration.texts = {text_name};

  const bool products =
      options.products.value_or(products_fit(product_values(LanguageModelAccess::loaded(loaded).weights.traits)));
  const std::string partial = out + ".partial";
  std::size_t resumed = 0;
  if (auto found = find_partial(partial, calibration, products)) {
    resumed = found->windows;
    calibration = std::move(*found);
  }
  auto saved = std::chrono::steady_clock::now();
  try {
    for (std::size_t window = resumed; window < windows; window += kChunkWindows) {
      const std::size_t count = std::min(kChunkWindows, windows - window);
      CalibrateOptions collect{.context = options.context, .products = products};
      collect.progress = [&](std::size_t done, std::size_t) {
        if (options.progress) options.progress(window + done, windows);
      };
      precision::collect(loaded, std::span(ids).subspan(window * options.context, count * options.context), collect,
                         calibration);
      const bool last = window + count == windows;
      if (!last && std::chrono::steady_clock::now() - saved >= kSaveEvery) {
        calibration.write(partial);
        saved = std::chrono::steady_clock::now();
      }
    }
  } catch (const FormatError&) {
    throw;  // the model is at fault: a resumed run would fail again
  } catch (...) {
    if (calibration.windows > resumed) calibration.write(partial);
    throw;
  }
  calibration.write(out);
  std::error_code ignored;
  std::filesystem::remove(partial, ignored);
  return report_of(calibration, resumed, out);
}

CalibrateReport calibrate_network(const std::string& model, const Dataset& data, const std::string& data_name,
                                  const std::string& out, const CalibrateOptions& options) {
  if (data.size() == 0) throw UsageError(fmt::format("{} has no examples", data_name));
  if (options.batch == 0) throw UsageError("a batch of 0 examples");
  Network network = load_network(model);
  NetworkInputs inputs(network, model, options.products.value_or(products_fit(product_values(network))));
  NetworkAccess::observe(network, &inputs);
  for (std::size_t first = 0; first < data.size(); first += options.batch) {
    const std::size_t count = std::min(options.batch, data.size() - first);
    network.forward(precision::examples(data.x, first, count));
    if (options.progress) options.progress(first + count, data.size());
  }
  NetworkAccess::observe(network, nullptr);
  Calibration calibration;
  inputs.add_to(calibration);
  if (calibration.matrices.empty()) {
    throw UnsupportedError(fmt::format(
        "{}: no layer of this network has weights that are one matrix, so there is nothing to calibrate", model));
  }
  lm::Fingerprint hash;
  hash.add(std::as_bytes(data.x.values()));
  calibration.text_hash = hash.value();
  calibration.texts = {data_name};
  calibration.windows = data.size();
  calibration.context = 1;
  calibration.sketch = guided::sketch_network(network);
  calibration.write(out);
  return report_of(calibration, 0, out);
}

}  // namespace imago
