// Short convolutions and scans on the GPU against those of the CPU.

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "testing/gpu_ops_fixture.h"
#include "testing/recurrent_runs.h"

namespace imago::kernels::cuda {
namespace {

class CudaRecurrent : public OpsFixture {
 public:
  template <class T>
  OnDevice<T> up(const std::vector<T>& values) {
    return OpsFixture::up(values);
  }
  void short_conv(const ShortConvWork& work, const StateRuns& runs) { cuda::short_conv(work, runs, stream()); }
  void linear_scan(const LinearScanWork& work, const StateRuns& runs) { cuda::linear_scan(work, runs, stream()); }
  void channel_scan(const ChannelScanWork& work, const StateRuns& runs) { cuda::channel_scan(work, runs, stream()); }
  void norm_and_gate(const NormGateWork& work) { cuda::norm_and_gate(work, stream()); }
  void finish() { stream().wait(); }
};

TEST_F(CudaRecurrent, ShortConvolutions) {
  for (const auto& plan : testing::kRunPlans) {
    for (const std::size_t channels : {1u, 33u, 256u, 1000u}) {
      for (const std::size_t kernel : {1u, 3u, 4u, 8u}) {
        for (const bool gated : {false, true}) testing::compare_short_conv(*this, plan, channels, kernel, gated);
      }
    }
  }
  testing::compare_short_conv(*this, {{.tokens = 2048, .is_new = true}}, 2048, 4, false);
}

TEST_F(CudaRecurrent, LinearScans) {
  for (const LinearScanShape& shape : testing::kScanShapes) {
    for (const auto& plan : testing::kRunPlans) testing::compare_linear_scan(*this, plan, shape);
  }
  testing::compare_linear_scan(*this, {{.tokens = 1500, .is_new = true, .kept_tokens = 1024}},
                               {.heads = 32, .groups = 16, .keys = 128, .values = 128, .delta = true});
}

TEST_F(CudaRecurrent, ScansOfChannels) {
  for (const auto& plan : testing::kRunPlans) {
    for (const std::size_t channels : {1u, 100u, 128u, 1000u}) {
      for (const std::size_t states : {1u, 16u, 17u, 64u}) testing::compare_channel_scan(*this, plan, channels, states);
    }
  }
}

TEST_F(CudaRecurrent, NormsWithGates) {
  for (const std::optional<bool> gate_first : {std::optional<bool>(), std::optional(false), std::optional(true)}) {
    for (const std::size_t rows : {1u, 7u, 300u}) {
      testing::compare_norm_and_gate(*this, rows, 64, 16, 1, gate_first);
      testing::compare_norm_and_gate(*this, rows, 1024, 128, 1, gate_first);
      testing::compare_norm_and_gate(*this, rows, 4098, 2049, 2, gate_first);
      testing::compare_norm_and_gate(*this, rows, 5120, 5120, 1, gate_first);
    }
  }
}

}  // namespace
}  // namespace imago::kernels::cuda
