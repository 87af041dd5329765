#include "kernels/cuda/recurrent.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/recurrent.cuh"
#include "kernels/cuda/scan.cuh"

namespace imago::kernels::cuda {

namespace {

auto on(Stream& stream) {
  return
      [&stream](const char* name, auto* kernel, unsigned blocks, unsigned threads, unsigned bytes, const auto& work) {
        if (blocks != 0) launch_overlapped(name, kernel, blocks, threads, bytes, stream, work);
      };
}

}  // namespace

void short_conv(const ShortConvWork& work, const StateRuns& runs, Stream& stream) {
  launch_short_conv(work, runs, on(stream));
}

void linear_scan(const LinearScanWork& work, const StateRuns& runs, Stream& stream) {
  launch_linear_scan(work, runs, on(stream));
}

void channel_scan(const ChannelScanWork& work, const StateRuns& runs, Stream& stream) {
  launch_channel_scan(work, runs, on(stream));
}

void norm_and_gate(const NormGateWork& work, Stream& stream) { launch_norm_and_gate(work, on(stream)); }

}  // namespace imago::kernels::cuda
