// The figures of bench_kernels agree with each other and with what they are named after.

#include <gtest/gtest.h>

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
      const double peak = speed.activation == "f32" ? bench.float32_peak_gflops : bench.int8_peak_gops;
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

TEST(Peak, GrowsWithTheInstructionSet) {
  const kernels::PeakLoops plain = kernels::choose_peak_loops(kNoFeatures);
  const double plain_float32 = kernels::measure_peak(plain.float32);
  const double plain_int8 = kernels::measure_peak(plain.int8);
  EXPECT_GT(plain_float32, 1e8);
  EXPECT_GT(plain_int8, 1e8);
  int compared = 0;
  for (const CpuFeatures features : {kAvx2, kAvx2 | kAvx512, kAvx2 | kAvx512 | kVnni, kNeonDot}) {
    if ((features & host_cpu_features()) != features) continue;
    const kernels::PeakLoops loops = kernels::choose_peak_loops(features);
    EXPECT_GT(kernels::measure_peak(loops.float32), 1.5 * plain_float32) << "features " << features;
    EXPECT_GT(kernels::measure_peak(loops.int8), 1.5 * plain_int8) << "features " << features;
    ++compared;
  }
  if (compared == 0) GTEST_SKIP() << "this CPU has plain instructions only";
}

TEST(Peak, OneInstructionForFourProductsBeatsThree) {
  constexpr CpuFeatures kWithVnni = kAvx2 | kAvx512 | kVnni;
  if ((kWithVnni & host_cpu_features()) != kWithVnni) GTEST_SKIP() << "this CPU has no VNNI";
  EXPECT_GT(kernels::measure_peak(kernels::choose_peak_loops(kWithVnni).int8),
            1.2 * kernels::measure_peak(kernels::choose_peak_loops(kAvx2 | kAvx512).int8));
}

}  // namespace
}  // namespace imago
