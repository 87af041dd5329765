// Every row of attention against a plain softmax in float64 over the decoded cache.

#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "base/parallel.h"
#include "imago/codec.h"
#include "imago/error.h"
#include "imago/numeric.h"
#include "kernels/ops_table.h"
#include "testing/random_values.h"

namespace imago::kernels {

namespace {

using testing::gaussian;

constexpr CacheType kTypes[] = {CacheType::f32, CacheType::f16, CacheType::q8_0};

/// What one value of a packed row stands for.
std::vector<float> decoded(const CacheShape& shape, const std::byte* row) {
  std::vector<float> values(shape.head_values);
  const std::span<const std::byte> packed(row, shape.row_bytes());
  switch (shape.type) {
    case CacheType::f32: std::memcpy(values.data(), row, packed.size()); break;
    case CacheType::f16: decode(DType::float16, packed, {}, values); break;
    case CacheType::q8_0: dequantize_row(BlockFormat::q8_0, packed, values); break;
  }
  return values;
}

/// Rows that multiply tiles of bfloat16.
bool rounds(const OpKernel<AttentionArgs>& kernel) { return (kernel.needs & kAmx) != 0; }

/// A result and how far from it a kernel may be.
struct WantedAttention {
  std::vector<double> y, bound;
};

/// Keys, values and queries of one layer. Rows of the cache past `filled` hold NaN: nobody may look at them.
struct Layer {
  CacheShape shape;
  std::size_t heads;
  std::vector<KeyRange> ranges;
  std::vector<std::byte> keys, values;
  std::vector<float> q;
  AttentionOptions options;

  Layer(CacheShape wanted, std::size_t group, std::size_t filled, std::vector<KeyRange> of_tokens, float key_size = 1)
      : shape(wanted),
        heads(wanted.heads * group),
        ranges(std::move(of_tokens)),
        keys(wanted.bytes(), std::byte{0xFF}),  // NaN in all three types
        values(wanted.bytes(), std::byte{0xFF}),
        q(gaussian(ranges.size() * heads * wanted.head_values, 3)),
        options{.scale = 1 / std::sqrt(static_cast<float>(wanted.head_values)), .cap = 0} {
    const std::size_t count = filled * shape.heads * shape.head_values;
    append_to_cache(shape, gaussian(count, 1, key_size), 0, keys);
    append_to_cache(shape, gaussian(count, 2), 0, values);
  }

  std::size_t offset(std::size_t token, std::size_t head) const { return (token * heads + head) * shape.head_values; }

  std::vector<float> row(const std::vector<std::byte>& cache, std::size_t number, bool rounded) const {
    std::vector<float> row = decoded(shape, cache.data() + number * shape.row_bytes());
    for (float& value : row) {
      if (rounded) value = from_bfloat16(to_bfloat16(value));
    }
    return row;
  }

  /// Rounded: with keys and values in bfloat16. The bound then covers weights in bfloat16 and queries of 16 bits.
  WantedAttention plain(std::size_t token, std::size_t head, bool rounded, double bound) const {
    const std::size_t first = head / (heads / shape.heads) * shape.rows + ranges[token].first;
    WantedAttention wanted{std::vector<double>(shape.head_values), std::vector<double>(shape.head_values, bound)};
    std::vector<double>& y = wanted.y;
    std::vector<double> scores;
    double magnitude = 0;  // of the products in a score, at most
    for (std::size_t k = 0; k < ranges[token].count; ++k) {
      const std::vector<float> key = row(keys, first + k, rounded);
      double sum = 0, size = 0;
      for (std::size_t i = 0; i < key.size(); ++i) {
        const double product = double{key[i]} * q[offset(token, head) + i];
        sum += product;
        size += std::fabs(product);
      }
      const double score = sum * options.scale;
      magnitude = std::max(magnitude, size * options.scale);
      scores.push_back(options.cap > 0 ? options.cap * std::tanh(score / options.cap) : score);
    }
    if (scores.empty()) return wanted;
    const std::size_t keys_seen = scores.size();
    if (!options.sinks.empty()) scores.push_back(options.sinks[head]);
    const double of_weights = rounded ? 0x1p-8 + 2 * 0x1p-16 * magnitude : 0;
    const double largest = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double& score : scores) total += score = std::exp(score - largest);
    for (std::size_t k = 0; k < keys_seen; ++k) {
      const std::vector<float> value = row(values, first + k, rounded);
      for (std::size_t i = 0; i < y.size(); ++i) {
        y[i] += scores[k] / total * value[i];
        wanted.bound[i] += of_weights * std::fabs(scores[k] / total * value[i]);
      }
    }
    return wanted;
  }

