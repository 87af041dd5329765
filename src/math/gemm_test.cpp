#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "imago/error.h"
#include "imago/system.h"
#include "math/backend.h"
#include "testing/random_values.h"

namespace imago::math {
namespace {

using testing::random_values;

std::vector<const Backend*> backends() {
  std::vector<const Backend*> all{&plain_backend()};
  if (onednn_backend() != nullptr) all.push_back(onednn_backend());
  return all;
}

/// In float64, with the sum of magnitudes that bounds the error beside it.
struct Reference {
  double value = 0, magnitude = 0;
};
Reference reference(const GemmShape& s, std::span<const float> a, std::span<const float> b, std::size_t i,
                    std::size_t j) {
  Reference sum;
  for (std::size_t p = 0; p < s.k; ++p) {
    const double product = double{s.a == Transpose::no ? a[i * s.k + p] : a[p * s.m + i]} *
                           double{s.b == Transpose::no ? b[p * s.n + j] : b[j * s.k + p]};
    sum.value += product;
    sum.magnitude += std::fabs(product);
  }
  return sum;
}

void expect_product(const Backend& backend, const GemmShape& s, Write write) {
  const std::vector<float> a = random_values(s.m * s.k, 1);
  const std::vector<float> b = random_values(s.k * s.n, 2);
  const std::vector<float> before = random_values(s.m * s.n, 3);
  // What is replaced must not be read: not a number times 0 is not a number.
  std::vector<float> c = write == Write::add ? before : std::vector<float>(s.m * s.n, std::nanf(""));
  gemm(s, a, b, c, write, backend);
  for (std::size_t i = 0; i < s.m; ++i) {
    for (std::size_t j = 0; j < s.n; ++j) {
      const std::size_t at = i * s.n + j;
      Reference wanted = reference(s, a, b, i, j);
      if (write == Write::add) wanted.value += double{before[at]};
      ASSERT_NEAR(c[at], wanted.value, 1e-6 * wanted.magnitude + 1e-6)
          << backend.name << ' ' << s.m << "×" << s.n << "×" << s.k << " at " << i << ',' << j;
    }
  }
}

TEST(Gemm, IsTheProductForAllSizesAndTransposes) {
  const std::size_t sizes[][3] = {{1, 1, 1},    {1, 7, 3},    {5, 1, 9},     {3, 17, 5},    {64, 48, 32},
                                  {65, 50, 33}, {13, 300, 7}, {300, 13, 70}, {33, 31, 517}, {1, 64, 300}};
  for (const Backend* backend : backends()) {
    for (const auto& [m, n, k] : sizes) {
      for (const Transpose a : {Transpose::no, Transpose::yes}) {
        for (const Transpose b : {Transpose::no, Transpose::yes}) {
          for (const Write write : {Write::replace, Write::add}) expect_product(*backend, {m, n, k, a, b}, write);
        }
      }
    }
  }
}

TEST(Gemm, IsTheProductWhereThreadsShareIt) {
  const int before = thread_count();
  set_thread_count(3);
  for (const Backend* backend : backends()) {
    for (const Transpose a : {Transpose::no, Transpose::yes}) {
      for (const Transpose b : {Transpose::no, Transpose::yes}) {
        expect_product(*backend, {203, 40, 150, a, b}, Write::add);      // rows
        expect_product(*backend, {37, 411, 130, a, b}, Write::replace);  // columns
      }
    }
  }
  set_thread_count(before);
}

TEST(Gemm, BackendsAgree) {
  if (onednn_backend() == nullptr) GTEST_SKIP() << "this build has no oneDNN";
  const GemmShape shape{.m = 129, .n = 257, .k = 300, .b = Transpose::yes};
  const std::vector<float> a = random_values(shape.m * shape.k, 4);
  const std::vector<float> b = random_values(shape.k * shape.n, 5);
  std::vector<float> plain(shape.m * shape.n);
  std::vector<float> onednn(shape.m * shape.n);
  gemm(shape, a, b, plain, Write::replace, plain_backend());
  gemm(shape, a, b, onednn, Write::replace, *onednn_backend());
  for (std::size_t i = 0; i < plain.size(); ++i) ASSERT_NEAR(plain[i], onednn[i], 1e-4) << i;
}

TEST(Gemm, RepeatsBitForBit) {
  const GemmShape shape{.m = 300, .n = 100, .k = 200};
  const std::vector<float> a = random_values(shape.m * shape.k, 6);
  const std::vector<float> b = random_values(shape.k * shape.n, 7);
  std::vector<float> first(shape.m * shape.n);
  std::vector<float> again(shape.m * shape.n);
  gemm(shape, a, b, first);
  for (int run = 0; run < 5; ++run) {
    gemm(shape, a, b, again);
    ASSERT_EQ(first, again);
  }
}

TEST(Gemm, EmptyProducts) {
  std::vector<float> c{1, 2, 3, 4};
  gemm({.m = 2, .n = 2, .k = 0}, {}, {}, c, Write::add);
  EXPECT_EQ(c, (std::vector<float>{1, 2, 3, 4}));
  gemm({.m = 2, .n = 2, .k = 0}, {}, {}, c);
  EXPECT_EQ(c, (std::vector<float>{0, 0, 0, 0}));
  gemm({.m = 0, .n = 2, .k = 2}, {}, c, {});
}

TEST(Gemm, SpansMustHoldTheMatrices) {
  std::vector<float> six(6);
  std::vector<float> four(4);
  EXPECT_NO_THROW(gemm({.m = 2, .n = 2, .k = 3}, six, six, four));
  EXPECT_THROW(gemm({.m = 2, .n = 2, .k = 3}, four, six, four), ShapeError);
  EXPECT_THROW(gemm({.m = 2, .n = 2, .k = 3}, six, four, four), ShapeError);
  EXPECT_THROW(gemm({.m = 2, .n = 2, .k = 3}, six, six, six), ShapeError);
  const std::size_t most = std::numeric_limits<std::size_t>::max();
  EXPECT_THROW(gemm({.m = most, .n = 2, .k = 3}, six, six, four), ShapeError);
}

}  // namespace
}  // namespace imago::math
