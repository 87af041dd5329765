// Operations between products on a GPU, for the shapes of an 8 B llama. Each is recorded 20 times in one graph, so that
// launches cost what they cost in a decode step.

#include "gpu_ops.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/experts.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/expert_products.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/recurrent.h"
#include "testing/gpu_values.h"

namespace imago::bench {

namespace {

using kernels::Activation;
using kernels::CacheShape;
using kernels::CacheType;
using kernels::LinearScanShape;
using namespace backend::cuda;
using namespace kernels::cuda;

constexpr std::size_t kWidth = 4096, kHidden = 14336, kHeads = 32, kKvHeads = 8, kHeadValues = 128,
                      kVocabulary = 128256;

class Timing {
 public:
  explicit Timing(std::shared_ptr<Device> device) : device_(std::move(device)), stream_(device_) {}

  /// Median seconds of one `work` in a graph of `count`.
  double seconds(int count, const std::function<void()>& work) {
    work();
    stream_.wait();
    const imago::cuda::Graph graph(stream_, [&] {
      for (int i = 0; i < count; ++i) work();
    });
    std::vector<double> times;
    for (int i = 0; i < 7; ++i) {
      imago::cuda::Event begin, end;
      begin.record(stream_);
      graph.launch(stream_);
      end.record(stream_);
      times.push_back(imago::cuda::Event::seconds_between(begin, end) / count);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  OnDevice<float> values(std::size_t count, float deviation = 1) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal(0, deviation);
    std::vector<float> x(std::min<std::size_t>(count, 100003));
    for (float& value : x) value = normal(generator);
    const std::size_t known = x.size();
    x.resize(count);
    for (std::size_t i = known; i < count; ++i) x[i] = x[i - known];
    return {*device_, x};
  }

  void ops();
  void place_tokens();
  void scans();
  void experts();
  void decode(CacheType type, std::size_t context, std::size_t tokens);
  void prefill(CacheType type, std::size_t tokens, std::size_t heads, std::size_t kv_heads, std::size_t head_values);

 private:
  std::shared_ptr<Device> device_;
  Stream stream_;
};

const char* name(CacheType type) { return type == CacheType::f32 ? "f32" : type == CacheType::f16 ? "f16" : "q8_0"; }

void Timing::ops() {
  OnDevice<float> x = values(2048 * kHidden), branch = values(2048 * kWidth), weight = values(kHidden),
                  y = values(2048 * kHidden);
  OnDevice<std::int8_t> q(*device_, std::vector<std::int8_t>(2048 * kHidden));
  OnDevice<float2_pod> scales(*device_, std::vector<float2_pod>(2048 * kHidden / 32));
  const Int8Out int8{q.data(), scales.data()};
  for (const std::size_t rows : {1, 8, 2048}) {
    const double full = seconds(20, [&] {
      norm({.x = x.data(),
            .branch = branch.data(),
            .branch_factor = 0,
            .weight = weight.data(),
            .y = y.data(),
            .int8 = int8,
            .rows = rows,
            .cols = kWidth},
           stream_);
    });
    const double bytes = static_cast<double>(rows * kWidth) * (4 * 4 + 1.25);
    std::printf("norm + residual + int8  %5zu x 4096   %9.2f us  %7.0f GB/s\n", rows, 1e6 * full, 1e-9 * bytes / full);
    const double gate =
        seconds(20, [&] { activate(Activation::silu, x.data(), y.data(), y.data(), rows, kHidden, int8, stream_); });
    const double gate_bytes = static_cast<double>(rows * kHidden) * (3 * 4 + 1.25);
    std::printf("silu(gate) up + int8    %5zu x 14336  %9.2f us  %7.0f GB/s\n", rows, 1e6 * gate,
                1e-9 * gate_bytes / gate);
  }
  OnDevice<float> logits = values(kVocabulary, 3);
  OnDevice<std::int32_t> out(*device_, std::vector<std::int32_t>(1));
  std::printf("argmax of 128256                      %9.2f us\n",
              1e6 * seconds(20, [&] { argmax(logits.data(), 1, kVocabulary, out.data(), stream_); }));
  for (const int top_k : {40, 0}) {
    const SampleChoice choice{.temperature = 0.8f, .top_p = 0.95f, .min_p = 0.05f, .top_k = top_k, .random = 0.5};
    const double time = seconds(20, [&] { sample(logits.data(), {&choice, 1}, kVocabulary, out.data(), stream_); });
    std::printf("sample, top_k %2d, top_p 0.95           %9.2f us\n", top_k, 1e6 * time);
  }
  std::printf("softmax of 128256                     %9.2f us\n",
              1e6 * seconds(20, [&] { softmax(logits.data(), 1, kVocabulary, 1, 0, stream_); }));
}

/// What passes states on in blocks of qwen3_next (delta rule), mamba2-2.7b and mamba-2.8b.
void Timing::scans() {
  constexpr std::size_t kTokens = 2048, kConvChannels = 8192, kChannels = 5120, kStates = 16;
  const LinearScanShape kDelta{.heads = 32, .groups = 16, .keys = 128, .values = 128, .delta = true};
  const LinearScanShape kMamba2{.heads = 80, .groups = 1, .keys = 128, .values = 64};
  OnDevice<float> in = values(kTokens * kConvChannels, 0.1f), out = values(kTokens * kConvChannels);
  OnDevice<float> steps = values(kTokens * kChannels), weights = values(kConvChannels * kStates, 0.1f);
  OnDevice<float> state = values(std::max(kDelta.state(), kMamba2.state()), 0.1f);
  for (const std::size_t tokens : {std::size_t{1}, kTokens}) {
    OnDevice<StateRun> run(*device_, std::vector<StateRun>{{.state = state.data(),
                                                            .kept = nullptr,
                                                            .first = 0,
                                                            .tokens = static_cast<std::int32_t>(tokens),
                                                            .kept_tokens = 0,
                                                            .is_new = 1}});
    const StateRuns runs{run.data(), 1, tokens};
    const auto print = [&](const char* what, auto&& work) {
      std::printf("%-23s %5zu tokens   %9.2f us\n", what, tokens, 1e6 * seconds(20, work));
    };
    const auto scan = [&](const LinearScanShape& shape) {
      linear_scan({.shape = shape,
                   .channels = in.data(),
                   .step = steps.data(),
                   .gate = shape.delta ? steps.data() : nullptr,
                   .step_bias = weights.data(),
                   .decay_rate = weights.data(),
                   .low_step = 0,
                   .high_step = 1,
                   .y = out.data(),
                   .state_at = 0},
                  runs, stream_);
    };
    print("short conv 8192", [&] {
      short_conv({.x = in.data(),
                  .y = out.data(),
                  .taps = weights.data(),
                  .channels = kConvChannels,
                  .kernel = 4,
                  .state_at = 0,
                  .silu = true},
                 runs, stream_);
    });
    print("delta 32 x 128 x 128", [&] { scan(kDelta); });
    print("scan 80 x 128 x 64", [&] { scan(kMamba2); });
    print("scan 5120 channels x 16", [&] {
      channel_scan({.x = in.data(),
                    .step = steps.data(),
                    .inputs = in.data(),
                    .step_bias = weights.data(),
                    .decay_rate = weights.data(),
                    .skip = weights.data(),
                    .y = out.data(),
                    .channels = kChannels,
                    .states = kStates,
                    .state_at = 0},
                   runs, stream_);
    });
  }
}

/// The experts of a block of qwen3_moe in q4_k, other ones at each turn.
void Timing::experts() {
  constexpr std::size_t kExperts = 128, kUsed = 8, kOuter = 2048, kInner = 768, kMost = 512, kTurns = 16;
  const backend::Experts step{.count = kExperts, .used = kUsed};
  std::vector<std::byte> packed(packed_bytes(BlockFormat::q4_k, kOuter * kInner));
  std::mt19937 generator(1);
  for (std::size_t i = 0; i < packed.size(); ++i) packed[i] = static_cast<std::byte>(generator() & 0x3Fu);
  std::vector<GpuMatrix> matrices;
  std::vector<ExpertMatrices> hidden, down;
  const auto add = [&](std::size_t rows, std::size_t cols) {
    const kernels::PackedMatrix source{.format = BlockFormat::q4_k, .rows = rows, .cols = cols, .packed = packed};
    return matrices.emplace_back(device_, source).planes();
  };
  for (std::size_t e = 0; e < kExperts; ++e) {
    hidden.push_back({.matrix = add(kInner, kOuter), .up = add(kInner, kOuter)});
    down.push_back({.matrix = add(kOuter, kInner), .up = {}});
  }
  OnDevice<ExpertMatrices> hidden_table(*device_, hidden), down_table(*device_, down);
  const ExpertLayer hidden_layer{
      .experts = hidden_table.data(), .rows = kInner, .cols = kOuter, .activation = Activation::silu, .gated = true};
  const ExpertLayer down_layer{.experts = down_table.data(), .rows = kOuter, .cols = kInner};
  constexpr std::size_t kRows = kMost * kUsed;
  OnDevice<float> x = values(kMost * kOuter), inner = values(kRows * kInner), results = values(kRows * kOuter);
  OnDevice<float> scores = values(kMost * kExperts), weights = values(kRows), y = values(kMost * kOuter);
  OnDevice<std::int8_t> q(*device_, std::vector<std::int8_t>(kRows * kInner));
  OnDevice<float2_pod> scales(*device_, std::vector<float2_pod>(q.size() / 32));
  std::vector<std::int32_t> choice;
  for (std::size_t i = 0; i < kTurns * kRows; ++i) choice.push_back(static_cast<std::int32_t>(generator() % kExperts));
  OnDevice<std::int32_t> chosen(*device_, choice), row_of(*device_, std::vector<std::int32_t>(kRows));
  std::size_t turn = 0;
  const auto next = [&] { return chosen.data() + turn++ % kTurns * kRows; };
  const auto print = [&](const char* what, std::size_t tokens, double bytes, auto&& work) {
    const double time = seconds(20, work);
    std::printf("experts: %-14s %5zu tokens   %9.2f us  %7.0f GB/s\n", what, tokens, 1e6 * time, 1e-9 * bytes / time);
  };
  const double matrix_bytes = static_cast<double>(packed.size());
  print("choice", 1, 4.0 * kExperts, [&] {
    choose_experts(step,
                   {.products = scores.data(),
                    .choice_bias = nullptr,
                    .chosen = row_of.data(),
                    .weights = weights.data(),
                    .tokens = 1},
                   stream_);
  });
  print("gate and up", 1, 2 * kUsed * matrix_bytes, [&] {
    multiply_experts(BlockFormat::q4_k,
                     {.layer = hidden_layer,
                      .chosen = next(),
                      .q = q.data(),
                      .scales = scales.data(),
                      .int8 = {q.data() + kOuter, scales.data() + kOuter / 32},
                      .count = kUsed,
                      .share = kUsed},
                     stream_);
  });
  print("down", 1, kUsed * matrix_bytes, [&] {
    multiply_experts(BlockFormat::q4_k,
                     {.layer = down_layer,
                      .chosen = next(),
                      .q = q.data(),
                      .scales = scales.data(),
                      .y = results.data(),
                      .count = kUsed,
                      .share = 1},
                     stream_);
  });
  print("sum", 1, 4.0 * kUsed * kOuter, [&] {
    combine_experts({.results = results.data(),
                     .row_of = nullptr,
                     .weights = weights.data(),
                     .out = y.data(),
                     .tokens = 1,
                     .used = kUsed,
                     .width = kOuter},
                    stream_);
  });
  const ExpertTiles tiles = expert_tiles(kRows, kExperts);
  OnDevice<ExpertTile> list(*device_, std::vector<ExpertTile>(tiles.most));
  OnDevice<std::int32_t> sources(*device_, std::vector<std::int32_t>(std::size_t{tiles.most} * tiles.rows)),
      places(*device_, std::vector<std::int32_t>(sources.size()));
  ProductScratch scratch(device_);
  print("arrangement", kMost, 4.0 * kRows, [&] {
    arrange_experts({.chosen = chosen.data(),
                     .rows = kRows,
                     .used = kUsed,
                     .experts = kExperts,
                     .tiles = tiles,
                     .list = list.data(),
                     .tokens = sources.data(),
                     .places = places.data(),
                     .row_of = row_of.data()},
                    stream_);
  });
  const auto tiles_of = [&](const ExpertLayer& layer, const OnDevice<std::int32_t>& rows, const OnDevice<float>& from,
                            std::size_t from_rows, const OnDevice<float>& to) {
    matmul_experts(BlockFormat::q4_k,
                   {.layer = layer,
                    .tiles = tiles,
                    .list = list.data(),
                    .sources = rows.data(),
                    .x = from.data(),
                    .x_rows = from_rows,
                    .y = to.data()},
                   scratch, stream_);
  };
  print("gate and up", kMost, 2 * kExperts * matrix_bytes, [&] { tiles_of(hidden_layer, sources, x, kMost, inner); });
  print("down", kMost, kExperts * matrix_bytes, [&] { tiles_of(down_layer, places, inner, kRows, results); });
}

void Timing::place_tokens() {
  constexpr std::size_t kRows = 2048;
  const CacheShape shape{CacheType::f16, kKvHeads, kRows, kHeadValues};
  OnDevice<float> q = values(kRows * kHeads * kHeadValues), k = values(kRows * kKvHeads * kHeadValues),
                  v = values(k.size());
  OnDevice<float> rope = values(kRows * kHeadValues);
  OnDevice<std::byte> keys(*device_, std::vector<std::byte>(shape.bytes())),
      cached(*device_, std::vector<std::byte>(shape.bytes()));
  OnDevice<GpuCache> caches(*device_, std::vector<GpuCache>{{keys.data(), cached.data()}});
  std::vector<std::int32_t> positions(kRows);
  for (std::size_t i = 0; i < kRows; ++i) positions[i] = static_cast<std::int32_t>(i);
  OnDevice<std::int32_t> gpu_positions(*device_, positions);
  for (const std::size_t tokens : {std::size_t{1}, kRows}) {
    const double time = seconds(20, [&] {
      place({.q = q.data(),
             .k = k.data(),
             .v = v.data(),
             .heads = kHeads,
             .rope = rope.data(),
             .rotary = kHeadValues,
             .shape = shape,
             .caches = caches.data()},
            {.sequence = nullptr, .position = gpu_positions.data(), .tokens = tokens, .longest = kRows - 1}, stream_);
    });
    std::printf("place f16               %5zu tokens   %9.2f us\n", tokens, 1e6 * time);
  }
}

void Timing::decode(CacheType type, std::size_t context, std::size_t tokens) {
  // Several layers' caches in turn, so that none is found in the L2 cache if a real step would not find it there.
  const CacheShape shape{type, kKvHeads, context, kHeadValues};
  const std::size_t copies = std::clamp<std::size_t>((std::size_t{512} << 20) / (2 * shape.bytes()), 1, 20);
  std::vector<imago::cuda::Array<std::byte>> memory;
  std::vector<GpuCache> pointers;
  for (std::size_t i = 0; i < copies; ++i) {
    memory.emplace_back(*device_, 2 * shape.bytes());
    pointers.push_back({memory.back().data(), memory.back().data() + shape.bytes()});
  }
  OnDevice<GpuCache> caches(*device_, pointers);
  OnDevice<float> q = values(tokens * kHeads * kHeadValues), y = values(q.size());
  OnDevice<std::int8_t> codes(*device_, std::vector<std::int8_t>(q.size()));
  OnDevice<float2_pod> scales(*device_, std::vector<float2_pod>(q.size() / 32));
  OnDevice<std::int32_t> positions(*device_, std::vector<std::int32_t>(tokens, static_cast<std::int32_t>(context - 1)));
  const TokenPlaces places{.sequence = nullptr, .position = positions.data(), .tokens = tokens, .longest = context - 1};
  imago::cuda::Array<std::byte> scratch(*device_, attention_scratch_bytes(shape, kHeads, places));
  std::size_t turn = 0;
  const double time = seconds(20, [&] {
    attention({.q = q.data(),
               .y = y.data(),
               .int8 = {codes.data(), scales.data()},
               .heads = kHeads,
               .options = {.scale = 1 / std::sqrt(128.0f)},
               .shape = shape,
               .caches = caches.data() + turn++ % copies,
               .scratch = scratch.data()},
              places, stream_);
  });
  const double bytes = 2 * static_cast<double>(shape.bytes());
  std::printf("decode %-4s context %6zu, %2zu tokens  %9.2f us  %7.0f GB/s\n", name(type), context, tokens, 1e6 * time,
              1e-9 * bytes / time);
}

void Timing::prefill(CacheType type, std::size_t tokens, std::size_t heads, std::size_t kv_heads,
                     std::size_t head_values) {
  const CacheShape shape{type, kv_heads, tokens, head_values};
  imago::cuda::Array<std::byte> memory(*device_, 2 * shape.bytes());
  OnDevice<GpuCache> caches(*device_, std::vector<GpuCache>{{memory.data(), memory.data() + shape.bytes()}});
  OnDevice<float> q = values(tokens * heads * head_values), y = values(q.size());
  std::vector<std::int32_t> rising(tokens);
  for (std::size_t i = 0; i < tokens; ++i) rising[i] = static_cast<std::int32_t>(i);
  OnDevice<std::int32_t> positions(*device_, rising);
  const TokenPlaces places{.sequence = nullptr, .position = positions.data(), .tokens = tokens, .longest = tokens - 1};
  imago::cuda::Array<std::byte> scratch(*device_, attention_scratch_bytes(shape, heads, places));
  for (const bool exact : {false, true}) {
    if (exact && (type != CacheType::f16 || tokens > 2048)) continue;
    const double time = seconds(exact ? 1 : 5, [&] {
      attention({.q = q.data(),
                 .y = y.data(),
                 .heads = heads,
                 .options = {.scale = 1 / std::sqrt(128.0f)},
                 .shape = shape,
                 .caches = caches.data(),
                 .scratch = scratch.data(),
                 .exact = exact},
                places, stream_);
    });
    // Each query sees half of the keys; two products of head_values, two operations each.
    const double operations = 4.0 * 0.5 * static_cast<double>(tokens * tokens * heads * head_values);
    std::printf("prefill %-4s %5zu tokens %2zu/%zu x %3zu%s %9.2f us  %7.1f TFLOP/s\n", name(type), tokens, heads,
                kv_heads, head_values, exact ? " exact" : "", 1e6 * time, 1e-12 * operations / time);
  }
}

}  // namespace

void gpu_ops_table(const std::shared_ptr<Device>& device) {
  Timing timing(device);
  timing.ops();
  timing.place_tokens();
  timing.scans();
  timing.experts();
  for (const CacheType type : {CacheType::f16, CacheType::q8_0, CacheType::f32}) {
    for (const std::size_t context : {1, 128, 256, 512, 2048, 8192, 32768}) timing.decode(type, context, 1);
  }
  timing.decode(CacheType::f16, 2048, 8);
  for (const CacheType type : {CacheType::f16, CacheType::q8_0, CacheType::f32}) {
    timing.prefill(type, 2048, kHeads, kKvHeads, kHeadValues);
  }
  timing.prefill(CacheType::f16, 512, kHeads, kKvHeads, kHeadValues);
  timing.prefill(CacheType::f16, 8192, kHeads, kKvHeads, kHeadValues);
  timing.prefill(CacheType::f16, 2048, 16, 16, 64);
  timing.prefill(CacheType::f16, 2048, 16, 8, 256);
}

}  // namespace imago::bench
