// A calibration that is accepted has finite figures of as many columns as it says.

#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "guided/calibration.h"
#include "imago/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace imago;
  try {
    const guided::Calibration calibration =
        guided::parse_calibration({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
    if (calibration.matrices.empty()) std::abort();
    for (const auto& [key, statistics] : calibration.matrices) {
      const std::size_t columns = statistics->second_moments.size();
      if (columns == 0 || columns * sizeof(float) > size) std::abort();
      for (const float moment : statistics->second_moments) {
        if (!std::isfinite(moment) || moment < 0) std::abort();
      }
      if (!statistics->products.empty() && statistics->products.size() != columns * columns) std::abort();
    }
  } catch (const Error&) {
  }
  return 0;
}
