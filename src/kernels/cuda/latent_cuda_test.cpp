// What latent attention does around attention, against norm, rope and append_to_cache of the host.

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/latent.h"
#include "kernels/ops.h"
#include "testing/gpu_ops_fixture.h"
#include "testing/random_values.h"

namespace imago::kernels::cuda {
namespace {

using testing::gaussian;

class CudaLatent : public OpsFixture {
 protected:
  struct Case {
    std::size_t heads, plain, rotary, rank;
    RopePairs pairs;
  };

  void run(const Case& c) {
    constexpr std::size_t kRows = 40;
    const std::size_t row = c.rank + c.rotary, query = c.plain + c.rotary;
    const CacheShape shape{CacheType::f32, 1, kRows, row};
    const std::vector<std::int32_t> positions = {5, 6, -1, 39, 0}, sequences = {0, 0, 0, 0, 1};
    const std::size_t tokens = positions.size();
    const std::vector<float> q = gaussian(tokens * c.heads * query, 1), rows = gaussian(tokens * row, 2, 3);
    const std::vector<float> norm = gaussian(c.rank, 3), before = gaussian(tokens * c.heads * row, 4);
    const RopeTable table({.rotary = c.rotary}, kRows);
    std::vector<float> turns;
    for (std::size_t p = 0; p < kRows; ++p) turns.insert(turns.end(), table.at(p).begin(), table.at(p).end());

    std::vector<float> wanted = before;
    std::vector<std::vector<std::byte>> caches(2, std::vector<std::byte>(shape.bytes()));
    for (std::size_t t = 0; t < tokens; ++t) {
      if (positions[t] < 0) continue;
      const auto at = static_cast<std::size_t>(positions[t]);
      for (std::size_t h = 0; h < c.heads; ++h) {
        const auto from = q.begin() + static_cast<std::ptrdiff_t>((t * c.heads + h) * query + c.plain);
        const auto to = std::span(wanted).subspan((t * c.heads + h) * row + c.rank, c.rotary);
        std::copy_n(from, c.rotary, to.begin());
        rope(to, 1, c.rotary, table, at, c.pairs);
      }
      std::vector<float> own(rows.begin() + static_cast<std::ptrdiff_t>(t * row),
                             rows.begin() + static_cast<std::ptrdiff_t>((t + 1) * row));
      rms_norm(std::span(own).first(c.rank), norm, 1e-6f, std::span(own).first(c.rank));
      rope(std::span(own).last(c.rotary), 1, c.rotary, table, at, c.pairs);
      append_to_cache(shape, own, at, caches[static_cast<std::size_t>(sequences[t])]);
    }

    OnDevice<float> gpu_q = up(q), gpu_rows = up(rows), gpu_norm = up(norm), latent = up(before),
                    rope_table = up(turns);
    OnDevice<std::int32_t> gpu_positions = up(positions), gpu_sequences = up(sequences);
    OnDevice<std::byte> first = zeros<std::byte>(shape.bytes()), second = zeros<std::byte>(shape.bytes());
    OnDevice<GpuCache> pointers =
        up(std::vector<GpuCache>{{first.data(), first.data()}, {second.data(), second.data()}});
    place_latent({.rows = gpu_rows.data(),
                  .q = gpu_q.data(),
                  .latent = latent.data(),
                  .heads = c.heads,
                  .plain = c.plain,
                  .rotary = c.rotary,
                  .rank = c.rank,
                  .norm = gpu_norm.data(),
                  .eps = 1e-6f,
                  .rope = rope_table.data(),
                  .pairs = c.pairs,
                  .shape = shape,
                  .caches = pointers.data()},
                 {.sequence = gpu_sequences.data(), .position = gpu_positions.data(), .tokens = tokens, .longest = 39},
                 stream());
    stream().wait();
    const std::vector<float> got = latent.values();
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 2e-5) << "latent query " << i;
    for (std::size_t s = 0; s < 2; ++s) {
      const std::vector<std::byte> bytes = (s == 0 ? first : second).values();
      const auto* const values = reinterpret_cast<const float*>(bytes.data());
      const auto* const right = reinterpret_cast<const float*>(caches[s].data());
      for (std::size_t i = 0; i < kRows * row; ++i) ASSERT_NEAR(values[i], right[i], 2e-5) << s << ": row value " << i;
    }
  }
};

TEST_F(CudaLatent, RowsAndQueriesAreNormedTurnedAndPlaced) {
  for (const RopePairs pairs : {RopePairs::halves, RopePairs::adjacent}) {
    run({16, 128, 64, 512, pairs});
    run({4, 16, 16, 32, pairs});
    run({3, 5, 2, 40, pairs});
  }
}

TEST_F(CudaLatent, HeadsAreGathered) {
  constexpr std::size_t kTokens = 5, kHeads = 3, kStride = 11, kCols = 7;
  const std::vector<float> from = gaussian(kTokens * kHeads * kStride, 1);
  OnDevice<float> gpu = up(from), to = zeros<float>(kTokens * kHeads * kCols);
  gather_heads(gpu.data(), kStride, kTokens, kHeads, kCols, to.data(), stream());
  stream().wait();
  const std::vector<float> got = to.values();
  for (std::size_t t = 0; t < kTokens; ++t) {
    for (std::size_t h = 0; h < kHeads; ++h) {
      for (std::size_t i = 0; i < kCols; ++i) {
        ASSERT_EQ(got[(h * kTokens + t) * kCols + i], from[(t * kHeads + h) * kStride + i])
            << t << ' ' << h << ' ' << i;
      }
    }
  }
}

}  // namespace
}  // namespace imago::kernels::cuda
