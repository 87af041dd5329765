// Master and versions: who makes, keeps and drops what.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "imago/error.h"
#include "imago/weights.h"
#include "testing/copies.h"

namespace imago {
namespace {

using testing::bytes_of;
using testing::copy;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

WeightStore store_of(const std::vector<float>& weights, std::size_t rows = 1) {
  WeightStore store(rows, weights.size() / rows);
  store.set_master(weights);
  return store;
}

std::vector<float> random_weights(std::size_t count, std::uint64_t seed = 1) {
  WeightStore store(count);
  store.he_randomize(seed, 2);
  return copy(store.master());
}

/// What remains of a weight, by the definition of its type.
float rounded(float w, DType dtype, const AsymmetricScale& by) {
  return visit(dtype, [&]<class T>(std::type_identity<T>) {
    return dequantize_value<T>(quantize_value<T>(w, by.scale, by.zero_point), by.scale, by.zero_point);
  });
}

Scheme grouped(DType dtype, int group, Calibrator calibrator = Calibrator::absmax) {
  Scheme scheme(dtype);
  scheme.granularity = Granularity::group;
  scheme.group = group;
  scheme.calibrator = calibrator;
  return scheme;
}

// ---- master

TEST(WeightStore, StartsAsAZeroMaster) {
  const WeightStore store(3, 5);
  EXPECT_EQ(store.rows(), 3u);
  EXPECT_EQ(store.cols(), 5u);
  EXPECT_EQ(store.count(), 15u);
  EXPECT_TRUE(store.has_master());
  EXPECT_EQ(copy(store.master()), std::vector<float>(15));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(store.master().data()) % 64, 0u);
  EXPECT_EQ(store.bytes(), 60u);
  EXPECT_EQ(WeightStore(7).rows(), 1u);
}

TEST(WeightStore, SizesThatOverflowAreShapeErrors) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  EXPECT_THROW(WeightStore(kMost, 2), ShapeError);
  EXPECT_THROW(WeightStore(1, kMost / 2), ShapeError) << "the count fits, its bytes do not";
}

TEST(WeightStore, SetMasterDropsVersionsAndChecksTheLength) {
  WeightStore store = store_of({1, -2, 3, 4});
  const auto before = store.morph(DType::int8);
  EXPECT_THROW(store.set_master(std::vector<float>(3)), ShapeError);
  EXPECT_EQ(store.find(DType::int8), before) << "a refused change changes nothing";
  store.set_master(std::vector<float>{8, 0, 0, 0});
  EXPECT_EQ(store.find(DType::int8), nullptr);
  EXPECT_EQ(store.scale(DType::int8), 1.0f);
  EXPECT_EQ(store.morph(DType::int8)->scale(), 8.0f / 127) << "a derived scale is derived anew [D12]";
  EXPECT_EQ(before->scale(), 4.0f / 127) << "who holds a version keeps it as it was";
}

TEST(WeightStore, SetMasterFromItselfIsHarmless) {
  WeightStore store = store_of({1, -2, 3, 4});
  store.set_master(store.master());
  EXPECT_EQ(copy(store.master()), (std::vector<float>{1, -2, 3, 4}));
}

TEST(WeightStore, EditMasterDropsVersions) {
  WeightStore store = store_of({1, -2, 3, 4});
  store.morph(DType::int8);
  store.edit_master()[0] = -16;
  EXPECT_EQ(store.find(DType::int8), nullptr);
  EXPECT_EQ(store.master()[0], -16.0f);
  EXPECT_EQ(store.morph(DType::int8)->scale(), 16.0f / 127);
}

TEST(WeightStore, MovesWithEverythingInIt) {
  WeightStore store = store_of({1, -2, 3, 4});
  const auto version = store.morph(DType::int4);
  WeightStore moved = std::move(store);
  EXPECT_EQ(moved.find(DType::int4), version);
  WeightStore other(1);
  other = std::move(moved);
  EXPECT_EQ(other.count(), 4u);
  EXPECT_EQ(other.find(DType::int4), version);
}

// ---- versions