  /// Where a kernel finds keys and values.
  struct Memory {
    CacheShape shape;
    std::span<const std::byte> keys, values;
    std::span<const std::uint32_t> pages;
    unsigned page_shift;
  };

  std::vector<float> run(const OpKernel<AttentionArgs>& kernel) const {
    return run(kernel, {shape, keys, values, kOnePage, 63});
  }

  /// The same over the same rows in pages of 64, last pages first and with gaps between them.
  std::vector<float> run_in_pages(const OpKernel<AttentionArgs>& kernel, std::size_t filled) const {
    CacheShape page = shape;
    page.rows = 64;
    std::vector<std::uint32_t> pages;
    const std::size_t count = (shape.rows + page.rows - 1) / page.rows;
    for (std::size_t i = 0; i < count; ++i) pages.push_back(static_cast<std::uint32_t>(2 * (count - i)));
    std::vector<std::byte> paged_keys((2 * count + 1) * page.bytes(), std::byte{0xFF}), paged_values = paged_keys;
    const std::size_t values_there = filled * shape.heads * shape.head_values;
    append_to_cache(page, gaussian(values_there, 1), 0, paged_keys, pages);
    append_to_cache(page, gaussian(values_there, 2), 0, paged_values, pages);
    return run(kernel, {page, paged_keys, paged_values, pages, 6});
  }

  std::vector<float> run(const OpKernel<AttentionArgs>& kernel, const Memory& memory) const {
    constexpr float kGuard = 12345.678f;
    std::vector<float> y(q.size() + 16, kGuard);
    std::vector<ScratchLine> scratch(attention_scratch_lines(shape.head_values));
    std::memset(scratch.data(), 0xFF, scratch.size() * sizeof(ScratchLine));  // NaN
    const std::size_t group = heads / shape.heads;
    for (std::size_t head = 0; head < shape.heads; ++head) {
      kernel.run({.q = q.data() + head * group * shape.head_values,
                  .y = y.data() + head * group * shape.head_values,
                  .tokens = ranges.size(),
                  .group = group,
                  .head_values = shape.head_values,
                  .token_stride = heads * shape.head_values,
                  .type = shape.type,
                  .keys = memory.keys.data() + head * memory.shape.head_bytes(),
                  .values = memory.values.data() + head * memory.shape.head_bytes(),
                  .pages = memory.pages.data(),
                  .page_bytes = memory.shape.bytes(),
                  .row_bytes = shape.row_bytes(),
                  .page_shift = memory.page_shift,
                  .ranges = ranges.data(),
                  .scale = options.scale,
                  .cap = options.cap,
                  .sinks = options.sinks.empty() ? nullptr : options.sinks.data() + head * group,
                  .scratch = scratch.data()});
    }
    EXPECT_EQ(std::count(y.end() - 16, y.end(), kGuard), 16) << "writes past the end";
    y.resize(q.size());
    return y;
  }

