#pragma once

// For tests that need a GPU.

#include <gtest/gtest.h>

#include <memory>

#include "imago/device.h"

namespace imago::testing {

/// A fixture whose tests skip, saying why, where there is no CUDA device.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string problem = accelerator_problem(); !problem.empty()) {
      GTEST_SKIP() << "no CUDA device: " << problem;
    }
    device_ = open_device("cuda");
  }

  const std::shared_ptr<Device>& device() const { return device_; }

 private:
  std::shared_ptr<Device> device_;
};

}  // namespace imago::testing
