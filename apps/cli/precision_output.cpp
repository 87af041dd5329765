#include "precision_output.h"

#include <nlohmann/json.hpp>

namespace imago::cli {

void PhasedProgress::show(std::string_view phase, std::size_t done, std::size_t total) {
  if (!progress_ || phase != phase_) {
    phase_ = phase;
    progress_.emplace(quiet_);
  }
  progress_->show(done, total, phase_);
}

namespace {

nlohmann::ordered_json histogram_json(const DivergenceReport& report) {
  nlohmann::ordered_json bins = nlohmann::ordered_json::array();
  std::size_t end = report.histogram.size();
  while (end > 0 && report.histogram[end - 1] == 0) --end;
  for (std::size_t bin = 0; bin < end; ++bin) {
    if (bins.empty() && report.histogram[bin] == 0) continue;
    bins.push_back({{"from", divergence_bin_start(bin)}, {"count", report.histogram[bin]}});
  }
  return bins;
}

}  // namespace

void add_divergence(const DivergenceReport& report, nlohmann::ordered_json& object) {
  object["kl_mean"] = report.mean;
  object["kl_median"] = report.median;
  object["kl_p99"] = report.percentile_99;
  object["kl_max"] = report.largest;
  object["same_top"] = report.same_top;
  object["kl_histogram"] = histogram_json(report);
}

}  // namespace imago::cli