TEST(Morph, PacksKnownCodes) {
  EXPECT_EQ(copy(store_of({1, -1, 7}).morph(DType::int4)->codes()), bytes_of({0x1F, 0x70}));
  EXPECT_EQ(copy(store_of({1, -1, 0, 1, -1}).morph(DType::ternary)->codes()), bytes_of({0x71, 0xC0}));
  EXPECT_EQ(copy(store_of({1, -1, -1, 1, 1, -1, 1, 1, 1}).morph(DType::binary)->codes()), bytes_of({0x9B, 0x80}));
}

TEST(Morph, PacksAcrossRows) {
  // Rows of 3 nibbles: the second row starts in the middle of a byte.
  const WeightStore store = store_of({1, 2, 3, 4, 5, 7}, 2);
  EXPECT_EQ(copy(store.morph(DType::int4)->codes()), bytes_of({0x12, 0x34, 0x57}));
}

TEST(Morph, EveryTypeQuantizesLikeItsDefinition) {
  const std::vector<float> weights = random_weights(1001);
  const WeightStore store = store_of(weights);
  for (const DTypeInfo& type : kDTypes) {
    const std::vector<float> active = store.active(type.id);
    const AsymmetricScale by{store.scale(type.id), store.zero_point(type.id)};
    EXPECT_EQ(by, derive_asymmetric_scale(type.id, weights)) << type.name;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      ASSERT_EQ(active[i], rounded(weights[i], type.id, by)) << type.name << " weight " << i;
    }
  }
}

TEST(Morph, KeepsOneScalePerVersion) {
  const WeightStore store = store_of({0.5f, -2, 1, 0});
  EXPECT_EQ(store.morph(DType::int8)->scale(), 2.0f / 127);
  EXPECT_EQ(store.morph(DType::int4)->scale(), 2.0f / 7) << "not the scale of the first morph [D11]";
  EXPECT_EQ(store.scale(DType::int8), 2.0f / 127);
  EXPECT_EQ(store.scale(DType::int4), 2.0f / 7);
}

TEST(Morph, MakesAVersionOnce) {
  const WeightStore store = store_of({1, -2, 3, 4});
  EXPECT_EQ(store.find(DType::int8), nullptr);
  const auto version = store.morph(DType::int8);
  EXPECT_EQ(store.morph(DType::int8), version);
  EXPECT_EQ(store.find(DType::int8), version);
  EXPECT_EQ(version->scheme(), Scheme(DType::int8));
  EXPECT_EQ(version->count(), 4u);
  EXPECT_EQ(version->scale_group(), 4u);
  EXPECT_FALSE(version->has_explicit_scale());
}

TEST(Morph, SchemesDifferInAllTheyRead) {
  const WeightStore store = store_of(random_weights(256), 2);
  Scheme percentile(DType::int4);
  percentile.calibrator = Calibrator::percentile;
  percentile.percentile = 0.9;
  Scheme higher = percentile;
  higher.percentile = 0.95;
  Scheme row(DType::int4);
  row.granularity = Granularity::row;
  const std::vector<Scheme> schemes{
      DType::int4, percentile, higher, row, grouped(DType::int4, 32), grouped(DType::int4, 64)};
  for (const Scheme& a : schemes) {
    for (const Scheme& b : schemes) EXPECT_EQ(store.morph(a) == store.morph(b), &a == &b);
  }
  Scheme unread(DType::int4);
  unread.percentile = 0.5;
  EXPECT_EQ(store.morph(unread), store.morph(DType::int4)) << "absmax reads no percentile";
}

TEST(Morph, Float32IsTheMaster) {
  const WeightStore store = store_of({1, -2, 3, kInfinity});
  EXPECT_EQ(store.morph(DType::float32), nullptr);
  EXPECT_EQ(store.find(DType::float32), nullptr);
  EXPECT_EQ(store.active(DType::float32), copy(store.master()));
  EXPECT_EQ(store.bytes(), 16u);
}

