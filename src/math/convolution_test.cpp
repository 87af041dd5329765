#include <gtest/gtest.h>

#include <cmath>
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

std::size_t x_size(const ConvolutionExtents& e) { return e.batch * e.channels * in_values(e); }
std::size_t w_size(const ConvolutionExtents& e) { return e.filters * e.channels * kernel_values(e); }
std::size_t y_size(const ConvolutionExtents& e) { return e.batch * e.filters * out_values(e); }

/// Calls body(index in x, in w, in y) for every multiplication, straight from the definition.
template <class Body>
void for_each_tap(const ConvolutionExtents& e, Body&& body) {
  std::size_t y = 0;
  for (std::size_t b = 0; b < e.batch; ++b)
    for (std::size_t f = 0; f < e.filters; ++f)
      for (std::size_t o0 = 0; o0 < e.out[0]; ++o0)
        for (std::size_t o1 = 0; o1 < e.out[1]; ++o1)
          for (std::size_t o2 = 0; o2 < e.out[2]; ++o2, ++y)
            for (std::size_t c = 0; c < e.channels; ++c)
              for (std::size_t k0 = 0; k0 < e.kernel[0]; ++k0)
                for (std::size_t k1 = 0; k1 < e.kernel[1]; ++k1)
                  for (std::size_t k2 = 0; k2 < e.kernel[2]; ++k2) {
                    const std::size_t i0 = o0 * e.stride[0] + k0 - e.padding[0];  // wraps to a huge number below 0
                    const std::size_t i1 = o1 * e.stride[1] + k1 - e.padding[1];
                    const std::size_t i2 = o2 * e.stride[2] + k2 - e.padding[2];
                    if (i0 >= e.in[0] || i1 >= e.in[1] || i2 >= e.in[2]) continue;
                    body(((b * e.channels + c) * e.in[0] + i0) * e.in[1] * e.in[2] + i1 * e.in[2] + i2,
                         ((f * e.channels + c) * e.kernel[0] + k0) * e.kernel[1] * e.kernel[2] + k1 * e.kernel[2] + k2,
                         y);
                  }
}

/// Sums in float64, and the sums of magnitudes that bound the error.
struct Sums {
  explicit Sums(std::size_t count) : values(count), magnitudes(count) {}
  void add(std::size_t at, float a, float b) {
    values[at] += double{a} * double{b};
    magnitudes[at] += std::fabs(double{a} * double{b});
  }
  std::vector<double> values, magnitudes;
};

void expect_near(const Sums& wanted, std::span<const float> got, const std::string& what, float offset = 0) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], wanted.values[i] + double{offset}, 1e-5 * wanted.magnitudes[i] + 1e-6) << what << " at " << i;
  }
}

/// By both backends.
void expect_convolution(const std::string& name, const ConvolutionExtents& e) {
  const std::vector<float> x = random_values(x_size(e), 1);
  const std::vector<float> w = random_values(w_size(e), 2);
  const std::vector<float> grad_y = random_values(y_size(e), 3);
  Sums y(y_size(e));
  Sums grad_x(x_size(e));
  Sums grad_w(w_size(e));
  for_each_tap(e, [&](std::size_t at_x, std::size_t at_w, std::size_t at_y) {
    y.add(at_y, x[at_x], w[at_w]);
    grad_x.add(at_x, grad_y[at_y], w[at_w]);
    grad_w.add(at_w, grad_y[at_y], x[at_x]);
  });
  for (const Backend* backend : backends()) {
    const std::string what = std::string(backend->name) + ", " + name;
    std::vector<float> got_y(y_size(e), std::nanf(""));  // all of it is written
    convolve(e, x, w, got_y, *backend);
    expect_near(y, got_y, what + ", y");
    std::vector<float> got_x(x_size(e), std::nanf(""));
    convolve_backward_data(e, grad_y, w, got_x, *backend);
    expect_near(grad_x, got_x, what + ", grad_x");
    std::vector<float> got_w(w_size(e), 0.5f);  // added to what is there
    convolve_backward_weights(e, x, grad_y, got_w, *backend);
    expect_near(grad_w, got_w, what + ", grad_w", 0.5f);
  }
}

struct Case {
  std::string name;
  ConvolutionExtents extents;
};

