// Packed weights on a GPU: how fast products are, beside what its memory and cuBLAS do in the same run.

#include <cstdio>
#include <exception>
#include <string_view>

#include "gpu_matmul.h"
#include "gpu_matvec.h"
#include "gpu_ops.h"
#include "imago/device.h"

int main(int argc, char** argv) {
  try {
    if (const std::string problem = imago::accelerator_problem(); !problem.empty()) {
      std::printf("skipped: %s\n", problem.c_str());
      return 0;
    }
    const std::shared_ptr<imago::Device> device = imago::open_device("cuda");
    const imago::DeviceInfo info = imago::accelerators().front();
    std::printf("%s, %d multiprocessors\n", info.model.c_str(), info.multiprocessors);
    const std::string_view only =
        argc > 1 ? argv[1] : "";  // "matmul", "paths" (of matmul), "ops", or what the matvec table takes
    const bool paths = only == "paths";
    if (only != "matmul" && only != "ops" && !paths) imago::bench::gpu_matvec_table(device, only);
    if (only.empty() || only == "matmul" || paths) imago::bench::gpu_matmul_table(device, paths);
    if (only.empty() || only == "ops") imago::bench::gpu_ops_table(device);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
