// Our exact float32 product beside oneDNN's sgemm: one matrix, one batch, the same threads, in turn.

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <oneapi/dnnl/dnnl.hpp>
#include <thread>

#include "base/cpu.h"
#include "harness.h"
#include "imago/error.h"
#include "imago/system.h"
#include "kernels/matrix.h"

namespace imago::bench {
namespace {

constexpr std::size_t kRows = 4096;
constexpr std::size_t kCols = 4096;
constexpr std::size_t kBatch = 512;
constexpr int kRuns = 20;

/// y[t][row] = Σ w[row][col] · x[t][col]; row-major, as oneDNN has it.
void onednn_product(std::span<const float> w, std::span<const float> x, std::span<float> y) {
  const auto status =
      dnnl::sgemm('N', 'T', kBatch, kRows, kCols, 1.0f, x.data(), kCols, w.data(), kCols, 0.0f, y.data(), kRows);
  if (status != dnnl::status::success) throw UnsupportedError("oneDNN refuses this product");
}

/// Seconds of one run. Threads of the other library may still spin after their turn: gives them time to sleep.
template <class Body>
double turn(Body&& body) {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return measure(1, body).median;  // its warm-up also wakes our own threads again
}

double median(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

int run() {
  const int threads = thread_count();
  omp_set_num_threads(threads);  // Debian's oneDNN computes with OpenMP
  const std::vector<float> weights = synthetic_weights(kRows * kCols);
  const std::vector<float> x = synthetic_weights(kBatch * kCols);
  std::vector<float> ours(kBatch * kRows);
  std::vector<float> theirs(kBatch * kRows);
  const kernels::RunMatrix matrix({DType::float32, kRows, kCols, std::as_bytes(std::span(weights))},
                                  kernels::Arithmetic::exact);

  std::vector<double> our_seconds;
  std::vector<double> their_seconds;
  for (int i = 0; i < kRuns; ++i) {
    our_seconds.push_back(turn([&] { matrix.multiply(x, kBatch, ours); }));
    their_seconds.push_back(turn([&] { onednn_product(weights, x, theirs); }));
  }
  double difference = 0;  // a fast product of other numbers would prove nothing
  double largest = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    difference = std::max(difference, std::fabs(static_cast<double>(ours[i]) - static_cast<double>(theirs[i])));
    largest = std::max(largest, std::fabs(static_cast<double>(theirs[i])));
  }
  if (!(difference <= 1e-4 * largest)) {
    throw UnsupportedError(fmt::format("the products differ by {} where they reach {}", difference, largest));
  }

  constexpr double kOperations = 2.0 * kRows * kCols * kBatch;
  const double our_rate = kOperations / median(our_seconds);
  const double their_rate = kOperations / median(their_seconds);
  fmt::print("{}, {} threads, imago {}; float32, {} × {}, batch {}, median of {}\n", cpu_model_name(), threads,
             version(), kRows, kCols, kBatch, kRuns);
  fmt::print("{:<20} {:>8.1f} GFLOP/s\n", matrix.kernel().name, our_rate * 1e-9);
  fmt::print("{:<20} {:>8.1f} GFLOP/s\n", "oneDNN sgemm", their_rate * 1e-9);
  fmt::print("{:<20} {:>8.2f}\n", "ratio", our_rate / their_rate);
  return 0;
}

}  // namespace
}  // namespace imago::bench

int main() {
  try {
    return imago::bench::run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "imago_bench_sgemm: error: {}\n", error.what());
    return 1;
  }
}
