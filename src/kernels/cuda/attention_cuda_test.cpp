// Attention on the GPU against that of the host over the same bytes of the caches.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/ops.h"
#include "testing/gpu_ops_fixture.h"
#include "testing/gpu_samples.h"
#include "testing/random_values.h"

namespace imago::kernels::cuda {
namespace {

using testing::gaussian;

struct Case {
  CacheType type = CacheType::f16;
  std::size_t kv_heads = 2, group = 4, head_values = 128;
  std::vector<std::int32_t> positions = {};
  std::vector<std::int32_t> sequences = {};  // empty: one
  std::size_t window = 0;
  float cap = 0;
  bool exact = false, separate = false;
  std::size_t longest = 0;  // 0: the largest position
  bool paged = false;       // pages of 64 rows, last ones first
  bool sinks = false;
  bool both_ways = false;         // tokens see all of their sequence, or a window on both sides
  std::size_t shared_values = 0;  // values are the first so many of their keys'

  std::string text() const {
    return "type " + std::to_string(static_cast<int>(type)) + ", " + std::to_string(kv_heads) + "x" +
           std::to_string(group) + " heads of " + std::to_string(head_values) + ", " +
           std::to_string(positions.size()) + " tokens, " + std::to_string(sequences.size()) +
           " sequence numbers, window " + std::to_string(window) + ", cap " + std::to_string(cap) +
           (exact ? ", exact" : "") + (sinks ? ", sinks" : "") + (both_ways ? ", both ways" : "") +
           (shared_values != 0 ? ", values of their keys" : "");
  }
};

/// A case in host and device memory. Rows that no token may see hold NaN.
class Layer {
 public:
  Layer(Device& device, const Case& c)
      : case_(c),
        rows_(static_cast<std::size_t>(*std::max_element(c.positions.begin(), c.positions.end())) + 3),
        shape_{c.type, c.kv_heads, rows_, c.head_values},
        page_{c.type, c.kv_heads, c.paged ? 64 : rows_, c.head_values},
        q_(gaussian(c.positions.size() * heads() * c.head_values, 3)),
        sinks_(gaussian(heads(), 4, 3)),
        gpu_q_(device, q_),
        gpu_sinks_(device, sinks_),
        gpu_y_(device, std::vector<float>(q_.size(), 777.0f)),
        codes_(device, std::vector<std::int8_t>(tokens() * blocks() * 32)),
        scales_(device, std::vector<float2_pod>(tokens() * blocks())),
        positions_(device, c.positions),
        sequences_(device, c.sequences.empty() ? std::vector<std::int32_t>(1) : c.sequences),
        text_ends_(device, text_ends()),
        caches_(device, fill(device)) {}

  std::size_t tokens() const { return case_.positions.size(); }
  std::size_t heads() const { return case_.kv_heads * case_.group; }
  std::size_t blocks() const { return (heads() * case_.head_values + 31) / 32; }
  std::size_t longest() const { return case_.longest != 0 ? case_.longest : rows_ - 3; }
  TokenPlaces places() const {
    return {.sequence = case_.sequences.empty() ? nullptr : sequences_.data(),
            .position = positions_.data(),
            .tokens = tokens(),
            .longest = longest(),
            .separate = case_.separate,
            .text_end = case_.both_ways ? text_ends_.data() : nullptr};
  }
  std::size_t scratch_bytes() const { return attention_scratch_bytes(shape_, heads(), places()); }
  AttentionArgs args(std::byte* scratch) const {
    return {.q = gpu_q_.data(),
            .y = gpu_y_.data(),
            .int8 = {codes_.data(), scales_.data()},
            .heads = heads(),
            .window = case_.window,
            .options = {.scale = options().scale, .cap = case_.cap},
            .sinks = case_.sinks ? gpu_sinks_.data() : nullptr,
            .shape = page_,
            .caches = caches_.data(),
            .paged = case_.paged,
            .scratch = scratch,
            .exact = case_.exact,
            .shared_values = case_.shared_values};
  }
  std::vector<float> y() const { return gpu_y_.values(); }

