// The figures of bench_kernels agree with each other and with what they are named after.

#include <gtest/gtest.h>

#include <algorithm>

#include <string>
#include <utility>
#include <vector>

#include "base/cpu.h"
#include "imago/error.h"
#include "imago/system.h"
#include "kernels/peak.h"

namespace imago {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

KernelBenchOptions quick(std::vector<Format> formats, std::size_t batch = 1) {
  return {.formats = std::move(formats), .batch = batch, .matrix_bytes = kMiB, .seconds = 0.01, .progress = {}};
}

TEST(BenchKernels, MeasuresEachFormInTheOrderAskedFor) {
  const KernelBench bench = bench_kernels(quick({BlockFormat::q6_k, DType::float32, DType::int4}));
  std::vector<std::pair<std::string, std::string>> rows;
  for (const KernelSpeed& speed : bench.kernels) rows.emplace_back(speed.format, speed.activation);
  const std::vector<std::pair<std::string, std::string>> expected{
      {"q6_k", "f32"}, {"q6_k", "int8"}, {"float32", "f32"}, {"int4", "f32"}, {"int4", "int8"}};
  EXPECT_EQ(rows, expected);
}

TEST(BenchKernels, FiguresAgreeWithEachOther) {
  for (const std::size_t batch : {std::size_t{1}, std::size_t{40}}) {
    KernelBenchOptions options = quick({DType::int8, BlockFormat::q4_0}, batch);
    options.matrix_bytes = 20 * kMiB;
    const KernelBench bench = bench_kernels(options);
    ASSERT_EQ(bench.kernels.size(), 4u);
    for (const KernelSpeed& speed : bench.kernels) {
      EXPECT_TRUE(speed.name.starts_with(speed.format + "/")) << speed.name;
      EXPECT_EQ(speed.operation, batch == 1 ? "matvec" : "matmul");
      EXPECT_EQ(speed.cols, 4096u);
      EXPECT_EQ(speed.batch, batch);
      const double operations = 2.0 * static_cast<double>(speed.rows * speed.cols * batch);
      const double per_byte = operations / static_cast<double>(speed.matrix_bytes);
      EXPECT_NEAR(speed.gflops / speed.gb_per_s, per_byte, 1e-9 * per_byte);
      EXPECT_NEAR(speed.fraction_of_read * speed.read_gb_per_s, speed.gb_per_s, 1e-9 * speed.gb_per_s);
      const bool has_tiles = bench.bfloat16_peak_gflops > 0 && batch > 1;
      const bool is_exact = speed.activation == "f32";
      EXPECT_EQ(speed.activation, is_exact ? "f32" : has_tiles ? "bf16" : "int8");
      const double peak = is_exact    ? bench.float32_peak_gflops
                          : has_tiles ? bench.bfloat16_peak_gflops
                                      : bench.int8_peak_gops;
      EXPECT_NEAR(speed.fraction_of_peak * peak, speed.gflops, 1e-9 * speed.gflops);
      EXPECT_GE(speed.spread, 0.0);
    }
    // A byte per weight: as large as asked for, or the 2048 rows that tell enough of a wide batch.
    const double int8_bytes = batch == 1 ? 20.0 * kMiB : 2048.0 * 4096;
    EXPECT_NEAR(static_cast<double>(bench.kernels.front().matrix_bytes), int8_bytes, 0.2 * kMiB);
  }
}

TEST(BenchKernels, TellsHowFarItIs) {
  KernelBenchOptions options = quick({DType::int8, DType::float16});
  std::vector<std::size_t> done;
  std::vector<std::string> names;
  options.progress = [&](const std::string& name, std::size_t so_far, std::size_t total) {
    EXPECT_EQ(total, 3u);
    done.push_back(so_far);
    names.push_back(name.substr(0, name.find('/')));
  };
  bench_kernels(options);
  EXPECT_EQ(done, (std::vector<std::size_t>{0, 1, 2, 3}));
  EXPECT_EQ(names, (std::vector<std::string>{"int8", "int8", "float16", ""}));
}

TEST(BenchKernels, ABatchOfNothingIsAnError) { EXPECT_THROW(bench_kernels(quick({DType::int8}, 0)), UsageError); }

/// How many times faster the first loop is. Both are measured in turn and the best of each counts: what else runs on
/// the machine can only slow one down.
template <class Loop>
double ratio(const Loop& first, const Loop& second, double wanted) {
  double best_first = 0;
  double best_second = 0;
  for (int i = 0; i < 20 && (i < 3 || best_first < wanted * best_second); ++i) {
    best_first = std::max(best_first, kernels::measure_peak(first));
    best_second = std::max(best_second, kernels::measure_peak(second));
  }
  return best_first / best_second;
}

TEST(Peak, GrowsWithTheInstructionSet) {
  const kernels::PeakLoops plain = kernels::choose_peak_loops(kNoFeatures);
  EXPECT_GT(kernels::measure_peak(plain.float32), 1e8);
  EXPECT_GT(kernels::measure_peak(plain.int8), 1e8);
  int compared = 0;
  for (const CpuFeatures features : {kAvx2, kAvx2 | kAvx512, kAvx2 | kAvx512 | kVnni, kNeonDot}) {
    if ((features & host_cpu_features()) != features) continue;
    const kernels::PeakLoops loops = kernels::choose_peak_loops(features);
    EXPECT_GT(ratio(loops.float32, plain.float32, 1.5), 1.5) << "features " << features;
    EXPECT_GT(ratio(loops.int8, plain.int8, 1.5), 1.5) << "features " << features;
    ++compared;
  }
  if (compared == 0) GTEST_SKIP() << "this CPU has plain instructions only";
}

TEST(Peak, TilesBeatVectors) {
  const kernels::PeakLoops loops = kernels::choose_peak_loops(host_cpu_features());
  if (loops.bfloat16.run == nullptr) GTEST_SKIP() << "this CPU multiplies no tiles";
  EXPECT_GT(ratio(loops.bfloat16, loops.float32, 3.0), 3.0);
}

TEST(Peak, OneInstructionForFourProductsBeatsThree) {
  constexpr CpuFeatures kWithVnni = kAvx2 | kAvx512 | kVnni;
  if ((kWithVnni & host_cpu_features()) != kWithVnni) GTEST_SKIP() << "this CPU has no VNNI";
  const kernels::PeakLoops with = kernels::choose_peak_loops(kWithVnni);
  const kernels::PeakLoops without = kernels::choose_peak_loops(kAvx2 | kAvx512);
  EXPECT_GT(ratio(with.int8, without.int8, 1.2), 1.2);
}

}  // namespace
}  // namespace imago