std::vector<Case> cases() {
  using Extents = ConvolutionExtents;
  return {
      {"one value", Extents{1, 1, 1, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}}},
      {"one axis", Extents{2, 3, 5, {1, 1, 11}, {1, 1, 9}, {1, 1, 3}, {1, 1, 1}, {0, 0, 0}}},
      {"two axes", Extents{3, 3, 4, {1, 9, 11}, {1, 9, 11}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}}},
      {"channels of training", Extents{5, 16, 32, {1, 14, 14}, {1, 14, 14}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}}},
      {"one channel", Extents{4, 1, 16, {1, 28, 28}, {1, 28, 28}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}}},
      {"odd channels", Extents{3, 17, 19, {1, 7, 10}, {1, 5, 8}, {1, 3, 3}, {1, 1, 1}, {0, 0, 0}}},
      {"three axes", Extents{2, 3, 4, {5, 6, 7}, {3, 3, 4}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1}}},
      {"stride past the kernel", Extents{2, 4, 3, {1, 11, 13}, {1, 4, 5}, {1, 2, 2}, {1, 3, 3}, {0, 0, 0}}},
      {"blocked, stride past the kernel", Extents{2, 16, 16, {1, 11, 13}, {1, 4, 4}, {1, 1, 2}, {1, 3, 4}, {0, 0, 0}}},
      {"padding past the kernel", Extents{2, 3, 4, {1, 4, 5}, {1, 9, 10}, {1, 2, 2}, {1, 1, 1}, {0, 3, 3}}},
      {"blocked, padding past the kernel", Extents{2, 16, 32, {1, 4, 5}, {1, 11, 12}, {1, 2, 2}, {1, 1, 1}, {0, 4, 4}}},
      {"padding past everything", Extents{2, 3, 4, {1, 4, 5}, {1, 2, 2}, {1, 2, 2}, {1, 1, 1}, {0, 9, 9}}},
      {"larger output", Extents{2, 3, 4, {1, 5, 6}, {1, 8, 7}, {1, 3, 3}, {1, 1, 1}, {0, 0, 0}}},
      {"blocked, larger output", Extents{2, 16, 16, {1, 5, 6}, {1, 12, 17}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}}},
      {"smaller output", Extents{2, 3, 4, {1, 9, 10}, {1, 3, 2}, {1, 3, 3}, {1, 1, 1}, {0, 1, 0}}},
      {"blocked, smaller output", Extents{3, 16, 16, {1, 9, 10}, {1, 3, 2}, {1, 3, 3}, {1, 2, 2}, {0, 1, 1}}},
      {"three axes, other sizes", Extents{2, 16, 3, {4, 5, 6}, {7, 2, 9}, {2, 3, 1}, {1, 2, 1}, {1, 0, 2}}},
      {"kernel past the input", Extents{1, 2, 3, {1, 2, 3}, {1, 2, 2}, {1, 5, 4}, {1, 1, 1}, {0, 2, 1}}},
      {"large rows", Extents{1, 40, 3, {1, 3, 900}, {1, 3, 900}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}}},
  };
}

TEST(Convolution, FollowsTheDefinition) {
  for (const Case& c : cases()) expect_convolution(c.name, c.extents);
}

TEST(Convolution, FollowsTheDefinitionWhereThreadsShareIt) {
  const int before = thread_count();
  set_thread_count(4);
  using Extents = ConvolutionExtents;
  const Case shared[] = {
      {"samples", Extents{9, 8, 16, {1, 12, 12}, {1, 12, 12}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}}},
      {"filters of one sample", Extents{1, 50, 70, {1, 16, 16}, {1, 16, 16}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}}},
      {"filters of two samples", Extents{2, 50, 40, {1, 16, 16}, {1, 16, 16}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}}},
  };
  for (const Case& c : shared) expect_convolution(c.name, c.extents);
  set_thread_count(before);
}

TEST(Convolution, RepeatsBitForBit) {
  const ConvolutionExtents e{16, 8, 16, {1, 14, 14}, {1, 14, 14}, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}};
  const std::vector<float> x = random_values(x_size(e), 4);
  const std::vector<float> grad_y = random_values(y_size(e), 5);
  std::vector<float> first(w_size(e));
  convolve_backward_weights(e, x, grad_y, first);
  for (int run = 0; run < 5; ++run) {
    std::vector<float> again(w_size(e));
    convolve_backward_weights(e, x, grad_y, again);
    ASSERT_EQ(first, again);
  }
}

TEST(Convolution, SpansAndExtentsMustFit) {
  const ConvolutionExtents e{1, 1, 1, {1, 1, 4}, {1, 1, 3}, {1, 1, 2}, {1, 1, 1}, {0, 0, 0}};
  std::vector<float> x(4);
  std::vector<float> w(2);
  std::vector<float> y(3);
  EXPECT_NO_THROW(convolve(e, x, w, y));
  EXPECT_THROW(convolve(e, y, w, y), ShapeError);
  EXPECT_THROW(convolve_backward_data(e, y, x, x), ShapeError);
  EXPECT_THROW(convolve_backward_weights(e, x, x, w), ShapeError);
  ConvolutionExtents still = e;
  still.stride[2] = 0;
  EXPECT_THROW(convolve(still, x, w, y), ShapeError);
}

TEST(Convolution, NoSamplesNoChannels) {
  ConvolutionExtents e{0, 2, 3, {1, 1, 4}, {1, 1, 3}, {1, 1, 2}, {1, 1, 1}, {0, 0, 0}};
  std::vector<float> w(12);
  EXPECT_NO_THROW(convolve(e, {}, w, {}));
  e.batch = 1;
  e.channels = 0;
  std::vector<float> y(9, 1.0f);
  convolve(e, {}, {}, y);
  EXPECT_EQ(y, std::vector<float>(9, 0.0f));
}

}  // namespace
}  // namespace imago::math
