// Queries, keys and values placed on the GPU against norm, rope and append_to_cache of the host.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "imago/codec.h"
#include "imago/error.h"
#include "kernels/cuda/attention.h"
#include "kernels/ops.h"
#include "testing/gpu_ops_fixture.h"
#include "testing/random_values.h"

namespace imago::kernels::cuda {
namespace {

using testing::gaussian;

struct Case {
  CacheType type;
  std::size_t heads, kv_heads, head_values, rotary;
  RopePairs pairs = RopePairs::halves;
  int norms = 0;  // 1: of heads, 2: of whole rows, 3: of heads after the rotation, of values too; queries grow
};

class CudaPlace : public OpsFixture {
 protected:
  static constexpr std::size_t kRows = 40;

  void run(const Case& c, bool two_sequences);
};

std::vector<float> decoded(const CacheShape& shape, const std::vector<std::byte>& cache) {
  const std::size_t count = shape.heads * shape.rows * shape.head_values;
  std::vector<float> values(count);
  switch (shape.type) {
    case CacheType::f32: std::memcpy(values.data(), cache.data(), cache.size()); break;
    case CacheType::f16: decode(DType::float16, cache, {}, values); break;
    case CacheType::q8_0: dequantize_row(BlockFormat::q8_0, cache, values); break;
  }
  return values;
}

void CudaPlace::run(const Case& c, bool two_sequences) {
  const std::string what = "type " + std::to_string(static_cast<int>(c.type)) + ", " + std::to_string(c.heads) + "/" +
                           std::to_string(c.kv_heads) + " heads of " + std::to_string(c.head_values) + ", rotary " +
                           std::to_string(c.rotary) + ", pairs " + std::to_string(static_cast<int>(c.pairs)) +
                           ", norms " + std::to_string(c.norms);
  const CacheShape shape{c.type, c.kv_heads, kRows, c.head_values};
  const std::vector<std::int32_t> positions = {5, 6, 0, 39, -1, 17};
  const std::vector<std::int32_t> sequences = {0, 0, 1, 0, 0, 1};
  const std::size_t tokens = positions.size(), q_row = c.heads * c.head_values, k_row = c.kv_heads * c.head_values;
  const std::vector<float> q = gaussian(tokens * q_row, 1), k = gaussian(tokens * k_row, 2),
                           v = gaussian(tokens * k_row, 3);
  const std::size_t q_cols = c.norms == 2 ? q_row : c.head_values, k_cols = c.norms == 2 ? k_row : c.head_values;
  const std::vector<float> q_norm = gaussian(q_cols, 4), k_norm = gaussian(k_cols, 5);
  const RopeTable table({.rotary = c.rotary}, kRows);
  std::vector<float> rope_values;
  for (std::size_t p = 0; p < kRows; ++p) rope_values.insert(rope_values.end(), table.at(p).begin(), table.at(p).end());

  // On the host, token by token.
  std::vector<float> wanted_q = q, turned_k = k;
  const bool turned = c.norms == 3;
  std::vector<float> wanted_v = v;
  if (c.norms != 0 && !turned) {
    rms_norm(q, q_norm, 1e-6f, wanted_q);
    rms_norm(k, k_norm, 1e-6f, turned_k);
  }
  if (turned) rms_norm(v, std::vector<float>(c.head_values, 1.0f), 1e-6f, wanted_v);
  std::vector<std::vector<std::byte>> keys(2, std::vector<std::byte>(shape.bytes())), values = keys;
  for (std::size_t t = 0; t < tokens; ++t) {
    if (positions[t] < 0) continue;
    const auto at = static_cast<std::size_t>(positions[t]);
    const std::span<float> its_q = std::span(wanted_q).subspan(t * q_row, q_row);
    const std::span<float> its_k = std::span(turned_k).subspan(t * k_row, k_row);
    if (c.rotary != 0) {
      rope(its_q, c.heads, c.head_values, table, at, c.pairs);
      rope(its_k, c.kv_heads, c.head_values, table, at, c.pairs);
    }
    if (turned) {
      rms_norm(its_q, q_norm, 1e-6f, its_q);
      rms_norm(its_k, k_norm, 1e-6f, its_k);
      kernels::scale(its_q, static_cast<float>(1 + 0.25 * std::log(1 + std::floor(static_cast<double>(at) / 8))));
    }
    const std::size_t s = two_sequences ? static_cast<std::size_t>(sequences[t]) : 0;
    append_to_cache(shape, its_k, at, keys[s]);
    append_to_cache(shape, std::span(wanted_v).subspan(t * k_row, k_row), at, values[s]);
  }

  OnDevice<float> gpu_q = up(q), gpu_k = up(k), gpu_v = up(v), gpu_q_norm = up(q_norm), gpu_k_norm = up(k_norm);
  OnDevice<float> gpu_rope = up(rope_values.empty() ? std::vector<float>(1) : rope_values);
  OnDevice<std::int32_t> gpu_positions = up(positions), gpu_sequences = up(sequences);
  std::vector<OnDevice<std::byte>> caches;
  for (int i = 0; i < 4; ++i) caches.push_back(zeros<std::byte>(shape.bytes()));
  OnDevice<GpuCache> pointers =
      up(std::vector<GpuCache>{{caches[0].data(), caches[1].data()}, {caches[2].data(), caches[3].data()}});
  place({.q = gpu_q.data(),
         .k = gpu_k.data(),
         .v = gpu_v.data(),
         .heads = c.heads,
         .q_norm = c.norms == 0 ? nullptr : gpu_q_norm.data(),
         .k_norm = c.norms == 0 ? nullptr : gpu_k_norm.data(),
         .q_norm_cols = q_cols,
         .k_norm_cols = k_cols,
         .norm_eps = 1e-6f,
         .norms_turned = turned,
         .norms_values = turned,
         .growth = turned ? 0.25f : 0,
         .growth_period = 8,
         .rope = c.rotary == 0 ? nullptr : gpu_rope.data(),
         .rotary = c.rotary,
         .pairs = c.pairs,
         .shape = shape,
         .caches = pointers.data()},
        {.sequence = two_sequences ? gpu_sequences.data() : nullptr,
         .position = gpu_positions.data(),
         .tokens = tokens,
         .longest = kRows - 1},
        stream());
  stream().wait();

  const std::vector<float> got_q = gpu_q.values();
  for (std::size_t i = 0; i < q.size(); ++i) {
    if (positions[i / q_row] < 0) continue;
    ASSERT_NEAR(got_q[i], wanted_q[i], 2e-5) << what << ": query " << i % q_row << " of token " << i / q_row;
  }
  for (std::size_t s = 0; s < 2; ++s) {
    if (!turned) {
      ASSERT_EQ(caches[2 * s + 1].values(), values[s]) << what << ": bytes of values differ in sequence " << s;
    }
    const std::vector<std::byte> got = caches[2 * s].values();
    if (c.norms == 0 && c.rotary == 0) {
      ASSERT_EQ(got, keys[s]) << what << ": bytes of keys differ in sequence " << s;
    }
    // Sums in another order and fused products: the last places may round to a neighbour.
    const double bound = c.type == CacheType::f32 ? 2e-5 : c.type == CacheType::f16 ? 4e-3 : 6e-2;
    const auto expect_near = [&](const std::vector<float>& a, const std::vector<float>& b, const char* part) {
      for (std::size_t i = 0; i < a.size(); ++i) {
        ASSERT_NEAR(a[i], b[i], bound) << what << ": " << part << ' ' << i % c.head_values << " of row "
                                       << i / c.head_values % kRows << ", sequence " << s;
      }
    };
    expect_near(decoded(shape, got), decoded(shape, keys[s]), "key value");
    expect_near(decoded(shape, caches[2 * s + 1].values()), decoded(shape, values[s]), "value");
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaPlace, AllTypesAndSizes) {
  for (const CacheType type : {CacheType::f32, CacheType::f16, CacheType::q8_0}) {
    for (const bool two : {false, true}) {
      for (const RopePairs pairs : {RopePairs::halves, RopePairs::adjacent}) {
        run({type, 4, 2, 64, 64, pairs}, two);
        run({type, 3, 1, 128, 128, pairs, 1}, two);
        run({type, 4, 4, 96, 32, pairs, 2}, two);
        run({type, 2, 1, 256, 64, pairs, 1}, two);
        run({type, 4, 2, 64, 32, pairs, 3}, two);
        run({type, 8, 2, 32, 0, pairs}, two);
        run({type, 2, 2, 128, 0, pairs, 1}, two);
        run({type, 2, 1, 512, 128, pairs, 1}, two);
        if (HasFatalFailure()) return;
        if (type == CacheType::q8_0) continue;
        run({type, 4, 2, 80, 20, pairs, 1}, two);
        run({type, 4, 2, 12, 6, pairs}, two);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CudaPlace, ValuesMayBeTheKeysBeforeTheirNorm) {
  constexpr std::size_t kValues = 64;
  const CacheShape shape{CacheType::f32, 2, 4, kValues};
  const std::vector<float> k = gaussian(2 * kValues, 7), weight = gaussian(kValues, 8);
  std::vector<float> turned(k.size()), plain(k.size());
  rms_norm(k, weight, 1e-6f, turned);
  rms_norm(k, std::vector<float>(kValues, 1.0f), 1e-6f, plain);
  std::vector<std::byte> wanted_keys(shape.bytes()), wanted_values(shape.bytes());
  append_to_cache(shape, turned, 2, wanted_keys);
  append_to_cache(shape, plain, 2, wanted_values);
  OnDevice<float> q = zeros<float>(2 * kValues), gpu_k = up(k), gpu_weight = up(weight);
  OnDevice<std::int32_t> position = up(std::vector<std::int32_t>{2});
  OnDevice<std::byte> keys = zeros<std::byte>(shape.bytes()), values = zeros<std::byte>(shape.bytes());
  OnDevice<GpuCache> caches = up(std::vector<GpuCache>{{keys.data(), values.data()}});
  PlaceArgs args{.q = q.data(),
                 .k = gpu_k.data(),
                 .v = gpu_k.data(),
                 .heads = 2,
                 .k_norm = gpu_weight.data(),
                 .k_norm_cols = kValues,
                 .norm_eps = 1e-6f,
                 .norms_values = true,
                 .shape = shape,
                 .caches = caches.data()};
  const TokenPlaces places{.sequence = nullptr, .position = position.data(), .tokens = 1, .longest = 3};
  place(args, places, stream());
  stream().wait();
  const auto expect_near = [&](const std::vector<std::byte>& got, const std::vector<std::byte>& wanted) {
    const std::vector<float> a = decoded(shape, got), b = decoded(shape, wanted);
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-5) << i;
  };
  expect_near(keys.values(), wanted_keys);
  expect_near(values.values(), wanted_values);
  args.k_norm_cols = 2 * kValues;
  EXPECT_THROW(place(args, places, stream()), UnsupportedError);
}

TEST_F(CudaPlace, HostileValuesGiveTheSameBytes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const CacheShape shape{CacheType::q8_0, 1, 4, 256};
  std::vector<float> v = gaussian(256, 7);
  for (std::size_t i = 0; i < 32; ++i) {
    v[i] = static_cast<float>(i) - 15.5f;
    v[32 + i] = i == 3 ? kInfinity : 1;
    v[64 + i] = i == 3 ? std::nanf("") : 1;
    v[96 + i] = 1e-38f * static_cast<float>(i);
    v[128 + i] = 3e38f;
    v[160 + i] = 0;
    v[192 + i] = 1e-4f * static_cast<float>(i);
  }
  std::vector<std::byte> wanted(shape.bytes());
  append_to_cache(shape, v, 2, wanted);
  const std::vector<std::int32_t> position = {2};
  OnDevice<float> q = zeros<float>(256), k = zeros<float>(256), gpu_v = up(v);
  OnDevice<std::int32_t> gpu_position = up(position);
  OnDevice<std::byte> keys = zeros<std::byte>(shape.bytes()), values = zeros<std::byte>(shape.bytes());
  OnDevice<GpuCache> caches = up(std::vector<GpuCache>{{keys.data(), values.data()}});
  place({.q = q.data(), .k = k.data(), .v = gpu_v.data(), .heads = 1, .shape = shape, .caches = caches.data()},
        {.sequence = nullptr, .position = gpu_position.data(), .tokens = 1, .longest = 3}, stream());
  stream().wait();
  EXPECT_EQ(values.values(), wanted);
}

}  // namespace
}  // namespace imago::kernels::cuda