TEST(Morph, GroupScalesAreAppliedToTheirGroup) {
  std::vector<float> weights = random_weights(4 * 64);
  for (std::size_t i = 64; i < 128; ++i) weights[i] *= 1000;
  const WeightStore store = store_of(weights, 4);
  const Scheme scheme = grouped(DType::int8, 32, Calibrator::mse);
  const auto version = store.morph(scheme);
  ASSERT_EQ(version->scales().size(), 8u);
  EXPECT_EQ(version->scale_group(), 32u);
  const std::vector<float> active = store.active(scheme);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float scale = derive_mse_scale(DType::int8, std::span(weights).subspan(i / 32 * 32, 32));
    EXPECT_EQ(active[i], simulate_precision(weights[i], DType::int8, scale)) << i;
  }
}

TEST(Morph, AbsmeanTernary) {
  Scheme absmean(DType::ternary);
  absmean.calibrator = Calibrator::absmean;
  const WeightStore store = store_of({1, -0.2f, 0.6f, -2.2f});  // mean|w| = 1
  EXPECT_EQ(store.active(absmean), (std::vector<float>{1, 0, 1, -1}));
  EXPECT_EQ(store.active(DType::ternary), (std::vector<float>{0, 0, 0, -2.2f}));
  absmean.format = DType::int2;
  EXPECT_THROW(store.morph(absmean), UsageError);
}

TEST(Morph, SchemesWithoutMeaningOrFitAreRefused) {
  const WeightStore store = store_of(std::vector<float>(96), 2);  // rows of 48
  EXPECT_THROW(store.morph(grouped(DType::int4, 33)), UsageError);
  EXPECT_THROW(store.morph(grouped(DType::float32, 32)), UsageError);
  EXPECT_THROW(store.morph(grouped(DType::int4, 32)), ShapeError);
  EXPECT_THROW(store.find(grouped(DType::int4, 33)), UsageError);
  EXPECT_EQ(store.bytes(), 96 * sizeof(float));
}

TEST(Morph, NanAndInfinity) {
  const WeightStore store = store_of({std::nanf(""), kInfinity, -kInfinity, 2});
  EXPECT_EQ(store.active(DType::int8), (std::vector<float>{0, 127, -128, 2})) << "no finite scale: 1, values saturate";
  EXPECT_EQ(store.active(DType::binary), (std::vector<float>{-1, 1, -1, 1}));
  EXPECT_EQ(store_of({std::nanf(""), -4}).active(DType::int2), (std::vector<float>{0, -4}));
}

TEST(ForceMorph, MakesTheVersionAnew) {
  WeightStore store = store_of({1, -2, 3, 4});
  const auto old = store.morph(DType::int8);
  const auto other = store.morph(DType::int4);
  const auto fresh = store.force_morph(DType::int8);
  EXPECT_NE(fresh, old);
  EXPECT_EQ(copy(fresh->codes()), copy(old->codes()));
  EXPECT_EQ(store.find(DType::int4), other) << "other versions stay";
  EXPECT_EQ(store.force_morph(DType::float32), nullptr);
}

TEST(Version, DecodeChecksTheLength) {
  const WeightStore store = store_of({1, -2, 3, 4});
  std::vector<float> three(3);
  EXPECT_THROW(store.morph(DType::int8)->decode_into(three), ShapeError);
}

TEST(Version, BytesArePackedBytes) {
  const WeightStore store = store_of(std::vector<float>(64 * 1024, 1.0f));
  EXPECT_EQ(store.morph(DType::int4)->bytes(), 32 * 1024 + 4u);
  EXPECT_EQ(store.morph(grouped(DType::ternary, 64))->bytes(), 16 * 1024 + 4 * 1024u);
  EXPECT_EQ(store.morph(DType::float16)->bytes(), 128 * 1024u);
  EXPECT_EQ(store.bytes(), 256 * 1024 + 32 * 1024 + 4 + 20 * 1024 + 128 * 1024u);
}

// ---- unpack and release

TEST(Unpack, OverwritesTheMasterAndKeepsThatVersion) {
  const std::vector<float> weights = random_weights(100);
  WeightStore store = store_of(weights);
  const auto version = store.morph(DType::int4);
  store.morph(DType::int8);
  const std::vector<float> active = store.active(DType::int4);
  store.unpack(DType::int4);
  EXPECT_TRUE(store.has_master());
  EXPECT_EQ(copy(store.master()), active);
  EXPECT_NE(active, weights);
  EXPECT_EQ(store.find(DType::int4), version);
  EXPECT_EQ(store.find(DType::int8), nullptr);
}

