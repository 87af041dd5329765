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

}  // namespace imago::cli
