#include "weights/views.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "imago/error.h"
#include "testing/copies.h"

namespace imago {
namespace {

using testing::copy;

WeightStore random_store(std::size_t rows, std::size_t cols) {
  WeightStore store(rows, cols);
  store.he_randomize(5, 2);
  return store;
}

Scheme with_scales(DType dtype, Granularity granularity, int group = 0) {
  Scheme scheme(dtype);
  scheme.granularity = granularity;
  scheme.group = group;
  return scheme;
}

/// All dtypes, also with a scale per row where they have one, some with groups, and block formats.
std::vector<Scheme> all_schemes() {
  std::vector<Scheme> schemes;
  for (const DTypeInfo& type : kDTypes) {
    schemes.push_back(type.id);
    if (is_scaled(type.id)) schemes.push_back(with_scales(type.id, Granularity::row));
  }
  for (const DType dtype : {DType::int8, DType::int4, DType::ternary, DType::binary}) {
    schemes.push_back(with_scales(dtype, Granularity::group, 32));
  }
  for (const BlockFormat block : {BlockFormat::q4_0, BlockFormat::q6_k}) schemes.push_back(block);
  return schemes;
}

std::string label(const Scheme& scheme, const MatrixSlice& slice) {
  return std::string(scheme.format.name()) + " granularity " + std::to_string(static_cast<int>(scheme.granularity)) +
         " slice " + std::to_string(slice.first) + " " + std::to_string(slice.rows) + " x " +
         std::to_string(slice.cols);
}

/// A product in panel layout against one in float64 with the decoded weights, within 1e-5 · Σ|x·w| + 1e-6.
void expect_product(const WeightStore& store, const Scheme& scheme, const MatrixSlice& slice) {
  const std::vector<float> weights = store.active(scheme);
  std::vector<float> x(2 * slice.cols);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(std::sin(static_cast<double>(i) * 1.7 + 0.3));
  std::vector<float> y(2 * slice.rows);
  host_matrix(store, scheme, slice)->multiply(x, 2, y);
  for (std::size_t t = 0; t < 2; ++t) {
    for (std::size_t r = 0; r < slice.rows; ++r) {
      double sum = 0;
      double magnitude = 0;
      for (std::size_t c = 0; c < slice.cols; ++c) {
        const double product =
            static_cast<double>(weights[slice.first + r * slice.cols + c]) * static_cast<double>(x[t * slice.cols + c]);
        sum += product;
        magnitude += std::abs(product);
      }
      ASSERT_NEAR(static_cast<double>(y[t * slice.rows + r]), sum, 1e-5 * magnitude + 1e-6)
          << label(scheme, slice) << " token " << t << " row " << r;
    }
  }
}

// ---- panel layouts

TEST(RunForm, MultipliesWithTheDecodedWeights) {
  const WeightStore store = random_store(4, 768);
  for (const Scheme& scheme : all_schemes()) {
    for (const MatrixSlice& slice : {
             MatrixSlice{0, 4, 768},     // everything
             MatrixSlice{768, 2, 768},   // rows of the store
             MatrixSlice{1536, 3, 256},  // another width; whole blocks and groups
             MatrixSlice{0, 7, 31},      // odd rows, which row scales and blocks cut
             MatrixSlice{3, 5, 64},      // from the middle of a byte, a group and a block
             MatrixSlice{765, 1, 9},     // over the border of two rows
             MatrixSlice{3071, 1, 1},    // the last weight
         }) {
      expect_product(store, scheme, slice);
    }
  }
}

TEST(RunForm, OfFlatArraysOfOddLength) {
  const WeightStore store = random_store(1, 13 * 7 + 7);
  for (const DTypeInfo& type : kDTypes) {
    expect_product(store, type.id, {0, 13, 7});
    expect_product(store, type.id, {13 * 7, 1, 7});
  }
}

TEST(RunForm, StaysPackedWhereKernelsCanReadIt) {
  const WeightStore store = random_store(4, 768);
  EXPECT_EQ(host_matrix(store, DType::int4, {3, 5, 64})->kernel().format, Format(DType::int4));
  EXPECT_EQ(host_matrix(store, BlockFormat::q4_0, {32, 5, 64})->kernel().format, Format(BlockFormat::q4_0));
  EXPECT_EQ(host_matrix(store, BlockFormat::q4_0, {3, 5, 64})->kernel().format, Format(DType::float32));
  const Scheme grouped = with_scales(DType::int8, Granularity::group, 32);
  EXPECT_EQ(host_matrix(store, grouped, {32, 5, 64})->kernel().format, Format(DType::int8));
  EXPECT_EQ(host_matrix(store, grouped, {3, 5, 64})->kernel().format, Format(DType::float32));
}

TEST(RunForm, TakesTheArithmeticAskedFor) {
  const WeightStore store = random_store(8, 64);
  const auto fast = host_matrix(store, DType::int8, {0, 8, 64}, kernels::Arithmetic::fast);
  EXPECT_EQ(fast->kernel().arithmetic, kernels::Arithmetic::fast);
  EXPECT_NE(fast, host_matrix(store, DType::int8, {0, 8, 64}));
}

TEST(RunForm, IsMadeOnceAndDroppedWithTheMaster) {
  for (const DType dtype : {DType::float32, DType::int8}) {
    WeightStore store = random_store(8, 64);
    const auto first = host_matrix(store, dtype, {0, 8, 64});
    EXPECT_EQ(host_matrix(store, dtype, {0, 8, 64}), first);
    EXPECT_NE(host_matrix(store, dtype, {0, 4, 64}), first) << "another slice";
    store.edit_master()[0] = 3;
    EXPECT_NE(host_matrix(store, dtype, {0, 8, 64}), first);
    expect_product(store, dtype, {0, 8, 64});
  }
}

TEST(RunForm, SlicesThatLeaveTheStoreAreShapeErrors) {
  const WeightStore store = random_store(4, 8);
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  EXPECT_THROW(host_matrix(store, DType::int8, {0, 5, 8}), ShapeError);
  EXPECT_THROW(host_matrix(store, DType::int8, {1, 4, 8}), ShapeError);
  EXPECT_THROW(host_matrix(store, DType::int8, {33, 1, 1}), ShapeError);
  EXPECT_THROW(host_matrix(store, DType::int8, {kMost, 1, 1}), ShapeError);
  EXPECT_THROW(host_matrix(store, DType::int8, {0, kMost, 2}), ShapeError);
  EXPECT_THROW(host_matrix(store, DType::int8, {0, 0, 8}), ShapeError);
  EXPECT_THROW(decoded_slice(store, DType::int8, 30, 3), ShapeError);
  std::vector<float> out(3);
  EXPECT_THROW(decode_slice(store, DType::int8, 30, out), ShapeError);
}

// ---- decoded weights

TEST(DecodedWeights, AreTheMasterForFloat32) {
  const WeightStore store = random_store(4, 8);
  EXPECT_EQ(decoded_weights(store, DType::float32).data(), store.master().data());
  EXPECT_EQ(decoded_slice(store, DType::float32, 5, 3).data(), store.master().data() + 5);
  EXPECT_EQ(store.bytes(), 4 * 8 * sizeof(float)) << "nothing is copied";
}

TEST(DecodedWeights, EqualActiveForEverySchemeAndOffset) {
  const WeightStore store = random_store(3, 256);
  for (const Scheme& scheme : all_schemes()) {
    const std::vector<float> wanted = store.active(scheme);
    EXPECT_EQ(copy(decoded_weights(store, scheme)), wanted) << scheme.format.name();
    for (const std::size_t first : {0u, 1u, 7u, 8u, 31u, 32u, 250u, 256u, 700u}) {
      for (const std::size_t count : {0u, 1u, 5u, 32u, 61u}) {
        const std::vector<float> part(wanted.begin() + first, wanted.begin() + first + count);
        std::vector<float> out(count);
        decode_slice(store, scheme, first, out);
        EXPECT_EQ(out, part) << scheme.format.name() << " from " << first;
        EXPECT_EQ(copy(decoded_slice(store, scheme, first, count)), part) << scheme.format.name() << " from " << first;
      }
    }
  }
}

TEST(DecodedWeights, RowsOfOddLengthWithScalesOfTheirOwn) {
  const WeightStore store = random_store(9, 13);
  for (const DTypeInfo& type : kDTypes) {
    if (!is_scaled(type.id)) continue;
    const Scheme scheme = with_scales(type.id, Granularity::row);
    const std::vector<float> wanted = store.active(scheme);
    std::vector<float> out(9 * 13 - 5);
    decode_slice(store, scheme, 5, out);
    EXPECT_EQ(out, std::vector<float>(wanted.begin() + 5, wanted.end())) << type.name;
  }
}

TEST(DecodedWeights, AreKeptUntilSomethingBelowThemChanges) {
  WeightStore store = random_store(4, 64);
  const auto at = [&](DType dtype) { return decoded_weights(store, dtype)[0]; };
  const float* const kept = decoded_weights(store, DType::int8).data();
  EXPECT_EQ(decoded_weights(store, DType::int8).data(), kept);

  store.set_scale(DType::int8, 1);
  EXPECT_EQ(at(DType::int8), store.active(DType::int8)[0]) << "the scale is another";
  store.set_master(std::vector<float>(4 * 64, 5.0f));
  EXPECT_EQ(at(DType::int8), 5.0f);
  store.edit_master()[0] = 7;
  EXPECT_EQ(at(DType::int8), 7.0f);
  store.apply_gradients(std::vector<float>(4 * 64, 1.0f), 2, 0, DType::int8);
  EXPECT_EQ(at(DType::int8), 5.0f);
  store.randomize(3, 40);
  EXPECT_EQ(at(DType::int8), store.active(DType::int8)[0]);
  store.set_loaded(DType::int8, std::vector<std::byte>(4 * 64, std::byte{3}), 2.0f);
  EXPECT_EQ(at(DType::int8), 6.0f);
}

TEST(DecodedWeights, OfAReleasedMaster) {
  WeightStore store = random_store(4, 64);
  const std::vector<float> wanted = store.active(DType::int4);
  store.release_master(DType::int4);
  EXPECT_EQ(copy(decoded_weights(store, DType::int4)), wanted);
  host_matrix(store, DType::int4, {0, 4, 64});
  EXPECT_FALSE(store.has_master()) << "nothing needs it";
}

TEST(DecodedWeights, AndRunFormsCountInBytes) {
  const WeightStore store = random_store(4, 64);
  const std::size_t before = store.bytes();
  store.morph(DType::int8);
  const std::size_t with_version = store.bytes();
  decoded_weights(store, DType::int8);
  EXPECT_EQ(store.bytes(), with_version + 4 * 64 * sizeof(float));
  const auto form = host_matrix(store, DType::int8, {0, 4, 64});
  EXPECT_EQ(store.bytes(), with_version + 4 * 64 * sizeof(float) + form->bytes());
  EXPECT_GT(with_version, before);
}

TEST(Views, AreMadeOnceForManyThreads) {
  const WeightStore store = random_store(64, 640);
  std::vector<std::shared_ptr<const kernels::RunMatrix>> forms(6);
  std::vector<const float*> decoded(6);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < forms.size(); ++i) {
    threads.emplace_back([&, i] {
      forms[i] = host_matrix(store, DType::int4, {0, 64, 640});
      decoded[i] = decoded_weights(store, DType::int4).data();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < forms.size(); ++i) {
    EXPECT_EQ(forms[i], forms[0]);
    EXPECT_EQ(decoded[i], decoded[0]);
  }
}

}  // namespace
}  // namespace imago