  void expect_host(double bound, double rms_bound) const {
    const std::vector<float> got = gpu_y_.values();
    const std::size_t row = heads() * case_.head_values;
    double squares = 0;
    for (std::size_t t = 0; t < tokens(); ++t) {
      if (case_.positions[t] < 0) {
        ASSERT_EQ(got[t * row], 777.0f) << case_.text() << ": a token without a place was written";
        continue;
      }
      const std::size_t s = case_.sequences.empty() ? 0 : static_cast<std::size_t>(case_.sequences[t]);
      const auto position = static_cast<std::size_t>(case_.positions[t]);
      const KeyRange range = case_.both_ways
                                 ? range_around(position, static_cast<std::size_t>(text_ends()[t]), case_.window)
                                 : causal_range(position, 0, case_.window);
      std::vector<float> wanted(row);
      kernels::attention(shape_, host_[2 * s], host_[2 * s + (case_.shared_values == 0 ? 1 : 0)],
                         std::span(q_).subspan(t * row, row), heads(), {&range, 1}, wanted, options());
      for (std::size_t i = 0; i < row; ++i) {
        if (case_.shared_values != 0 && i % case_.head_values >= case_.shared_values) continue;
        const double difference = std::fabs(double{got[t * row + i]} - wanted[i]);
        squares += difference * difference;
        ASSERT_LE(difference, bound) << case_.text() << ": value " << i % case_.head_values << " of head "
                                     << i / case_.head_values << " of token " << t << " at " << case_.positions[t]
                                     << " is " << got[t * row + i] << ", not " << wanted[i];
      }
    }
    EXPECT_LE(std::sqrt(squares / static_cast<double>(got.size())), rms_bound) << case_.text();
    if (case_.shared_values == 0) expect_int8(got, row);
  }

 private:
  AttentionOptions options() const {
    AttentionOptions options{.scale = 1 / std::sqrt(static_cast<float>(case_.head_values)), .cap = case_.cap};
    if (case_.sinks) options.sinks = sinks_;
    return options;
  }

  void expect_int8(const std::vector<float>& y, std::size_t row) const {
    if (std::ranges::any_of(case_.positions, [](auto p) { return p < 0; })) return;
    const std::vector<std::int8_t> codes = codes_.values();
    const std::vector<float2_pod> scales = scales_.values();
    for (std::size_t t = 0; t < tokens(); ++t) {
      const std::vector<Int8Block> wanted = testing::int8_of_gpu(std::span(y).subspan(t * row, row));
      for (std::size_t b = 0; b < blocks(); ++b) {
        const std::size_t at = t * blocks() + b;
        ASSERT_TRUE(std::equal(wanted[b].q, wanted[b].q + 32, codes.begin() + static_cast<std::ptrdiff_t>(at) * 32))
            << case_.text() << ": int8 codes " << at;
        ASSERT_EQ(scales[at].x, wanted[b].scale) << case_.text() << ": scale " << at;
      }
    }
  }

  std::size_t sequence_of(std::size_t t) const {
    return case_.sequences.empty() ? 0 : static_cast<std::size_t>(case_.sequences[t]);
  }
  /// Rows of each sequence.
  std::vector<std::size_t> lengths() const {
    std::vector<std::size_t> filled;
    for (std::size_t t = 0; t < tokens(); ++t) {
      const std::size_t s = sequence_of(t);
      if (filled.size() <= s) filled.resize(s + 1);
      filled[s] = std::max(filled[s], static_cast<std::size_t>(case_.positions[t] + 1));
    }
    return filled;
  }
  std::vector<std::int32_t> text_ends() const {
    std::vector<std::int32_t> ends;
    for (std::size_t t = 0; t < tokens(); ++t) ends.push_back(static_cast<std::int32_t>(lengths()[sequence_of(t)]));
    return ends;
  }