TEST(ReleaseMaster, LeavesOneVersionAndUnpacksOnDemand) {
  WeightStore store = store_of(random_weights(1000));
  store.morph(DType::int8);
  const std::vector<float> active = store.active(DType::int4);
  store.release_master(DType::int4);
  EXPECT_FALSE(store.has_master());
  EXPECT_EQ(store.bytes(), 500 + 4u);
  EXPECT_EQ(store.find(DType::int8), nullptr);
  EXPECT_EQ(store.active(DType::int4), active);
  EXPECT_FALSE(store.has_master()) << "running the released form needs no master";

  EXPECT_EQ(copy(store.master()), active);
  EXPECT_TRUE(store.has_master());
  store.release_master(DType::int4);
  EXPECT_FALSE(store.has_master());
  EXPECT_EQ(store.morph(DType::int8)->scale(), derive_scale(DType::int8, active)) << "morphs from the unpacked master";
}

TEST(ReleaseMaster, EveryWriteWorksOnAReleasedStore) {
  const std::vector<float> weights = random_weights(40);
  const auto released = [&] {
    WeightStore store = store_of(weights);
    store.release_master(DType::int8);
    return store;
  };
  const std::vector<float> active = store_of(weights).active(DType::int8);
  {
    WeightStore store = released();
    EXPECT_EQ(copy(store.edit_master()), active);
    EXPECT_EQ(store.find(DType::int8), nullptr);
  }
  {
    WeightStore store = released();
    store.set_master(weights);
    EXPECT_EQ(copy(store.master()), weights);
    EXPECT_EQ(store.find(DType::int8), nullptr);
  }
  {
    WeightStore store = released();
    store.randomize(1, 0.5f);
    EXPECT_TRUE(store.has_master());
  }
  {
    WeightStore store = released();
    store.set_scale(DType::int8, 0.5f);
    EXPECT_EQ(store.bytes(), 40 * sizeof(float)) << "the master alone, now";
    EXPECT_EQ(copy(store.master()), active);
  }
  {
    WeightStore store = released();
    store.clear_scale(DType::int8);
    EXPECT_EQ(store.bytes(), 40 * sizeof(float)) << "the master alone, now";
    EXPECT_EQ(copy(store.master()), active);
  }
  {
    WeightStore store = released();
    EXPECT_EQ(store.force_morph(DType::int8)->count(), 40u);
    EXPECT_EQ(copy(store.master()), active);
  }
  {
    WeightStore store = released();
    store.apply_gradients(std::vector<float>(40, 1.0f), 0.5f, 0, DType::int8);
    EXPECT_EQ(store.master()[3], active[3] - 0.5f);
  }
  {
    WeightStore store = released();
    store.release_master(DType::int4);
    EXPECT_EQ(store.find(DType::int8), nullptr);
    EXPECT_EQ(store.active(DType::int4), store_of(active).active(DType::int4));
  }
}

TEST(ReleaseMaster, Float32KeepsTheMaster) {
  WeightStore store = store_of({1, -2, 3, 4});
  const std::vector<float> active = store.active(DType::int2);
  store.release_master(DType::float32);
  EXPECT_TRUE(store.has_master());
  EXPECT_EQ(store.find(DType::int2), nullptr);
  store.release_master(DType::int2);
  store.release_master(DType::float32);
  EXPECT_EQ(copy(store.master()), active);
  EXPECT_EQ(store.bytes(), 16u);
}

// ---- random weights and training

TEST(Randomize, RepeatsAndDropsVersions) {
  WeightStore a(100), b(100);
  a.morph(DType::int8);
  a.randomize(5, 0.1f);
  b.randomize(5, 0.1f);
  EXPECT_EQ(a.find(DType::int8), nullptr);
  EXPECT_EQ(copy(a.master()), copy(b.master()));
  EXPECT_TRUE(std::ranges::all_of(a.master(), [](float w) { return std::fabs(w) <= 0.1f; }));
  b.randomize(6, 0.1f);
  EXPECT_NE(copy(a.master()), copy(b.master()));
  a.randomize(5, 0);
  EXPECT_TRUE(std::ranges::all_of(a.master(), [](float w) { return w == 0; }));
}