  /// Scores are sums of head_values products of normal numbers and are rounded on the scale of 1 to 10: 2e-6. So much
  /// do weights differ, and results are means of values up to 5.
  void expect_plain(const std::vector<float>& y, bool rounded = false, double bound = 1e-5) const {
    for (std::size_t token = 0; token < ranges.size(); ++token) {
      for (std::size_t head = 0; head < heads; ++head) {
        const WantedAttention wanted = plain(token, head, rounded, bound);
        for (std::size_t i = 0; i < wanted.y.size(); ++i) {
          ASSERT_NEAR(y[offset(token, head) + i], wanted.y[i], wanted.bound[i])
              << "value " << i << " of token " << token << ", head " << head << ", keys " << ranges[token].first
              << " + " << ranges[token].count << ", head_values " << shape.head_values << ", type "
              << static_cast<int>(shape.type);
        }
      }
    }
  }
};

bool fits(CacheType type, std::size_t head_values) { return type != CacheType::q8_0 || head_values % 32 == 0; }

class Attention : public ::testing::TestWithParam<OpKernel<AttentionArgs>> {
 protected:
  void SetUp() override {
    const CpuFeatures needs = GetParam().needs;
    if ((needs & host_cpu_features()) != needs) GTEST_SKIP() << "this processor cannot run " << GetParam().name;
  }
};
INSTANTIATE_TEST_SUITE_P(Rows, Attention, ::testing::ValuesIn(all_ops<AttentionArgs>()),
                         [](const auto& row) { return row.param.name.substr(row.param.name.find('/') + 1); });

TEST_P(Attention, OneTokenOverAnyNumberOfKeys) {
  for (const CacheType type : kTypes) {
    for (const std::size_t head_values : {16, 40, 64, 80, 128}) {
      if (!fits(type, head_values)) continue;
      for (const std::size_t count : {0, 1, 2, 31, 32, 33, 63, 64, 65, 100, 257, 700}) {
        const Layer layer({type, 1, 704, head_values}, 2, count, {{0, count}});
        layer.expect_plain(layer.run(GetParam()), rounds(GetParam()));
      }
    }
  }
}

TEST_P(Attention, GroupsOfHeads) {
  for (const CacheType type : kTypes) {
    for (const std::size_t group : {1, 2, 3, 4, 7, 16, 17, 35}) {
      const Layer layer({type, 2, 80, 64}, group, 77, {{0, 77}, {0, 40}});
      layer.expect_plain(layer.run(GetParam()), rounds(GetParam()));
    }
  }
}

TEST_P(Attention, PromptsAreCausalAndWindowsSlide) {
  for (const CacheType type : kTypes) {
    for (const std::size_t window : {0, 1, 5, 33, 64}) {
      std::vector<KeyRange> ranges;
      for (std::size_t t = 0; t < 37; ++t) ranges.push_back(causal_range(60, t, window));
      const Layer layer({type, 2, 128, 32}, 3, 97, ranges);
      layer.expect_plain(layer.run(GetParam()), rounds(GetParam()));
    }
  }
}

TEST_P(Attention, TokensWithoutKeysGiveZeros) {
  const Layer layer({CacheType::f16, 1, 64, 64}, 4, 40, {{0, 0}, {40, 0}, {64, 0}, {8, 32}, {39, 1}});
  const std::vector<float> y = layer.run(GetParam());
  layer.expect_plain(y, rounds(GetParam()));
  for (std::size_t i = 0; i < layer.offset(3, 0); ++i) ASSERT_EQ(y[i], 0.0f);
}

TEST_P(Attention, RowsThatNobodySeesAreNotRead) {
  for (const CacheType type : kTypes) {
    Layer layer({type, 1, 128, 64}, 3, 128, {{37, 60}, {40, 50}});
    for (std::vector<std::byte>* cache : {&layer.keys, &layer.values}) {
      const auto row = [&](std::ptrdiff_t r) {
        return cache->begin() + r * static_cast<std::ptrdiff_t>(layer.shape.row_bytes());
      };
      std::fill(row(0), row(37), std::byte{0xFF});  // NaN
      std::fill(row(97), row(128), std::byte{0xFF});
    }
    layer.expect_plain(layer.run(GetParam()), rounds(GetParam()));
  }
}

TEST_P(Attention, PagesChangeNothing) {
  for (const CacheType type : kTypes) {
    for (const std::size_t window : {0, 40}) {
      std::vector<KeyRange> ranges;
      for (std::size_t t = 0; t < 80; ++t) ranges.push_back(causal_range(120, t, window));
      const Layer layer({type, 2, 200, 64}, 3, 200, ranges);
      EXPECT_EQ(layer.run(GetParam()), layer.run_in_pages(GetParam(), 200)) << "window " << window;
    }
  }
}

TEST_P(Attention, SoftCap) {
  Layer layer({CacheType::f16, 1, 200, 64}, 4, 200, {{3, 150}}, 30);  // scores of some 30
  layer.options.cap = 20;
  layer.expect_plain(layer.run(GetParam()), rounds(GetParam()),
                     2e-5);  // capped scores are rounded on the scale of the cap
}

// Small, larger than all scores, and so small that it changes nothing.
TEST_P(Attention, SinksTakeTheirShare) {
  const std::vector<float> sinks = {0.5f, 9, -60, 2, -1, 30, 0, 4};
  for (const std::size_t tokens : {1, 20}) {
    std::vector<KeyRange> ranges;
    for (std::size_t t = 0; t < tokens; ++t) ranges.push_back(causal_range(40, t, t % 2 == 0 ? 0 : 7));
    Layer layer({CacheType::f16, 2, 64, 48}, 4, 61, ranges);
    layer.options.sinks = sinks;
    layer.expect_plain(layer.run(GetParam()), rounds(GetParam()));
  }
}

TEST_P(Attention, LargeScoresNeitherOverflowNorLoseTheLargest) {
  Layer layer({CacheType::f32, 1, 300, 64}, 2, 300, {{0, 300}}, 1000);
  layer.expect_plain(layer.run(GetParam()), rounds(GetParam()),
                     5e-3);  // scores of some 1000 are rounded to 1e-4, and weights by as much
}

TEST_P(Attention, RandomShapesAndRanges) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto up_to = [&](std::size_t most) { return std::uniform_int_distribution<std::size_t>(0, most)(random); };
    const CacheType type = kTypes[seed % 3];
    const std::size_t head_values = type == CacheType::q8_0 ? 32 * (1 + up_to(3)) : 1 + up_to(139);
    const std::size_t rows = 1 + up_to(150);
    std::vector<KeyRange> ranges(1 + up_to(20));
    for (KeyRange& range : ranges) {
      range.first = up_to(rows);
      range.count = up_to(rows - range.first);
    }
    Layer layer({type, 1 + up_to(2), rows, head_values}, 1 + up_to(8), rows, ranges);
    if (seed % 4 == 0) layer.options.cap = 5;
    layer.expect_plain(layer.run(GetParam()), rounds(GetParam()));
  }
}