  std::vector<GpuCache> fill(Device& device) {
    const std::vector<std::size_t> filled = lengths();
    std::vector<GpuCache> pointers;
    for (std::size_t s = 0; s < filled.size(); ++s) {
      for (unsigned part = 0; part < 2; ++part) {
        std::vector<std::byte> cache(shape_.bytes(), std::byte{0xFF});  // NaN in all three types
        const std::vector<float> x =
            gaussian(filled[s] * case_.kv_heads * case_.head_values, static_cast<unsigned>(10 + 2 * s + part));
        if (!x.empty()) append_to_cache(shape_, x, 0, cache);
        gpu_.emplace_back(device, case_.paged ? in_pages(x) : cache);
        host_.push_back(std::move(cache));
      }
      pointers.push_back({gpu_[2 * s].data(), gpu_[2 * s + (case_.shared_values == 0 ? 1 : 0)].data()});
      if (!case_.paged) continue;
      page_numbers_.emplace_back(device, page_numbers());
      pointers.back().pages = page_numbers_.back().data();
    }
    return pointers;
  }

  std::vector<std::uint32_t> page_numbers() const {
    const std::size_t count = (rows_ + page_.rows - 1) / page_.rows;
    std::vector<std::uint32_t> numbers;
    for (std::size_t i = 0; i < count; ++i) numbers.push_back(static_cast<std::uint32_t>(2 * (count - i)));
    return numbers;
  }
  std::vector<std::byte> in_pages(const std::vector<float>& x) const {
    const std::vector<std::uint32_t> numbers = page_numbers();
    std::vector<std::byte> cache((numbers.front() + 1) * page_.bytes(), std::byte{0xFF});
    if (!x.empty()) append_to_cache(page_, x, 0, cache, numbers);
    return cache;
  }

  Case case_;
  std::size_t rows_;
  CacheShape shape_, page_;
  std::vector<float> q_, sinks_;
  std::vector<std::vector<std::byte>> host_;  // keys and values of each sequence
  std::vector<OnDevice<std::byte>> gpu_;
  std::vector<OnDevice<std::uint32_t>> page_numbers_;
  OnDevice<float> gpu_q_, gpu_sinks_, gpu_y_;
  OnDevice<std::int8_t> codes_;
  OnDevice<float2_pod> scales_;
  OnDevice<std::int32_t> positions_, sequences_, text_ends_;
  OnDevice<GpuCache> caches_;
};

class CudaAttention : public OpsFixture {
 protected:
  /// One scratch for all that follows: it must come back as it was.
  std::byte* scratch(std::size_t bytes) {
    if (bytes > scratch_.size()) scratch_ = imago::cuda::Array<std::byte>(*device(), bytes);
    return scratch_.data();
  }
  void run(Case c, double bound, double rms_bound) {
    const Layer layer(*device(), c);
    attention(layer.args(scratch(layer.scratch_bytes())), layer.places(), stream());
    stream().wait();
    layer.expect_host(bound, rms_bound);
    c.paged = true;
    const Layer paged(*device(), c);
    attention(paged.args(scratch(paged.scratch_bytes())), paged.places(), stream());
    stream().wait();
    ASSERT_EQ(std::memcmp(paged.y().data(), layer.y().data(), layer.y().size() * sizeof(float)), 0)
        << c.text() << ": pages change nothing";
  }

