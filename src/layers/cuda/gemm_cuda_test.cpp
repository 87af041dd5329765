// Our own product, which serves where there is no cuBLAS, and the one that is chosen, against sums in double.

#include "layers/cuda/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "testing/gpu.h"
#include "testing/gradient_check.h"

namespace imago::layers::cuda {
namespace {

class GemmCudaTest : public imago::testing::GpuTest {
 protected:
  void check(GemmArgs shape, void (*product)(const GemmArgs&, Stream&), const std::string& what) {
    const std::size_t a_size = shape.m * shape.k, b_size = shape.k * shape.n, c_size = shape.m * shape.n;
    shape.a_step = a_size;
    shape.c_step = c_size;  // b is shared by all of a batch
    const Tensor<float> a = imago::testing::random_tensor({shape.batch * a_size}, 1);
    const Tensor<float> b = imago::testing::random_tensor({b_size}, 2);
    const Tensor<float> before = imago::testing::random_tensor({shape.batch * c_size}, 3);
    imago::cuda::Array<float> device_a(*device(), a.size()), device_b(*device(), b.size()),
        device_c(*device(), before.size());
    Stream stream(device());
    stream.copy_in(std::as_bytes(a.values()), device_a.data());
    stream.copy_in(std::as_bytes(b.values()), device_b.data());
    stream.copy_in(std::as_bytes(before.values()), device_c.data());
    shape.a = device_a.data();
    shape.b = device_b.data();
    shape.c = device_c.data();
    product(shape, stream);
    std::vector<float> got(before.size());
    stream.copy_out(device_c.data(), std::as_writable_bytes(std::span(got)));
    stream.wait();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::size_t col = i % shape.n, row = i / shape.n % shape.m, batch = i / c_size;
      double sum = shape.add ? static_cast<double>(before[i]) : 0;
      for (std::size_t k = 0; k < shape.k; ++k) {
        const std::size_t at_a = batch * a_size + (shape.a_transposed ? k * shape.m + row : row * shape.k + k);
        const std::size_t at_b = shape.b_transposed ? col * shape.k + k : k * shape.n + col;
        sum += static_cast<double>(a[at_a]) * static_cast<double>(b[at_b]);
      }
      ASSERT_NEAR(static_cast<double>(got[i]), sum, 1e-5 * std::sqrt(static_cast<double>(shape.k)))
          << what << ", batch " << batch << ", row " << row << ", column " << col;
    }
  }
};

TEST_F(GemmCudaTest, AllFormsOfManySizes) {
  struct Size {
    std::size_t m, n, k, batch;
  };
  for (const Size& size :
       {Size{1, 1, 1, 1}, Size{7, 5, 3, 2}, Size{64, 64, 16, 1}, Size{65, 130, 33, 3}, Size{3, 200, 257, 1}}) {
    for (int form = 0; form < 8; ++form) {
      const GemmArgs args{.a = nullptr,
                          .b = nullptr,
                          .c = nullptr,
                          .m = size.m,
                          .n = size.n,
                          .k = size.k,
                          .a_transposed = (form & 1) != 0,
                          .b_transposed = (form & 2) != 0,
                          .add = (form & 4) != 0,
                          .batch = size.batch};
      const std::string what = std::to_string(size.m) + " x " + std::to_string(size.n) + " x " +
                               std::to_string(size.k) + ", form " + std::to_string(form);
      check(args, plain_gemm, "plain, " + what);
      check(args, gemm, "chosen, " + what);
    }
  }
}

}  // namespace
}  // namespace imago::layers::cuda
