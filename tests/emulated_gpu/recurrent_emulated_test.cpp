// Short convolutions and scans of a GPU, run on the host lane by lane, against those of the CPU.

#include "emulated_gpu/emulated_gpu.h"  // before the kernels, whose keywords it defines

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cuda/recurrent.cuh"
#include "kernels/cuda/scan.cuh"
#include "testing/recurrent_runs.h"

namespace imago::kernels::cuda {
namespace {

class EmulatedRecurrent : public ::testing::Test {
  auto run() {
    return [this](const char* name, auto* kernel, unsigned blocks, unsigned threads, unsigned bytes, const auto& work) {
      emulated::Block::run_all(blocks, threads, bytes, readable_, [&] { kernel(work); });
      ASSERT_EQ(emulated::Block::problem(), "") << name;
    };
  }

 public:
  template <class T>
  class Held {
   public:
    explicit Held(const std::vector<T>& values) : values_(std::make_shared<std::vector<T>>(values)) {}
    T* data() const { return values_->data(); }
    const std::vector<T>& values() const { return *values_; }

   private:
    std::shared_ptr<std::vector<T>> values_;
  };

  template <class T>
  Held<T> up(const std::vector<T>& values) {
    Held<T> held(values);
    readable_.push_back(std::as_bytes(std::span(held.values())));
    return held;
  }
  void short_conv(const ShortConvWork& work, const StateRuns& runs) { launch_short_conv(work, runs, run()); }
  void linear_scan(const LinearScanWork& work, const StateRuns& runs) { launch_linear_scan(work, runs, run()); }
  void channel_scan(const ChannelScanWork& work, const StateRuns& runs) { launch_channel_scan(work, runs, run()); }
  void norm_and_gate(const NormGateWork& work) { launch_norm_and_gate(work, run()); }
  void finish() { readable_.clear(); }

 private:
  std::vector<std::span<const std::byte>> readable_;
};

TEST_F(EmulatedRecurrent, ShortConvolutions) {
  for (const auto& plan : testing::kRunPlans) {
    for (const std::size_t kernel : {1u, 3u, 4u, 8u}) {
      for (const bool gated : {false, true}) testing::compare_short_conv(*this, plan, 130, kernel, gated);
    }
  }
}

TEST_F(EmulatedRecurrent, LinearScans) {
  for (const LinearScanShape& shape : testing::kScanShapes) {
    testing::compare_linear_scan(*this, testing::kRunPlans[1], shape);
  }
}

TEST_F(EmulatedRecurrent, ScansOfChannels) {
  for (const auto& plan : testing::kRunPlans) {
    testing::compare_channel_scan(*this, plan, 70, 16);
    testing::compare_channel_scan(*this, plan, 64, 3);
    testing::compare_channel_scan(*this, plan, 3, 33);
  }
}

TEST_F(EmulatedRecurrent, NormsWithGates) {
  for (const std::optional<bool> gate_first : {std::optional<bool>(), std::optional(false), std::optional(true)}) {
    testing::compare_norm_and_gate(*this, 3, 64, 16, 1, gate_first);
    testing::compare_norm_and_gate(*this, 2, 256, 128, 2, gate_first);
    testing::compare_norm_and_gate(*this, 2, 1026, 513, 2, gate_first);
  }
}

}  // namespace
}  // namespace imago::kernels::cuda