TEST_P(Attention, AQueryDoesNotSeeItsNeighbours) {
  std::vector<KeyRange> ranges;
  for (std::size_t t = 0; t < 20; ++t) ranges.push_back(causal_range(30, t, 25));
  const Layer all({CacheType::f16, 1, 64, 64}, 3, 50, ranges);
  const std::vector<float> together = all.run(GetParam());
  for (std::size_t t = 0; t < 20; ++t) {
    Layer one = all;
    one.ranges = {ranges[t]};
    one.q.assign(all.q.begin() + static_cast<std::ptrdiff_t>(all.offset(t, 0)),
                 all.q.begin() + static_cast<std::ptrdiff_t>(all.offset(t + 1, 0)));
    const std::vector<float> alone = one.run(GetParam());
    for (std::size_t i = 0; i < alone.size(); ++i) ASSERT_EQ(together[all.offset(t, 0) + i], alone[i]) << "token " << t;
  }
}

TEST(AttentionApi, ResultsDoNotDependOnThreads) {
  std::vector<KeyRange> ranges;
  for (std::size_t t = 0; t < 75; ++t) ranges.push_back(causal_range(10, t));
  const Layer layer({CacheType::q8_0, 3, 85, 64}, 2, 85, ranges);
  const int before = pool_threads();
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3, 5}) {
    set_pool_threads(threads);
    results.emplace_back(layer.q.size());
    attention(layer.shape, layer.keys, layer.values, layer.q, layer.heads, layer.ranges, results.back(), layer.options);
    EXPECT_EQ(results.back(), results.front()) << threads << " threads";
  }
  set_pool_threads(before);
  layer.expect_plain(results.front());
  std::vector<float> in_place = layer.q;
  attention(layer.shape, layer.keys, layer.values, in_place, layer.heads, layer.ranges, in_place, layer.options);
  EXPECT_EQ(in_place, results.front());
}

TEST(AttentionApi, OnlyManyTokensMayBeRounded) {
  for (const std::size_t tokens : {1, 7, 40}) {
    std::vector<KeyRange> ranges;
    for (std::size_t t = 0; t < tokens; ++t) ranges.push_back(causal_range(10, t));
    Layer layer({CacheType::f16, 2, 64, 64}, 2, 60, ranges);
    std::vector<float> exact(layer.q.size()), fast(layer.q.size());
    attention(layer.shape, layer.keys, layer.values, layer.q, layer.heads, layer.ranges, exact, layer.options);
    layer.options.fast = true;
    attention(layer.shape, layer.keys, layer.values, layer.q, layer.heads, layer.ranges, fast, layer.options);
    layer.expect_plain(exact);
    if ((allowed_cpu_features() & kAmx) != 0 && tokens == 40) {
      layer.expect_plain(fast, true);
      EXPECT_NE(fast, exact);
    } else {
      EXPECT_EQ(fast, exact);
    }
  }
}

