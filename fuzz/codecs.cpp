// Feeds the same bytes to every row of the codec table: as weights to encode, as packed weights to decode. All rows
// that this machine can run must agree with `ref`.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/codec.h"

namespace imago::kernels {
namespace {

struct Input {
  const std::uint8_t* data;
  std::size_t size;

  std::uint8_t take() { return size == 0 ? std::uint8_t{0} : (--size, *data++); }

  /// The remaining bytes as `count` values of T, zeros where they run out.
  template <class T>
  std::vector<T> as(std::size_t count) const {
    std::vector<T> values(count);
    const std::size_t bytes = std::min(size, count * sizeof(T));
    if (bytes != 0) std::memcpy(values.data(), data, bytes);
    return values;
  }
};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) return false;
  }
  return true;
}

void compare(Format format, std::size_t count, std::size_t group, Input rest) {
  const CodecKernel& ref = choose_codec(format, kNoFeatures);
  const std::vector<float> weights = rest.as<float>(count);
  const std::vector<std::byte> packed = rest.as<std::byte>(packed_bytes(format, count));
  // Scales must be finite and not negative: magnitudes of whatever the input has, where that is so.
  std::vector<float> scales = rest.as<float>(count / group + 1);
  for (float& s : scales) s = std::isfinite(s) ? std::fabs(s) : 1.0f;
  // Importance, which dtypes ignore: one factor per weight, taken from the scales.
  std::vector<float> importance(count);
  for (std::size_t i = 0; i < count; ++i) importance[i] = std::fmin(scales[i % scales.size()], 1e6f);
  const float* factors = group % 2 == 0 ? importance.data() : nullptr;

  std::vector<std::byte> wanted_bytes(packed.size()), bytes(packed.size());
  std::vector<float> wanted(count), values(count);
  ref.encode({weights.data(), count, wanted_bytes.data(), scales.data(), group, 0, factors, count});
  ref.decode({packed.data(), count, wanted.data(), scales.data(), group, 0});
  for (const CodecKernel& row : all_codecs()) {
    if (row.format != format || (row.needs & host_cpu_features()) != row.needs) continue;
    row.encode({weights.data(), count, bytes.data(), scales.data(), group, 0, factors, count});
    row.decode({packed.data(), count, values.data(), scales.data(), group, 0});
    if (bytes != wanted_bytes || !same(values, wanted)) std::abort();  // this row disagrees with ref
  }
}

}  // namespace
}  // namespace imago::kernels

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace imago;
  kernels::Input input{data, size};
  const std::size_t kind = input.take() % (kDTypeCount + kBlockFormatCount);
  const std::size_t length = input.take();
  const std::size_t group = 1 + input.take();
  if (kind < kDTypeCount) {
    kernels::compare(kDTypes[kind].id, length, group, input);
  } else {
    const BlockFormatInfo& block = kBlockFormats[kind - kDTypeCount];
    kernels::compare(block.id, (length % 20) * static_cast<std::size_t>(block.values), group, input);
  }
  return 0;
}
