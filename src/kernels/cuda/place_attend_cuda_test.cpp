// Placing and attention in one launch, against the two of them.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/ops.h"
#include "testing/gpu_ops_fixture.h"
#include "testing/random_values.h"

namespace imago::kernels::cuda {
namespace {

using testing::gaussian;

struct Case {
  CacheType type = CacheType::f16;
  std::size_t heads = 8, kv_heads = 2, head_values = 128, rotary = 128;
  RopePairs pairs = RopePairs::halves;
  bool norms = false;
  std::vector<std::int32_t> positions = {};
  std::size_t window = 0;

  std::string text() const {
    return "type " + std::to_string(static_cast<int>(type)) + ", " + std::to_string(heads) + "/" +
           std::to_string(kv_heads) + " heads of " + std::to_string(head_values) + ", rotary " +
           std::to_string(rotary) + ", first position " + std::to_string(positions[0]);
  }
};

struct Results {
  std::vector<float> y;
  std::vector<std::int8_t> codes;
  std::vector<std::vector<std::byte>> caches;
};

class CudaPlaceAndAttend : public OpsFixture {
 protected:
  static constexpr std::size_t kRows = 700;

  /// Each token in a sequence of its own.
  Results run(const Case& c, bool together) {
    const CacheShape shape{c.type, c.kv_heads, kRows, c.head_values};
    const std::size_t tokens = c.positions.size();
    const OnDevice<float> q = up(gaussian(tokens * c.heads * c.head_values, 1));
    const OnDevice<float> k = up(gaussian(tokens * c.kv_heads * c.head_values, 2));
    const OnDevice<float> v = up(gaussian(tokens * c.kv_heads * c.head_values, 3));
    const OnDevice<float> q_norm = up(gaussian(c.head_values, 4)), k_norm = up(gaussian(c.head_values, 5));
    const OnDevice<float> y = zeros<float>(q.values().size());
    const OnDevice<std::int8_t> codes = zeros<std::int8_t>(tokens * c.heads * c.head_values);
    const OnDevice<float2_pod> scales = zeros<float2_pod>(tokens * c.heads * c.head_values / 32);
    const RopeTable table({.rotary = c.rotary}, kRows);
    std::vector<float> turns(1);
    for (std::size_t p = 0; c.rotary != 0 && p < kRows; ++p) {
      if (p == 0) turns.clear();
      turns.insert(turns.end(), table.at(p).begin(), table.at(p).end());
    }
    const OnDevice<float> rope = up(turns);
    std::vector<OnDevice<std::byte>> caches;
    std::vector<GpuCache> pointers;
    std::vector<std::int32_t> sequences;
    for (std::size_t t = 0; t < tokens; ++t) {
      for (unsigned part = 0; part < 2; ++part) {
        std::vector<std::byte> cache(shape.bytes(), std::byte{0xFF});  // NaN after the rows that are set
        const auto rows = static_cast<std::size_t>(std::max(c.positions[t], 0));
        const std::vector<float> x =
            gaussian(rows * c.kv_heads * c.head_values, static_cast<unsigned>(10 + 2 * t + part));
        if (!x.empty()) append_to_cache(shape, x, 0, cache);
        caches.push_back(up(cache));
      }
      pointers.push_back({caches[2 * t].data(), caches[2 * t + 1].data()});
      sequences.push_back(static_cast<std::int32_t>(t));
    }
    const OnDevice<GpuCache> gpu_pointers = up(pointers);
    const OnDevice<std::int32_t> gpu_positions = up(c.positions), gpu_sequences = up(sequences);
    const TokenPlaces places{.sequence = tokens == 1 ? nullptr : gpu_sequences.data(),
                             .position = gpu_positions.data(),
                             .tokens = tokens,
                             .longest = kRows - 1,
                             .separate = true};
    PlaceArgs placed{.q = q.data(),
                     .k = k.data(),
                     .v = v.data(),
                     .heads = c.heads,
                     .q_norm_cols = c.head_values,
                     .k_norm_cols = c.head_values,
                     .norm_eps = 1e-6f,
                     .shape = shape,
                     .caches = gpu_pointers.data()};
    if (c.norms) placed.q_norm = q_norm.data(), placed.k_norm = k_norm.data();
    if (c.rotary != 0) placed.rope = rope.data(), placed.rotary = c.rotary, placed.pairs = c.pairs;
    const std::size_t scratch_bytes = attention_scratch_bytes(shape, c.heads, places);
    const OnDevice<std::byte> scratch = zeros<std::byte>(scratch_bytes);
    const AttentionArgs args{.q = q.data(),
                             .y = y.data(),
                             .int8 = {codes.data(), scales.data()},
                             .heads = c.heads,
                             .window = c.window,
                             .options = {.scale = 0.1f},
                             .shape = shape,
                             .caches = gpu_pointers.data(),
                             .scratch = scratch.data()};
    if (together) {
      place_and_attend(placed, args, places, stream());
    } else {
      place(placed, places, stream());
      attention(args, places, stream());
    }
    stream().wait();
    Results results{y.values(), codes.values(), {}};
    for (const OnDevice<std::byte>& cache : caches) results.caches.push_back(cache.values());
    return results;
  }

  void expect_same(const Case& c) {
    const Results apart = run(c, false), together = run(c, true);
    EXPECT_EQ(together.y, apart.y) << c.text();
    EXPECT_EQ(together.codes, apart.codes) << c.text();
    EXPECT_EQ(together.caches, apart.caches) << c.text();
  }
};

TEST_F(CudaPlaceAndAttend, IsTheOneAndThenTheOther) {
  for (const CacheType type : {CacheType::f16, CacheType::q8_0, CacheType::f32}) {
    for (const std::int32_t position : {0, 1, 15, 16, 17, 127, 128, 129, 500, 699}) {
      expect_same({.type = type, .positions = {position}});
    }
    expect_same({.type = type, .positions = {300, 5, -1, 0, 640}});
    expect_same({.type = type, .positions = {300, 5}, .window = 100});
    expect_same({.type = type, .pairs = RopePairs::adjacent, .norms = true, .positions = {77}});
    expect_same({.type = type, .heads = 8, .kv_heads = 1, .head_values = 64, .rotary = 32, .positions = {200}});
    expect_same({.type = type, .heads = 3, .kv_heads = 3, .head_values = 96, .rotary = 96, .positions = {31}});
    expect_same({.type = type, .heads = 6, .kv_heads = 2, .head_values = 256, .rotary = 64, .positions = {140}});
    expect_same({.type = type, .rotary = 0, .norms = true, .positions = {9}});
    // These go one after the other in any case: a group of more heads than a block takes.
    expect_same({.type = type, .heads = 24, .kv_heads = 2, .positions = {33}});
  }
}

}  // namespace
}  // namespace imago::kernels::cuda
