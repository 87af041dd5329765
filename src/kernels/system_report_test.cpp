#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "imago/error.h"
#include "imago/format.h"
#include "imago/system.h"

namespace imago {
namespace {

/// Sets IMAGO_KERNELS for one test.
class KernelLimit {
 public:
  explicit KernelLimit(const char* value) { ::setenv("IMAGO_KERNELS", value, 1); }
  KernelLimit(const KernelLimit&) = delete;
  KernelLimit& operator=(const KernelLimit&) = delete;
  ~KernelLimit() { ::unsetenv("IMAGO_KERNELS"); }
};

TEST(SystemReport, NamesAKernelForEveryFormatAndOperation) {
  const SystemReport report = inspect_system();
  std::map<std::string, std::size_t> formats_of;
  for (const KernelChoice& choice : report.kernels) {
    ++formats_of[choice.operation];
    EXPECT_TRUE(choice.kernel.starts_with(choice.format + "/")) << choice.kernel;
  }
  const std::size_t all = kDTypeCount + kBlockFormatCount;
  const std::size_t narrow = 11 + kBlockFormatCount;  // dtypes of 8 bits and fewer
  EXPECT_EQ(formats_of, (std::map<std::string, std::size_t>{
                            {"encode", all}, {"decode", all}, {"matvec exact", all}, {"matvec fast", narrow}}));
  EXPECT_FALSE(report.cpu.empty());
  EXPECT_GE(report.usable_cores, 1);
}

TEST(SystemReport, RespectsTheLimitAndSaysSo) {
  const KernelLimit limit("ref");
  const SystemReport report = inspect_system();
  EXPECT_EQ(report.kernel_limit, "ref");
  for (const KernelChoice& choice : report.kernels) EXPECT_TRUE(choice.kernel.ends_with("/ref")) << choice.kernel;
  const bool told = std::any_of(report.advice.begin(), report.advice.end(),
                                [](const std::string& line) { return line.starts_with("IMAGO_KERNELS=ref"); });
  EXPECT_EQ(told, !report.cpu_features.empty());
}

TEST(SystemReport, AnUnknownLimitIsAnError) {
  const KernelLimit limit("sse9");
  EXPECT_THROW(inspect_system(), UsageError);
}

}  // namespace
}  // namespace imago
