// A forward whose shapes repeat allocates nothing. Counts every allocation of the program while it looks.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

#include "layers/layer_functions.h"
#include "testing/gradient_check.h"

namespace {
std::atomic<bool> counting{false};
std::atomic<int> allocations{0};
}  // namespace

// Not inlined: GCC would see `free` of what `new` gave, and complain.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (counting) ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace imago::layers {
namespace {

/// The fewest of some forwards: which thread of the pool takes which part is chance, and one that takes its first part
/// late makes its scratch memory late.
int allocations_when_warm(Layer layer, const Tensor<float>& x) {
  testing::randomize_layer(layer, 1);
  LayerState state;
  layers::Run run;
  forward_layer(layer, x, nullptr, state, run);  // makes the run form and the tensors
  int fewest = std::numeric_limits<int>::max();
  for (int i = 0; i < 10 && fewest != 0; ++i) {
    allocations = 0;
    counting = true;
    forward_layer(layer, x, nullptr, state, run);
    counting = false;
    fewest = std::min(fewest, static_cast<int>(allocations));
  }
  return fewest;
}

TEST(Allocations, CounterSeesThem) {
  allocations = 0;
  counting = true;
  Tensor<float> tensor(Shape{3, 3});
  counting = false;
  EXPECT_GE(allocations, 1);
}

TEST(Allocations, ForwardsThatRepeatMakeNone) {
  for (const DType dtype : {DType::float32, DType::int8, DType::int4}) {
    const auto in = [&](Layer layer) { return with_dtype(std::move(layer), dtype); };
    EXPECT_EQ(allocations_when_warm(in(dense(64, 48, Activation::gelu)), Tensor<float>(Shape{3, 64})), 0);
    EXPECT_EQ(allocations_when_warm(in(dense(64, 48)), Tensor<float>(Shape{1, 2, 32})), 0);
    EXPECT_EQ(allocations_when_warm(in(rms_norm(64)), Tensor<float>(Shape{3, 64})), 0);
    EXPECT_EQ(allocations_when_warm(in(layer_norm(64)), Tensor<float>(Shape{3, 64})), 0);
    EXPECT_EQ(allocations_when_warm(in(embedding(9, 7)), Tensor<float>(Shape{2, 3})), 0);
    EXPECT_EQ(allocations_when_warm(in(rnn(32, 64, 3)), Tensor<float>(Shape{2, 3, 32})), 0);
    EXPECT_EQ(allocations_when_warm(in(lstm(32, 64, 3)), Tensor<float>(Shape{2, 3, 32})), 0);
    EXPECT_EQ(
        allocations_when_warm(in(sequential(layer_list(dense(64, 64, Activation::tanh), residual(), rms_norm(64)))),
                              Tensor<float>(Shape{3, 64})),
        0);
    EXPECT_EQ(allocations_when_warm(in(parallel("concat", layer_list(dense(64, 3), dense(64, 2)))),
                                    Tensor<float>(Shape{3, 64})),
              0);
    EXPECT_EQ(allocations_when_warm(in(mixture(dense(64, 2), layer_list(dense(64, 3), dense(64, 3)))),
                                    Tensor<float>(Shape{3, 64})),
              0);
    EXPECT_EQ(allocations_when_warm(in(metacognition(dense(64, 3), {MetaRule{1, 1e9, 90, 0, 0, true}})),
                                    Tensor<float>(Shape{3, 64})),
              0);
    EXPECT_EQ(allocations_when_warm(in(attention({.width = 64, .heads = 4})), Tensor<float>(Shape{2, 9, 64})), 0);
    EXPECT_EQ(allocations_when_warm(in(swiglu(64, 96)), Tensor<float>(Shape{3, 64})), 0);
    EXPECT_EQ(allocations_when_warm(in(kmeans(64, 5)), Tensor<float>(Shape{3, 64})), 0);
  }
  for (const SoftmaxType type :
       {SoftmaxType::standard, SoftmaxType::gumbel, SoftmaxType::sparse, SoftmaxType::entmax}) {
    EXPECT_EQ(allocations_when_warm(softmax(type), Tensor<float>(Shape{3, 64})), 0);
  }
}

}  // namespace
}  // namespace imago::layers