 private:
  imago::cuda::Array<std::byte> scratch_;
};

constexpr CacheType kTypes[] = {CacheType::f16, CacheType::q8_0, CacheType::f32};
bool fits(CacheType type, std::size_t head_values) { return type != CacheType::q8_0 || head_values % 32 == 0; }

std::vector<std::int32_t> from(std::int32_t first, std::size_t count) {
  std::vector<std::int32_t> positions(count);
  for (std::size_t i = 0; i < count; ++i) positions[i] = first + static_cast<std::int32_t>(i);
  return positions;
}

// Decoding is exact to 22 bits: what is left are sums in float32 in another order.
constexpr double kTight = 2e-5, kTightRms = 3e-6;
// Half precision: queries and weights are off by up to 2^-12, scores of the size 3 by 1e-3.
constexpr double kHalf = 8e-3, kHalfRms = 1e-3;

TEST_F(CudaAttention, OneTokenAnyContext) {
  for (const CacheType type : kTypes) {
    for (const std::int32_t position : {0, 1, 14, 15, 16, 127, 128, 255, 256, 700, 2999}) {
      run({.type = type, .positions = {position}}, kTight, kTightRms);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaAttention, OneTokenAnyHeads) {
  for (const CacheType type : kTypes) {
    for (const std::size_t head_values : {8, 16, 32, 40, 64, 80, 96, 128, 160, 192, 256}) {
      if (!fits(type, head_values)) continue;
      for (const std::size_t group : {1, 3, 8, 12}) {
        run({.type = type, .kv_heads = 3, .group = group, .head_values = head_values, .positions = {300}}, kTight,
            kTightRms);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CudaAttention, FewTokensOfSeveralSequences) {
  for (const CacheType type : kTypes) {
    run({.type = type, .positions = {600, 3, 0, -1, 77, 601}, .sequences = {0, 1, 2, 1, 2, 0}}, kTight, kTightRms);
    run({.type = type, .positions = from(20, 16)}, kTight, kTightRms);
    run({.type = type, .positions = {500, 3, 900}, .sequences = {2, 1, 0}, .window = 100}, kTight, kTightRms);
    run({.type = type, .positions = {500, 3, 900}, .sequences = {2, 1, 0}, .window = 600, .cap = 2}, kTight, kTightRms);
    run({.type = type, .positions = {30}, .longest = 5000}, kTight, kTightRms);
    std::vector<std::int32_t> sequences(40);
    for (std::size_t i = 0; i < sequences.size(); ++i) sequences[i] = static_cast<std::int32_t>(i);
    run({.type = type, .kv_heads = 1, .positions = from(100, 40), .sequences = sequences, .separate = true}, kTight,
        kTightRms);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaAttention, ExactIsExact) {
  for (const CacheType type : kTypes) {
    for (const std::size_t head_values : {12, 64, 128, 256}) {
      if (!fits(type, head_values)) continue;
      run({.type = type, .head_values = head_values, .positions = {333}, .exact = true}, kTight, kTightRms);
      run({.type = type, .head_values = head_values, .positions = from(40, 50), .window = 33, .cap = 3, .exact = true},
          kTight, kTightRms);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaAttention, ManyTokens) {
  for (const CacheType type : kTypes) {
    for (const std::size_t head_values : {64, 128, 96, 256, 80, 24}) {
      if (!fits(type, head_values)) continue;
      for (const std::size_t group : {4, 1, 7}) {
        run({.type = type, .group = group, .head_values = head_values, .positions = from(0, 200)}, kHalf, kHalfRms);
        if (HasFatalFailure()) return;
      }
      run({.type = type, .head_values = head_values, .positions = from(333, 65)}, kHalf, kHalfRms);
      run({.type = type, .head_values = head_values, .positions = from(100, 130), .window = 50}, kHalf, kHalfRms);
      run({.type = type, .head_values = head_values, .positions = from(0, 130), .window = 70, .cap = 3}, kHalf,
          kHalfRms);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaAttention, ManyTokensOfSeveralSequences) {
  for (const CacheType type : kTypes) {
    std::vector<std::int32_t> positions = from(10, 50), sequences(50, 1);
    for (const std::int32_t p : from(0, 40)) positions.push_back(p), sequences.push_back(0);
    positions.push_back(-1), sequences.push_back(0);
    for (const std::int32_t p : from(200, 7)) positions.push_back(p), sequences.push_back(2);
    positions.push_back(-1), sequences.push_back(1);
    run({.type = type, .positions = positions, .sequences = sequences}, kHalf, kHalfRms);
    run({.type = type, .kv_heads = 1, .group = 40, .positions = positions, .sequences = sequences, .window = 20}, kHalf,
        kHalfRms);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaAttention, SinksTakeTheirShare) {
  for (const CacheType type : kTypes) {
    for (const std::size_t head_values : {64, 96}) {
      for (const std::int32_t position : {0, 5, 900, 9000}) {
        run({.type = type, .head_values = head_values, .positions = {position}, .window = 128, .sinks = true}, kTight,
            kTightRms);
        run({.type = type, .head_values = head_values, .positions = {position}, .sinks = true}, kTight, kTightRms);
      }
      run({.type = type, .group = 8, .head_values = head_values, .positions = from(3, 70), .sinks = true}, kHalf,
          kHalfRms);
      run({.type = type, .head_values = head_values, .positions = from(3, 40), .exact = true, .sinks = true}, kTight,
          kTightRms);
    }
  }
}

TEST_F(CudaAttention, TokensSeeTheirTextBothWays) {
  for (const CacheType type : kTypes) {
    for (const std::size_t window : {0, 20, 33}) {
      for (const std::size_t head_values : {32, 64, 128, 256}) {
        // A few tokens, a tile with several texts, and more than a tile.
        run({.type = type, .head_values = head_values, .positions = from(0, 5), .window = window, .both_ways = true},
            kHalf, kHalfRms);
        run({.type = type,
             .group = 1,
             .head_values = head_values,
             .positions = {0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2, 3, 0},
             .sequences = {0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 3},
             .window = window,
             .both_ways = true},
            kHalf, kHalfRms);
        run({.type = type, .head_values = head_values, .positions = from(0, 300), .window = window, .both_ways = true},
            kHalf, kHalfRms);
        run({.type = type,
             .head_values = head_values,
             .positions = from(0, 90),
             .window = window,
             .exact = true,
             .both_ways = true},
            kTight, kTightRms);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CudaAttention, HeadsOf512Values) {
  for (const CacheType type : kTypes) {
    for (const std::size_t head_values : {512, 320, 264}) {
      if (!fits(type, head_values)) continue;
      for (const std::int32_t position : {0, 31, 32, 64, 1000, 5000}) {
        run({.type = type, .kv_heads = 1, .group = 8, .head_values = head_values, .positions = {position}}, kHalf,
            kHalfRms);
        run({.type = type,
             .kv_heads = 2,
             .group = 3,
             .head_values = head_values,
             .positions = {position},
             .window = 100},
            kHalf, kHalfRms);
        if (HasFatalFailure()) return;
      }
      run({.type = type, .kv_heads = 2, .group = 4, .head_values = head_values, .positions = from(500, 130)}, kHalf,
          kHalfRms);
      run({.type = type, .kv_heads = 1, .group = 20, .head_values = head_values, .positions = from(3, 70), .cap = 20},
          kHalf, kHalfRms);
      run({.type = type,
           .kv_heads = 1,
           .group = 4,
           .head_values = head_values,
           .positions = from(3, 70),
           .window = 20,
           .sinks = true},
          kHalf, kHalfRms);
      run({.type = type, .kv_heads = 1, .group = 4, .head_values = head_values, .positions = {900}, .sinks = true},
          kHalf, kHalfRms);
      run({.type = type,
           .kv_heads = 1,
           .group = 4,
           .head_values = head_values,
           .positions = {300, 5, -1, 0, 640},
           .sequences = {0, 1, 2, 3, 4},
           .separate = true},
          kHalf, kHalfRms);
      run({.type = type,
           .kv_heads = 1,
           .group = 4,
           .head_values = head_values,
           .positions = from(3, 40),
           .exact = true},
          kTight, kTightRms);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaAttention, RowsThatAreKeysAndValuesOfAllHeads) {
  for (const CacheType type : kTypes) {
    for (const std::size_t heads : {1, 16, 40, 128}) {
      for (const std::int32_t position : {0, 31, 32, 700, 5000}) {
        run({.type = type,
             .kv_heads = 1,
             .group = heads,
             .head_values = 576,
             .positions = {position},
             .shared_values = 512},
            kHalf, kHalfRms);
        if (HasFatalFailure()) return;
      }
      run({.type = type,
           .kv_heads = 1,
           .group = heads,
           .head_values = 576,
           .positions = {7, 900, 3, 64},
           .sequences = {0, 1, 2, 3},
           .separate = true,
           .shared_values = 512},
          kHalf, kHalfRms);
      run({.type = type,
           .kv_heads = 1,
           .group = heads,
           .head_values = 576,
           .positions = from(100, 50),
           .shared_values = 512},
          kHalf, kHalfRms);
      run({.type = type,
           .kv_heads = 1,
           .group = heads,
           .head_values = 288,
           .positions = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2, 3, 4, 5, 20, 21},
           .sequences = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2},
           .shared_values = 256},
          kHalf, kHalfRms);
      run({.type = type,
           .kv_heads = 1,
           .group = heads,
           .head_values = 576,
           .positions = from(3, 20),
           .exact = true,
           .shared_values = 512},
          kTight, kTightRms);
      run({.type = type, .kv_heads = 1, .group = heads, .head_values = 96, .positions = {200}, .shared_values = 64},
          kTight, kTightRms);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaAttention, OneGraphServesManyPositions) {
  const Case c{.positions = {1000}, .longest = 1500};
  const Layer layer(*device(), c);
  std::byte* const memory = scratch(layer.scratch_bytes());
  OnDevice<std::int32_t> position = zeros<std::int32_t>(1);
  TokenPlaces places = layer.places();
  places.position = position.data();
  const imago::cuda::Graph graph(stream(), [&] { attention(layer.args(memory), places, stream()); });
  for (const std::int32_t at : {0, 1, 130, 257, 999, 1000}) {
    stream().copy_in(std::as_bytes(std::span(&at, 1)), position.data());
    graph.launch(stream());
    stream().wait();
    const std::vector<float> recorded = layer.y();
    attention(layer.args(memory), places, stream());
    stream().wait();
    ASSERT_EQ(layer.y(), recorded) << "at " << at;
  }
  layer.expect_host(kTight, kTightRms);
}

TEST_F(CudaAttention, LargeAndTinyValuesStayFinite) {
  // Queries of 1e5 do not fit in half precision; their products with keys are far apart, so one key takes all.
  const CacheShape shape{CacheType::f16, 1, 64, 64};
  std::vector<float> q(64), k = gaussian(64 * 64, 1), v = gaussian(64 * 64, 2);
  for (const float size : {1e5f, 1e-6f}) {
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = size * (i % 3 == 0 ? 1.0f : -0.5f);
    std::vector<std::byte> keys(shape.bytes()), values(shape.bytes());
    append_to_cache(shape, k, 0, keys);
    append_to_cache(shape, v, 0, values);
    const KeyRange range{0, 64};
    std::vector<float> wanted(64);
    kernels::attention(shape, keys, values, q, 1, {&range, 1}, wanted, {.scale = 0.125f});
    OnDevice<float> gpu_q = up(q), y = zeros<float>(64);
    OnDevice<std::byte> gpu_keys = up(keys), gpu_values = up(values);
    OnDevice<GpuCache> caches = up(std::vector<GpuCache>{{gpu_keys.data(), gpu_values.data()}});
    OnDevice<std::int32_t> position = up(std::vector<std::int32_t>{63});
    const TokenPlaces places{.sequence = nullptr, .position = position.data(), .tokens = 1, .longest = 63};
    attention({.q = gpu_q.data(),
               .y = y.data(),
               .heads = 1,
               .options = {.scale = 0.125f},
               .shape = shape,
               .caches = caches.data(),
               .scratch = scratch(attention_scratch_bytes(shape, 1, places))},
              places, stream());
    stream().wait();
    const std::vector<float> got = y.values();
    for (std::size_t i = 0; i < 64; ++i) ASSERT_NEAR(got[i], wanted[i], 2e-5) << size << ", value " << i;
  }
}

}  // namespace
}  // namespace imago::kernels::cuda
