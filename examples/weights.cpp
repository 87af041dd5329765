// One weight matrix in several numeric forms: the first example of docs/api.md.

#include <cstdio>
#include <memory>
#include <string>

#include "imago/weights.h"

using namespace imago;

int main() {
  WeightStore weights(/*rows=*/256, /*cols=*/1024);
  weights.he_randomize(/*seed=*/1, /*fan_in=*/1024);

  Scheme by_rows(DType::int8);
  by_rows.granularity = Granularity::row;
  Scheme by_groups(DType::int4);
  by_groups.granularity = Granularity::group;
  by_groups.group = 32;
  by_groups.calibrator = Calibrator::mse;

  for (const Scheme& scheme : {Scheme(DType::float16), by_rows, by_groups, Scheme(BlockFormat::q4_k)}) {
    const std::shared_ptr<const Version> version = weights.morph(scheme);  // made once, then cached
    const Distortion distortion = weights.distortion(scheme);
    std::printf("%-8s %7zu bytes, cosine %.5f, relative error %.5f\n", std::string(scheme.format.name()).c_str(),
                version->bytes(), distortion.cosine, distortion.relative_rmse);
  }
}
