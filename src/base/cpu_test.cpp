#include "base/cpu.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "imago/error.h"

namespace imago {
namespace {

/// Sets IMAGO_KERNELS for one test and puts back what was there.
class KernelLimit : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* value = std::getenv("IMAGO_KERNELS")) before_ = value;
  }
  void TearDown() override { set(before_ ? before_->c_str() : nullptr); }

  static void set(const char* value) {
    if (value != nullptr) {
      setenv("IMAGO_KERNELS", value, 1);
    } else {
      unsetenv("IMAGO_KERNELS");
    }
  }

 private:
  std::optional<std::string> before_;
};

TEST_F(KernelLimit, UnsetOrEmptyAllowsTheWholeHost) {
  set(nullptr);
  EXPECT_EQ(allowed_cpu_features(), host_cpu_features());
  set("");
  EXPECT_EQ(allowed_cpu_features(), host_cpu_features());
}

TEST_F(KernelLimit, RefAllowsNothing) {
  set("ref");
  EXPECT_EQ(allowed_cpu_features(), kNoFeatures);
}

TEST_F(KernelLimit, ANameAllowsItselfAndWhatIsBelow) {
  set("avx2");
  EXPECT_EQ(allowed_cpu_features(), host_cpu_features() & kAvx2);
  set("avx512");
  EXPECT_EQ(allowed_cpu_features(), host_cpu_features() & (kAvx2 | kAvx512 | kVnni | kVbmi));
  set("amx");
  EXPECT_EQ(allowed_cpu_features(), host_cpu_features() & (kAvx2 | kAvx512 | kVnni | kVbmi | kAmx));
  set("neon");
  EXPECT_EQ(allowed_cpu_features(), host_cpu_features() & kNeonDot);
}

TEST_F(KernelLimit, AnUnknownNameIsAUsageErrorThatNamesIt) {
  for (const char* name : {"sse9", "AVX2", "avx2 ", "ref,avx2"}) {
    set(name);
    try {
      allowed_cpu_features();
      ADD_FAILURE() << "no error for '" << name << "'";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("avx512"), std::string::npos) << "lists the known ones";
    }
  }
}

TEST(HostCpu, GroupsBuildOnEachOther) {
  const CpuFeatures host = host_cpu_features();
  EXPECT_TRUE((host & kAvx512) == 0 || (host & kAvx2) != 0);
  EXPECT_TRUE((host & (kVnni | kVbmi)) == 0 || (host & kAvx512) != 0);
  EXPECT_TRUE((host & kAmx) == 0 || (host & kVnni) != 0);
  CpuFeatures known = kNoFeatures;
  for (const CpuFeatureName& feature : known_cpu_features()) {
    EXPECT_EQ(known & feature.bit, 0u) << feature.name << " shares its bit";
    known |= feature.bit;
  }
  EXPECT_EQ(host & ~known, 0u) << "every group has a name";
}

/// Kernel tests pass over rows that the host cannot run. A run that is there for certain rows names what they need.
TEST(HostCpu, HasWhatThisRunIsFor) {
  const char* wanted = std::getenv("IMAGO_TEST_FEATURE");
  if (wanted == nullptr) GTEST_SKIP() << "IMAGO_TEST_FEATURE is not set";
  for (const CpuFeatureName& feature : known_cpu_features()) {
    if (feature.name == wanted && (host_cpu_features() & feature.bit) != 0) return;
  }
  ADD_FAILURE() << "this processor has no " << wanted;
}

TEST(HostCpu, HasAModelName) { EXPECT_FALSE(cpu_model_name().empty()); }

}  // namespace
}  // namespace imago
