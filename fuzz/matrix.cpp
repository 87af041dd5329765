// Random shapes and bytes for every row of the matrix table: all rows that this machine can run must agree with the
// decoded weights times the activations, summed in double.

#include "kernels/matrix.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "imago/codec.h"

namespace imago::kernels {
namespace {

struct Input {
  const std::uint8_t* data;
  std::size_t size;

  std::uint8_t take() { return size == 0 ? std::uint8_t{0} : (--size, *data++); }

  /// `count` bytes: the rest of the input, repeated.
  std::vector<std::byte> bytes(std::size_t count) const {
    std::vector<std::byte> out(count);
    for (std::size_t i = 0; i < count && size != 0; ++i) out[i] = static_cast<std::byte>(data[i % size]);
    return out;
  }
};

struct Case {
  Format format;
  std::size_t rows, cols, batch;
  std::vector<std::byte> packed;
  std::vector<float> weights;  // decoded
  std::vector<float> x;
  float scale;
};

/// The products that a row must give, within 1e-5 of the sum of their magnitudes, or what rounding the weights to
/// bfloat16 may cost where fast products go by tiles of that; rows with sums beyond float are passed over.
void compare(const Case& c, const MatrixKernel& kernel) {
  const RunMatrix matrix(kernel, {c.format, c.rows, c.cols, c.packed, {std::span(&c.scale, 1), c.rows * c.cols}});
  std::vector<float> y(c.batch * c.rows);
  matrix.multiply(c.x, c.batch, y);
  const bool is_fast = kernel.arithmetic == Arithmetic::fast;
  const bool by_tiles = is_fast && kernel.takes_tiles(c.batch);  // of activations that bfloat16 has: n / 64, up to 2
  const bool is_int8 = is_fast && !by_tiles;
  const double share = by_tiles ? 0x1.01p-8 : 1e-5;
  for (std::size_t t = 0; t < c.batch; ++t) {
    const std::span<const float> x = std::span(c.x).subspan(t * c.cols, c.cols);
    const std::vector<Int8Block> blocks = quantize_activations(x);
    for (std::size_t r = 0; r < c.rows; ++r) {
      double sum = 0;
      double magnitude = 0;
      for (std::size_t i = 0; i < c.cols; ++i) {
        const double q = static_cast<double>(blocks[i / 32].scale) * blocks[i / 32].q[i % 32];
        const double product =
            static_cast<double>(c.weights[r * c.cols + i]) * (is_int8 ? q : static_cast<double>(x[i]));
        sum += product;
        magnitude += std::fabs(product);
      }
      if (!(magnitude < 1e30)) continue;
      if (!(std::fabs(static_cast<double>(y[t * c.rows + r]) - sum) <= share * magnitude + 1e-6)) std::abort();
    }
  }
}

void run(Input input) {
  const std::size_t kind = input.take() % (kDTypeCount + kBlockFormatCount - 1);
  const Format format = kind < kDTypeCount ? Format(kDTypes[kind].id) : Format(kBlockFormats[kind - kDTypeCount].id);
  const std::size_t block = static_cast<std::size_t>(format.block_values());
  Case c{format, 1u + input.take() % 40u, 0, 1u + input.take() % 20u, {}, {}, {}, 0.01f};
  c.cols = block == 1 ? 1u + input.take() : block * (1u + input.take() % 3u);
  c.packed = input.bytes(packed_bytes(format, c.rows * c.cols));
  c.weights.resize(c.rows * c.cols);
  decode(format, c.packed, {std::span(&c.scale, 1), c.rows * c.cols}, c.weights);
  c.x.resize(c.batch * c.cols);
  const std::vector<std::byte> noise = input.bytes(c.x.size());
  for (std::size_t i = 0; i < c.x.size(); ++i) c.x[i] = static_cast<float>(std::to_integer<int>(noise[i]) - 128) / 64;
  for (const MatrixKernel& kernel : all_matrix_kernels()) {
    if (kernel.format == format && (kernel.needs & host_cpu_features()) == kernel.needs) compare(c, kernel);
  }
}

}  // namespace
}  // namespace imago::kernels

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  imago::kernels::run({data, size});
  return 0;
}
