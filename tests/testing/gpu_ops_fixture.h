#pragma once

// What the tests of operations on the GPU share.

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "kernels/cuda/layout.h"
#include "testing/gpu.h"
#include "testing/gpu_values.h"

namespace imago::kernels::cuda {

class OpsFixture : public testing::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) stream_.emplace(device());
  }
  imago::cuda::Stream& stream() { return *stream_; }

  template <class T>
  OnDevice<T> up(const std::vector<T>& values) {
    return {*device(), values};
  }
  template <class T>
  OnDevice<T> zeros(std::size_t count) {
    return {*device(), std::vector<T>(count)};
  }

 private:
  std::optional<imago::cuda::Stream> stream_;
};

}  // namespace imago::kernels::cuda
