#pragma once

// What compare and sweep share in what they show.

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "imago/lm.h"
#include "progress.h"

namespace imago::cli {

/// Work in several parts, each with a bar of its own.
class PhasedProgress {
 public:
  explicit PhasedProgress(bool quiet) : quiet_(quiet) {}
  /// REQUIRES: done <= total, total > 0.
  void show(std::string_view phase, std::size_t done, std::size_t total);

 private:
  bool quiet_;
  std::string phase_;
  std::optional<Progress> progress_;
};

/// Adds kl_mean, kl_median, kl_p99, kl_max, same_top and kl_histogram: [{"from":0,"count":12},…] without the empty bins
/// at both ends.
void add_divergence(const DivergenceReport& report, nlohmann::ordered_json& object);

}  // namespace imago::cli
