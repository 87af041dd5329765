// imago/system.h: the speed of the matrix kernels beside what memory and arithmetic allow.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include "base/checked.h"
#include "base/cpu.h"
#include "base/parallel.h"
#include "base/system.h"
#include "imago/codec.h"
#include "imago/error.h"
#include "imago/numeric.h"
#include "imago/system.h"
#include "kernels/matrix.h"
#include "kernels/peak.h"

namespace imago {

namespace {

using kernels::Arithmetic;
using kernels::MatrixKernel;
using kernels::RunMatrix;

constexpr std::size_t kCols = 4096;      // the width of an 8 B language model; whole blocks of every format
constexpr std::size_t kTileRows = 64;    // encoded once and repeated: no kernel looks at what the numbers are
constexpr std::size_t kWideBatch = 32;   // beyond it arithmetic decides, and a small matrix tells the same
constexpr std::size_t kWideRows = 2048;  // 64 panels of 16 rows for each of two threads

std::vector<float> gaussian(std::size_t count, float deviation) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

/// Four times the last-level cache, so that little of one pass is left there for the next; at least 256 MiB, since a
/// virtual machine may be told of a smaller cache than it has.
std::size_t default_matrix_bytes() {
  const Machine machine = inspect_machine();
  const std::uint64_t cache = *std::max_element(machine.cache_bytes.begin(), machine.cache_bytes.end());
  std::uint64_t bytes = std::max<std::uint64_t>(std::uint64_t{256} << 20, 4 * cache);
  // The packed weights lie beside the panels while those are made; half of what is free stays free.
  if (machine.available_bytes != 0) bytes = std::min(bytes, machine.available_bytes / 4);
  return static_cast<std::size_t>(bytes);
}

/// Rows whose panels take about `bytes`: whole panels, at least two per thread.
std::size_t choose_rows(const MatrixKernel& kernel, std::size_t bytes, std::size_t batch) {
  const std::size_t panel_bytes = kernel.functions.panel_bytes(kCols, 0);
  std::size_t panels = std::max<std::size_t>(bytes / panel_bytes, 2 * static_cast<std::size_t>(pool_threads()));
  if (batch > kWideBatch) panels = std::min(panels, kWideRows / kernel.panel_rows);
  return panels * kernel.panel_rows;
}

/// A matrix of `rows` rows that repeats the rows of `tile`, kCols wide.
RunMatrix make_matrix(const MatrixKernel& kernel, std::span<const float> tile, std::size_t rows) {
  const Format format = kernel.format;
  std::vector<std::byte> packed(packed_bytes(format, tile.size()));
  const float scale = derive_scale(format, tile);
  encode(format, tile, {std::span(&scale, 1), tile.size()}, packed);
  const Buffer source = host_device()->allocate(packed_bytes(format, rows * kCols));
  parallel_for(source.size(), packed.size(), [&](std::size_t begin, std::size_t end) {
    for (std::size_t at = begin; at < end; at += packed.size()) {
      std::memcpy(source.address() + at, packed.data(), std::min(packed.size(), end - at));
    }
  });
  return RunMatrix(kernel, {format, rows, kCols, source.host(), {std::span(&scale, 1), rows * kCols}});
}

double median_of(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Timing {
  double kernel, read;  // seconds: medians of passes that alternate, so that both saw the same machine
  double spread;        // the distance of the quartiles of the kernel's passes, relative to their median
};

/// The first pass warms up, unless it takes so long that it had better be the result.
template <class Pass>
Timing measure(double seconds, std::span<const std::byte> bytes, Pass&& pass) {
  constexpr std::size_t kFewest = 3;
  const auto timed = [](auto&& body) {
    const auto start = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const auto read = [&] { read_all(bytes); };
  if (const double first = timed(pass); first > seconds) return {first, timed(read), 0};
  std::vector<double> passes, reads;
  for (double spent = 0; spent < seconds || passes.size() < kFewest; spent += passes.back()) {
    reads.push_back(timed(read));
    passes.push_back(timed(pass));
  }
  const double median = median_of(passes);
  return {median, median_of(reads), (passes[passes.size() * 3 / 4] - passes[passes.size() / 4]) / median};
}

/// Those that users may name.
std::vector<Format> all_formats() {
  std::vector<Format> formats(kFormats.begin(), kFormats.end());
  std::erase_if(formats, [](Format format) { return !format.is_target(); });
  return formats;
}

std::vector<const MatrixKernel*> choose_kernels(const std::vector<Format>& formats, CpuFeatures allowed) {
  std::vector<const MatrixKernel*> chosen;
  for (const Format format : formats) {
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::fast}) {
      const MatrixKernel* kernel = kernels::choose_matrix_kernel(format, arithmetic, allowed);
      if (kernel != nullptr) chosen.push_back(kernel);
    }
  }
  return chosen;
}

/// All but the fraction of the peak, which is known when everything has been measured.
KernelSpeed time_kernel(const MatrixKernel& kernel, const RunMatrix& matrix, std::span<const float> x,
                        std::size_t batch, double seconds) {
  std::vector<float> y(batch * matrix.rows());
  // Whole cache lines, up to 256 MiB: enough to tell what memory delivers.
  const std::size_t read_bytes = std::min(matrix.bytes(), std::size_t{256} << 20) / 64 * 64;
  const Timing timing = measure(seconds, matrix.data().first(read_bytes), [&] { matrix.multiply(x, batch, y); });
  KernelSpeed speed;
  speed.name = kernel.name;
  speed.format = kernel.format.name();
  speed.operation = batch == 1 ? "matvec" : "matmul";
  speed.activation = kernel.arithmetic == Arithmetic::exact ? "f32" : kernel.takes_tiles(batch) ? "bf16" : "int8";
  speed.rows = matrix.rows();
  speed.cols = matrix.cols();
  speed.batch = batch;
  speed.matrix_bytes = matrix.bytes();
  speed.gb_per_s = 1e-9 * static_cast<double>(matrix.bytes()) / timing.kernel;
  speed.read_gb_per_s = 1e-9 * static_cast<double>(read_bytes) / timing.read;
  speed.fraction_of_read = speed.gb_per_s / speed.read_gb_per_s;
  speed.gflops = 2e-9 * static_cast<double>(matrix.rows() * matrix.cols()) * static_cast<double>(batch) / timing.kernel;
  speed.spread = timing.spread;
  return speed;
}

/// Raises what arithmetic allows to what it is seen to do now.
void measure_limits(CpuFeatures allowed, KernelBench& bench) {
  const kernels::PeakLoops peaks = kernels::choose_peak_loops(allowed);
  bench.float32_peak_gflops = std::max(bench.float32_peak_gflops, 1e-9 * kernels::measure_peak(peaks.float32));
  bench.int8_peak_gops = std::max(bench.int8_peak_gops, 1e-9 * kernels::measure_peak(peaks.int8));
  if (peaks.bfloat16.run != nullptr) {
    bench.bfloat16_peak_gflops = std::max(bench.bfloat16_peak_gflops, 1e-9 * kernels::measure_peak(peaks.bfloat16));
  }
}

}  // namespace

KernelBench bench_kernels(const KernelBenchOptions& options) {
  if (options.batch == 0) throw UsageError("a batch of 0 tokens has nothing to measure; use 1 or more");
  const CpuFeatures allowed = allowed_cpu_features();
  const std::vector<const MatrixKernel*> chosen =
      choose_kernels(options.formats.empty() ? all_formats() : options.formats, allowed);
  const std::size_t bytes = options.matrix_bytes != 0 ? options.matrix_bytes : default_matrix_bytes();
  const std::vector<float> tile = gaussian(kTileRows * kCols, 0.02f);
  const std::vector<float> x = gaussian(checked_mul(options.batch, kCols, "a batch"), 1.0f);

  // The limits are measured again now and then: others may use the machine at one moment and not at the next.
  constexpr std::chrono::seconds kInterval{10};
  KernelBench bench;
  measure_limits(allowed, bench);
  auto measured = std::chrono::steady_clock::now();
  for (const MatrixKernel* kernel : chosen) {
    if (std::chrono::steady_clock::now() - measured > kInterval) {
      measure_limits(allowed, bench);
      measured = std::chrono::steady_clock::now();
    }
    if (options.progress) options.progress(kernel->name, bench.kernels.size(), chosen.size());
    const RunMatrix matrix = make_matrix(*kernel, tile, choose_rows(*kernel, bytes, options.batch));
    bench.kernels.push_back(time_kernel(*kernel, matrix, x, options.batch, options.seconds));
  }
  measure_limits(allowed, bench);
  std::vector<double> reads;
  for (KernelSpeed& speed : bench.kernels) {
    reads.push_back(speed.read_gb_per_s);
    const double peak = speed.activation == "f32"    ? bench.float32_peak_gflops
                        : speed.activation == "bf16" ? bench.bfloat16_peak_gflops
                                                     : bench.int8_peak_gops;
    speed.fraction_of_peak = speed.gflops / peak;
  }
  if (!reads.empty()) bench.read_gb_per_s = median_of(reads);
  if (options.progress) options.progress("", chosen.size(), chosen.size());
  return bench;
}

}  // namespace imago
