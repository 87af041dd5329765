#include "kernels/peak.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "base/parallel.h"
#include "kernels/folder_table.h"

namespace imago::kernels {

PeakLoops choose_peak_loops(CpuFeatures features) {
  return std::ranges::find_if(kFolders, [&](const Folder& f) { return within(f.needs, features); })->peak_loops();
}

double measure_peak(const PeakLoop& loop) {
  // A pass is a thousand times what it takes to start the threads, yet far shorter than a time slice: on a busy machine
  // one of many short passes has the cores for itself.
  constexpr double kPassSeconds = 0.0005;
  constexpr int kTrials = 5;
  constexpr int kPasses = 200;
  const auto best_seconds = [](int passes, auto&& pass) {
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < passes; ++i) {
      const auto start = std::chrono::steady_clock::now();
      pass();
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
  };
  // The length of a pass is found alone: a thread that has to be woken up would make a short one look long.
  std::size_t rounds = 1024;
  while (best_seconds(kTrials, [&] { loop.run(rounds); }) < kPassSeconds) rounds *= 2;
  const std::size_t threads = static_cast<std::size_t>(pool_threads());
  const double seconds =
      best_seconds(kPasses, [&] { parallel_for(threads, 1, [&](std::size_t, std::size_t) { loop.run(rounds); }); });
  return static_cast<double>(threads) * static_cast<double>(rounds) * loop.operations / seconds;
}

}  // namespace imago::kernels
