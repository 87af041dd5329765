// How fast a checkpoint of many weights is loaded, and how much memory that takes.
//
//   imago_bench_checkpoint [WEIGHTS_IN_MILLIONS]   100 unless given

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "folder.h"
#include "harness.h"
#include "imago/files.h"
#include "imago/system.h"

namespace imago::bench {
namespace {

constexpr int kWidth = 4096;

void write_network(std::size_t weights, const std::string& path) {
  const std::size_t layers = (weights - 1) / (std::size_t{kWidth} * kWidth) + 1;
  std::vector<Layer> list;
  for (std::size_t i = 0; i < layers; ++i) list.push_back(dense(kWidth, kWidth));
  save_network(Network(std::move(list), 1), path);
}

struct Loaded {
  double seconds = 0;
  std::size_t weights = 0;
};

/// Includes the masters, which are made when they are first asked for.
Loaded load(const std::string& path) {
  const auto start = std::chrono::steady_clock::now();
  Network network = load_network(path);
  double sum = 0;
  for (const Layer& layer : network.layers()) sum += static_cast<double>(layer.weights->master()[0]);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (sum == 12345) fmt::print("\n");  // so that nothing is left out
  return {seconds, network.parameters()};
}

/// Runs `body` in a process of its own, so that its largest memory is its own.
template <class Body>
long peak_kib(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    std::fflush(stdout);
    ::_exit(0);
  }
  int status = 0;
  rusage usage{};
  ::wait4(child, &status, 0, &usage);
  return usage.ru_maxrss;
}

void run(std::size_t millions) {
  const Folder folder(std::filesystem::temp_directory_path());
  const std::string path = (folder.path / "network.json").string();
  peak_kib([&] { write_network(millions * 1'000'000, path); });
  const double bytes = static_cast<double>(std::filesystem::file_size(path));
  const long peak = peak_kib([&] {
    for (int i = 0; i < 3; ++i) {
      const Loaded loaded = load(path);
      const double wanted = bytes + 4.0 * static_cast<double>(loaded.weights);
      fmt::print(
          "checkpoint of {:.1f} M weights: {:.0f} MB of JSON in {:.2f} s, {:.0f} MB/s (wanted: 300); file and "
          "weights are {:.0f} MB\n",
          1e-6 * static_cast<double>(loaded.weights), 1e-6 * bytes, loaded.seconds, 1e-6 * bytes / loaded.seconds,
          1e-6 * wanted);
    }
  });
  const double weights = 0.75 * bytes;  // base64: 4 characters for 3 bytes
  fmt::print("largest memory: {:.0f} MB, {:.2f} times file and weights (wanted: below 1.5)\n",
             1.024e-3 * static_cast<double>(peak), 1024.0 * static_cast<double>(peak) / (bytes + weights));
}

}  // namespace
}  // namespace imago::bench

int main(int argc, char** argv) {
  imago::bench::run(std::max(1ul, argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 100));
  return 0;
}