TEST(Randomize, RefusesImpossibleRanges) {
  WeightStore store = store_of({1, 2});
  for (const float range : {-0.1f, std::nanf(""), kInfinity})
    EXPECT_THROW(store.randomize(1, range), UsageError) << range;
  EXPECT_THROW(store.he_randomize(1, 0), UsageError);
  EXPECT_EQ(copy(store.master()), (std::vector<float>{1, 2}));
}

TEST(HeRandomize, HasTheDeviationOfItsFanIn) {
  WeightStore store(100'000);
  store.morph(DType::int8);
  store.he_randomize(1, 200);
  EXPECT_EQ(store.find(DType::int8), nullptr);
  double square = 0;
  for (const float w : store.master()) square += static_cast<double>(w) * static_cast<double>(w);
  EXPECT_NEAR(std::sqrt(square / 100'000), 0.1, 0.001);
}

TEST(ApplyGradients, SubtractsClippedSteps) {
  WeightStore store = store_of({1, 1, 1, 1});
  store.apply_gradients(std::vector<float>{0.5f, -3, 3, 0}, 0.5f, 2.0f, DType::int8);
  EXPECT_EQ(copy(store.master()), (std::vector<float>{0.75f, 2, 0, 1}));
  store.apply_gradients(std::vector<float>{0, -3, 0, 0}, 0.5f, 0, DType::int8);
  EXPECT_EQ(store.master()[1], 3.5f) << "a clip of 0 clips nothing";
}

TEST(ApplyGradients, DropsAllAndMorphsTheOne) {
  WeightStore store = store_of({1, -2, 3, 4});
  store.morph(DType::int4);
  const auto old = store.morph(DType::int8);
  store.apply_gradients(std::vector<float>{0, 0, 0, -4}, 1, 0, DType::int8);
  EXPECT_EQ(store.find(DType::int4), nullptr);
  ASSERT_NE(store.find(DType::int8), nullptr);
  EXPECT_NE(store.find(DType::int8), old);
  EXPECT_EQ(store.scale(DType::int8), 8.0f / 127) << "a derived scale is derived anew [D12]";
}

TEST(ApplyGradients, NegativeMastersBecomeZeroForUnsignedTypesWithoutZeroPoints) {
  const std::vector<float> gradient{2, 0, -100};
  for (const DTypeInfo& type : kDTypes) {
    const bool is_unsigned = type.kind == NumberKind::unsigned_integer;
    // No cap above: the range may grow [D36].
    const std::vector<float> limited{0, 0, 101}, all{-1, -5, 101};
    const auto after = [&](const Scheme& scheme, auto prepare) {
      WeightStore store = store_of({1, -5, 1});
      prepare(store);
      store.apply_gradients(gradient, 1, 0, scheme);
      return copy(store.master());
    };
    const auto nothing = [](WeightStore&) {};
    EXPECT_EQ(after(type.id, nothing), all) << type.name;
    Scheme original(type.id);
    original.zero_points = false;
    EXPECT_EQ(after(original, nothing), is_unsigned ? limited : all) << type.name;
    const auto fixed = [&](WeightStore& store) { store.set_scale(type.id, 0.5f); };
    EXPECT_EQ(after(type.id, fixed), is_unsigned ? limited : all) << type.name << ", as a file of the original has it";
    if (!is_unsigned) continue;
    const auto shifted = [&](WeightStore& store) { store.set_scale(type.id, 0.5f, 2); };
    EXPECT_EQ(after(type.id, shifted), all) << type.name;
  }
}

TEST(ApplyGradients, RefusesBeforeItChangesAnything) {
  WeightStore store = store_of({1, -2, 3, 4});
  const auto version = store.morph(DType::int8);
  EXPECT_THROW(store.apply_gradients(std::vector<float>(3), 1, 0, DType::int8), ShapeError);
  EXPECT_THROW(store.apply_gradients(std::vector<float>(4, 1.0f), 1, 0, grouped(DType::int4, 32)), ShapeError);
  EXPECT_THROW(store.apply_gradients(std::vector<float>(4, 1.0f), 1, 0, grouped(DType::int4, 5)), UsageError);
  EXPECT_EQ(copy(store.master()), (std::vector<float>{1, -2, 3, 4}));
  EXPECT_EQ(store.find(DType::int8), version);
}

// ---- sizes at the edge

TEST(WeightStore, EmptyStoresWork) {
  for (const auto& [rows, cols] : {std::pair{0u, 0u}, std::pair{0u, 64u}, std::pair{3u, 0u}}) {
    WeightStore store(rows, cols);
    store.randomize(1, 1);
    store.he_randomize(1, 1);
    EXPECT_TRUE(store.master().empty());
    for (const DTypeInfo& type : kDTypes) {
      EXPECT_TRUE(store.active(type.id).empty()) << type.name;
      store.apply_gradients({}, 1, 1, type.id);
      store.unpack(type.id);
      EXPECT_EQ(store.distortion(type.id).cosine, 1) << type.name;
      store.set_loaded(type.id, {}, 0.5f);
      EXPECT_EQ(store.scale(type.id), 0.5f);
    }
    EXPECT_TRUE(store.active(grouped(DType::int4, 32)).empty());
  }
}

TEST(WeightStore, OneWeightWorks) {
  WeightStore store = store_of({-0.75f});
  for (const DTypeInfo& type : kDTypes) {
    const float expected = rounded(-0.75f, type.id, derive_asymmetric_scale(type.id, store.master()));
    EXPECT_EQ(store.active(type.id), std::vector<float>{expected}) << type.name;
  }
  EXPECT_THROW(store.morph(grouped(DType::int4, 32)), ShapeError);
}

TEST(WeightStore, DistortionComparesWithTheMaster) {
  const WeightStore store = store_of(random_weights(100'000));  // standard deviation 1
  // Rounding to steps of s adds noise of power s²/12 that has nothing to do with the weights.
  const auto cosine_of_step = [](float s) {
    return 1 / std::sqrt(1 + static_cast<double>(s) * static_cast<double>(s) / 12);
  };
  for (const auto& [dtype, tolerance] : {std::pair{DType::int8, 2e-6}, std::pair{DType::int4, 1e-3}}) {
    const double cosine = store.distortion(dtype).cosine;
    EXPECT_NEAR(cosine, cosine_of_step(store.scale(dtype)), tolerance) << name(dtype);
  }
  EXPECT_NEAR(store.distortion(DType::binary).cosine, std::sqrt(2 / 3.14159265), 0.002);  // E|w| of a normal
  EXPECT_EQ(store.distortion(DType::float32).rmse, 0);
}

TEST(WeightStore, TheHostIsNoAccelerator) {
  WeightStore store(2, 3);
  store.randomize(1, 1);
  EXPECT_THROW(store.sync_to(host_device(), DType::int8), UsageError);
  EXPECT_THROW(store.dequantized_for(nullptr, DType::int8), UsageError);
  EXPECT_THROW(store.release_host(host_device(), DType::int8), UsageError);
  EXPECT_EQ(store.device_bytes(*host_device()), 0u);
  store.release_device(*host_device());
  EXPECT_TRUE(store.has_master());
}

TEST(WeightStoreVersions, CodesAreSpansOfTheirType) {
  WeightStore store = store_of({1, -0.5f, 0.25f});
  store.set_scale(DType::int8, 0.25f);
  const auto version = store.morph(DType::int8);
  const std::span<const std::int8_t> codes = version->codes<std::int8_t>();
  EXPECT_EQ(std::vector<int>(codes.begin(), codes.end()), (std::vector<int>{4, -2, 1}));
  EXPECT_THROW(version->codes<std::uint8_t>(), UsageError);
  EXPECT_THROW(version->codes<float>(), UsageError);
  const auto halves = store.morph(DType::float16);
  EXPECT_EQ(halves->codes<Half>()[1].bits, 0xB800);
  EXPECT_EQ(store.morph(DType::float64)->codes<double>()[2], 0.25);
  EXPECT_EQ(store.morph(DType::int64)->codes<std::int64_t>().size(), 3u);
}

TEST(WeightStoreVersions, CanBeListedAndDropped) {
  WeightStore store = store_of(random_weights(64));
  EXPECT_TRUE(store.versions().empty());
  const auto int4 = store.morph(DType::int4), grouped_int8 = store.morph(grouped(DType::int8, 32));
  EXPECT_EQ(store.versions().size(), 2u);
  store.drop(DType::int4);
  ASSERT_EQ(store.versions().size(), 1u);
  EXPECT_EQ(store.versions()[0], grouped_int8);
  EXPECT_EQ(store.find(DType::int4), nullptr);
  EXPECT_TRUE(std::ranges::equal(store.morph(DType::int4)->codes(), int4->codes())) << "made again";
  const std::vector<float> decoded = store.active(DType::int4);
  store.release_master(DType::int4);
  store.drop(DType::int4);
  EXPECT_TRUE(store.versions().empty());
  EXPECT_EQ(copy(store.master()), decoded) << "the only source of the master is not lost";
}

TEST(WeightStoreCopy, IsIndependentAndWhole) {
  WeightStore store = store_of(random_weights(64), 4);
  store.set_scale(DType::int8, 0.5f);
  const auto version = store.morph(DType::int4);
  WeightStore twin = store.copy();
  EXPECT_EQ(twin.rows(), 4u);
  EXPECT_EQ(copy(twin.master()), copy(store.master()));
  EXPECT_EQ(twin.find(DType::int4), version);
  EXPECT_EQ(twin.explicit_scale(DType::int8), 0.5f);
  twin.edit_master()[0] = 7;
  EXPECT_NE(store.master()[0], 7);
  EXPECT_NE(store.find(DType::int4), nullptr);
  store.release_master(DType::int4);
  const WeightStore served = store.copy();
  EXPECT_FALSE(served.has_master());
  EXPECT_EQ(copy(served.master()), copy(store.master()));
}

TEST(WeightStoreScales, OfRowsAndGroupsCanBeFixed) {
  WeightStore store = store_of({1, 2, 3, 4}, 2);
  Scheme rows(DType::int8);
  rows.granularity = Granularity::row;
  store.set_scales(rows, std::vector<float>{0.5f, 2});
  EXPECT_EQ(store.active(rows), (std::vector<float>{1, 2, 4, 4}));
  store.set_master(std::vector<float>{3, 3, 3, 6});
  EXPECT_EQ(store.active(rows), (std::vector<float>{3, 3, 4, 6})) << "kept through changes of the master";
  EXPECT_THROW(store.set_scales(rows, std::vector<float>{1}), ShapeError);
  EXPECT_THROW(store.set_scales(rows, std::vector<float>{1, -1}), UsageError);
}

TEST(WeightStoreGradients, HaveAShortForm) {
  WeightStore store = store_of({1, -1});
  store.apply_gradients(std::vector<float>{2, -4}, 0.5f);
  EXPECT_EQ(copy(store.master()), (std::vector<float>{0, 1}));
}

// ---- zero points

TEST(ZeroPoints, UnsignedVersionsAreAsGoodAsSignedOnes) {
  const std::vector<float> weights = random_weights(64 * 96);
  const WeightStore store = store_of(weights, 64);
  const std::pair<DType, DType> kPairs[] = {{DType::uint64, DType::int64}, {DType::uint32, DType::int32},
                                            {DType::uint16, DType::int16}, {DType::uint8, DType::int8},
                                            {DType::uint4, DType::int4},   {DType::uint2, DType::int2}};
  for (const auto& [without_sign, with_sign] : kPairs) {
    for (const Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::group}) {
      Scheme scheme(without_sign);
      scheme.granularity = granularity;
      scheme.group = granularity == Granularity::group ? 32 : 0;
      scheme.calibrator = Calibrator::mse;
      const double got = store.distortion(scheme).relative_rmse;
      scheme.format = with_sign;
      // Of 32 and 64 bits those with a sign have twice as many codes.
      EXPECT_LE(got, (bits(with_sign) < 32 ? 1.05 : 2.1) * store.distortion(scheme).relative_rmse)
          << name(without_sign);
    }
    EXPECT_LT(store.morph(without_sign)->zero_point(), info(without_sign).scale_divisor);
    EXPECT_GT(store.morph(without_sign)->zero_point(), 0);
  }
}

TEST(ZeroPoints, BelongToTheScaleThatWasSet) {
  WeightStore store = store_of({-1, 0, 2.5f});
  store.set_scale(DType::uint8, 0.5f, 10);
  const auto version = store.morph(DType::uint8);
  EXPECT_EQ(copy(version->codes()), bytes_of({8, 10, 15}));
  EXPECT_EQ(store.active(DType::uint8), (std::vector<float>{-1, 0, 2.5f}));
  EXPECT_EQ(store.zero_point(DType::uint8), 10);
  EXPECT_TRUE(version->has_explicit_scale());
  EXPECT_EQ(version->bytes(), 3 + 2 * sizeof(float));
  store.edit_master()[0] = -20;
  EXPECT_EQ(store.active(DType::uint8)[0], -5) << "saturates at code 0";
  EXPECT_EQ(store.copy().zero_point(DType::uint8), 10);
  store.clear_scale(DType::uint8);
  EXPECT_EQ(store.zero_point(DType::uint8), 0) << "nothing is known until it is derived";
  store.set_scale(DType::uint8, 0.5f);
  EXPECT_EQ(store.active(DType::uint8), (std::vector<float>{0, 0, 2.5f})) << "a scale alone has a zero point of 0";
  EXPECT_TRUE(store.morph(DType::uint8)->zero_points().empty());
}

TEST(ZeroPoints, MustBeCodesOfTheType) {
  WeightStore store = store_of({-1, 0, 2.5f});
  for (const float zero : {-1.0f, 0.5f, 256.0f, std::nanf(""), kInfinity}) {
    EXPECT_THROW(store.set_scale(DType::uint8, 1, zero), UsageError) << zero;
    EXPECT_THROW(store.set_loaded(DType::uint8, bytes_of({0, 0, 0}), 1, zero), UsageError) << zero;
  }
  EXPECT_THROW(store.set_scale(DType::int8, 1, 1), UsageError) << "types with a sign have none";
  EXPECT_THROW(store.set_scale(DType::float32, 1, 1), UsageError);
  EXPECT_THROW(store.set_scales(DType::uint8, std::vector<float>{1}, std::vector<float>{1, 2}), ShapeError);
  EXPECT_EQ(copy(store.master()), (std::vector<float>{-1, 0, 2.5f}));
  EXPECT_EQ(store.explicit_scale(DType::uint8), std::nullopt);
}

TEST(ZeroPoints, OfTheOriginalsFilesAre0) {
  WeightStore store(3);
  store.set_loaded(DType::uint8, bytes_of({0, 100, 255}), 0.5f);
  EXPECT_EQ(copy(store.master()), (std::vector<float>{0, 50, 127.5f}));
  EXPECT_TRUE(store.loses_negatives(DType::uint8));
  EXPECT_FALSE(store.loses_negatives(DType::int8));
  store.set_loaded(DType::uint8, bytes_of({0, 100, 255}), 0.5f, 100);
  EXPECT_EQ(copy(store.master()), (std::vector<float>{-50, 0, 77.5f}));
  EXPECT_FALSE(store.loses_negatives(DType::uint8));
}

TEST(ZeroPoints, ASchemeWithoutThemLosesWhatIsNegative) {
  const WeightStore store = store_of({-1, 0.5f, 2});
  Scheme original(DType::uint8);
  original.zero_points = false;
  EXPECT_EQ(store.active(original)[0], 0);
  EXPECT_EQ(store.morph(original)->scale(), 2.0f / 255);
  EXPECT_NEAR(store.active(DType::uint8)[0], -1, 3.0 / 255);
  Scheme signed_type(DType::int8);
  signed_type.zero_points = false;
  EXPECT_EQ(store.morph(signed_type), store.morph(DType::int8)) << "types with a sign do not read it";
}

}  // namespace
}  // namespace imago