TEST(AttentionApi, AppendPacksEachHeadInItsPlace) {
  const std::vector<float> x = gaussian(5 * 3 * 64, 4);
  for (const CacheType type : kTypes) {
    const CacheShape shape{type, 3, 9, 64};
    std::vector<std::byte> cache(shape.bytes(), std::byte{0xA5});
    append_to_cache(shape, std::span(x).first(2 * 3 * 64), 2, cache);
    append_to_cache(shape, std::span(x).subspan(2 * 3 * 64), 4, cache);
    for (std::size_t head = 0; head < 3; ++head) {
      for (std::size_t row = 0; row < 9; ++row) {
        std::vector<std::byte> wanted(shape.row_bytes(), std::byte{0xA5});
        if (row >= 2 && row < 7) {
          const std::span<const float> from = std::span(x).subspan(((row - 2) * 3 + head) * 64, 64);
          for (std::size_t i = 0; i < 64 && type == CacheType::f16; ++i) {
            const Half code = to_half(from[i]);
            std::memcpy(wanted.data() + 2 * i, &code, 2);
          }
          if (type == CacheType::q8_0) quantize_row(BlockFormat::q8_0, from, wanted);
          if (type == CacheType::f32) std::memcpy(wanted.data(), from.data(), from.size_bytes());
        }
        const std::byte* got = cache.data() + (head * 9 + row) * shape.row_bytes();
        EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), got)) << "head " << head << ", row " << row;
      }
    }
  }
}

TEST(AttentionApi, RangesAreCausal) {
  const auto is = [](KeyRange range, std::size_t first, std::size_t count) {
    return range.first == first && range.count == count;
  };
  EXPECT_TRUE(is(causal_range(0, 0), 0, 1));
  EXPECT_TRUE(is(causal_range(10, 2), 0, 13));
  EXPECT_TRUE(is(causal_range(10, 2, 4), 9, 4));
  EXPECT_TRUE(is(causal_range(10, 2, 13), 0, 13));
  EXPECT_TRUE(is(causal_range(10, 2, 99), 0, 13));
}

TEST(AttentionApi, RefusesWhatDoesNotFit) {
  const CacheShape shape{CacheType::f16, 2, 8, 16};
  std::vector<std::byte> cache(shape.bytes()), shorter(shape.bytes() - 1);
  std::vector<float> q(4 * 16), y(4 * 16), odd(33);
  std::vector<KeyRange> ranges = {{0, 8}};
  const auto attend = [&](std::span<const std::byte> keys, std::size_t heads, std::span<float> out, float cap = 0) {
    attention(shape, keys, cache, q, heads, ranges, out, {.scale = 1, .cap = cap});
  };
  EXPECT_NO_THROW(attend(cache, 4, y));
  EXPECT_THROW(attend(shorter, 4, y), ShapeError);
  EXPECT_THROW(attend(cache, 3, y), ShapeError);
  EXPECT_THROW(attend(cache, 0, y), ShapeError);
  EXPECT_THROW(attend(cache, 4, odd), ShapeError);
  EXPECT_THROW(attend(cache, 4, y, -1), UsageError);
  ranges = {{1, 8}};
  EXPECT_THROW(attend(cache, 4, y), ShapeError);
  ranges = {{0, 8}};
  const auto attend_in = [&](std::vector<std::uint32_t> pages) {
    attention(shape, cache, cache, q, 4, ranges, y, {}, pages);
  };
  EXPECT_NO_THROW(attend_in({0}));
  EXPECT_THROW(attend_in({1}), ShapeError) << "there is one page";
  EXPECT_THROW(attend_in({0, 0}), ShapeError) << "pages of 8 rows cannot be several";
  ranges = {{std::numeric_limits<std::size_t>::max(), 2}};
  EXPECT_THROW(attend(cache, 4, y), ShapeError);
  EXPECT_THROW(append_to_cache(shape, odd, 0, cache), ShapeError);
  EXPECT_THROW(append_to_cache(shape, std::span(q).first(32), 8, cache), ShapeError);
  EXPECT_THROW((CacheShape{CacheType::q8_0, 1, 1, 40}.bytes()), ShapeError);
}

}  // namespace

}  // namespace imago::kernels
