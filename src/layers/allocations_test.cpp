// A forward whose shapes repeat allocates nothing. Counts every allocation of the program while it looks.

#include <gtest/gtest.h>

#include "layers/layer_functions.h"
#include "testing/allocations.h"
#include "testing/gradient_check.h"

namespace imago::layers {
namespace {

int allocations_when_warm(Layer layer, const Tensor<float>& x) {
  testing::randomize_layer(layer, 1);
  LayerState state;
  layers::Run run;
  forward_layer(layer, x, nullptr, state, run);  // makes the packed matrix and the tensors
  return testing::fewest_allocations_of([&] { forward_layer(layer, x, nullptr, state, run); });
}

TEST(Allocations, CounterSeesThem) {
  EXPECT_GE(testing::allocations_of([] { Tensor<float> tensor(Shape{3, 3}); }), 1);
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
