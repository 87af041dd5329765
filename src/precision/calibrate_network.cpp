// Calibrates a network of layers: runs the examples of a dataset through it.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include "guided/sketch.h"
#include "imago/error.h"
#include "imago/files.h"
#include "imago/precision.h"
#include "lm/fingerprint.h"
#include "network/network_state.h"
#include "precision/collect.h"
#include "precision/measures.h"

namespace imago {

namespace {

/// Sums the inputs of the layers whose weights are a single matrix.
class NetworkInputs final : public layers::MatrixObserver {
 public:
  NetworkInputs(const Network& network, std::string path, bool products) : path_(std::move(path)), products_(products) {
    for (const NamedLayer& named : named_layers(network)) names_[named.layer] = named.path;
  }

  void see(const Layer& layer, std::span<const float> x, std::size_t rows) override {
    std::unique_ptr<precision::InputSums>& sums = sums_[&layer];
    if (!sums) sums = std::make_unique<precision::InputSums>(x.size() / rows, products_);
    sums->add(x, rows);
    if (!sums->is_finite()) {
      throw FormatError(
          path_, 0,
          fmt::format("the inputs of '{}' are not finite when this data runs through the network", names_[&layer]));
    }
  }

  void add_to(guided::Calibration& calibration) const {
    for (const auto& [layer, sums] : sums_) {
      const auto named = names_.find(layer);
      if (named == names_.end()) continue;  // a layer of a network inside a meta network
      calibration.matrices[{named->second, 0}] = std::make_shared<guided::InputStatistics>(sums->statistics());
    }
  }

 private:
  std::string path_;
  bool products_;
  std::map<const Layer*, std::string> names_;
  std::map<const Layer*, std::unique_ptr<precision::InputSums>> sums_;
};

}  // namespace

CalibrateReport calibrate_network(const std::string& model, const Dataset& data, const std::string& data_name,
                                  const std::string& out, const CalibrateOptions& options) {
  if (data.size() == 0) throw UsageError(fmt::format("{} has no examples", data_name));
  if (options.batch == 0) throw UsageError("a batch of 0 examples");
  Network network = load_network(model);
  NetworkInputs inputs(network, model, options.products);
  NetworkAccess::observe(network, &inputs);
  CalibrateReport report;
  for (std::size_t first = 0; first < data.size(); first += options.batch) {
    const std::size_t count = std::min(options.batch, data.size() - first);
    network.forward(precision::examples(data.x, first, count));
    if (options.progress) options.progress(first + count, data.size());
  }
  NetworkAccess::observe(network, nullptr);
  guided::Calibration calibration;
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
  report.windows = report.rows = data.size();
  report.matrices = calibration.matrices.size();
  report.bytes = std::filesystem::file_size(out);
  return report;
}

}  // namespace imago
