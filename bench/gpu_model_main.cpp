#include <cstdio>
#include <exception>

#include "gpu_model.h"

int main() {
  try {
    if (const std::string problem = imago::accelerator_problem(); !problem.empty()) {
      std::printf("skipped: %s\n", problem.c_str());
      return 0;
    }
    imago::bench::gpu_model_table(imago::open_device("cuda"));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
