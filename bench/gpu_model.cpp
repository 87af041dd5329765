#include "gpu_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "device/cuda/stream.h"
#include "gpu_read.h"
#include "harness.h"
#include "imago/codec.h"
#include "imago/engine.h"
#include "imago/lm.h"
#include "kernels/cuda/cublas.h"
#include "lm/language_model_state.h"
#include "models/program.h"
#include "models/tensor_layout.h"

namespace imago::bench {

namespace {

models::Traits llama_8b() {
  models::Traits traits;
  traits.architecture = models::Architecture::llama;
  traits.blocks = 32;
  traits.width = 4096;
  traits.heads = 32;
  traits.kv_heads = 8;
  traits.head_values = traits.rotary = 128;
  traits.feed_forward = 14336;
  traits.vocabulary = 128256;
  traits.context = 8192;
  traits.norm_eps = 1e-5;
  traits.rope_base = 500000;
  traits.rope_in_block.assign(traits.blocks, true);
  traits.block_window.assign(traits.blocks, 0);
  traits.attention_scale = 1 / std::sqrt(static_cast<float>(traits.head_values));
  return traits;
}

/// The same few encoded weights again and again, for matrices of any size.
class Filler {
 public:
  Filler(Format format, std::size_t most) : format_(format) {
    constexpr std::size_t kWeights = std::size_t{4} << 20;
    const std::vector<float> weights = synthetic_weights(kWeights);
    std::vector<std::byte> pattern(packed_bytes(format, kWeights));
    encode(format, weights, {}, pattern);
    packed_.resize(packed_bytes(format, most));
    for (std::size_t at = 0; at < packed_.size(); at += pattern.size()) {
      std::copy_n(pattern.begin(), std::min(pattern.size(), packed_.size() - at),
                  packed_.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  kernels::PackedMatrix matrix(std::size_t rows, std::size_t cols) const {
    return {.format = format_, .rows = rows, .cols = cols, .packed = packed_};
  }

 private:
  Format format_;
  std::vector<std::byte> packed_;
};

LanguageModel make_model(const std::shared_ptr<Device>& device) {
  lm::DecoderWeights weights;
  weights.traits = llama_8b();
  const models::Traits& traits = weights.traits;
  weights.program = std::make_shared<const backend::Program>(models::make_program(traits));
  weights.runners.push_back(backend::make_cuda_runner(device, weights.program, {.blocks = {0, traits.blocks}}));
  backend::Runner& runner = *weights.runners.back();
  const Filler filler(BlockFormat::q4_k, traits.vocabulary * traits.width);
  const auto put = [&](const backend::WeightUse& use) {
    if (use.kind == backend::WeightUse::Kind::bias) return;
    std::vector<backend::KeyedMatrix> matrices;
    for (const backend::WeightKey& key : use.keys) {
      const models::RoleExtent extent = models::extent_of(traits, key.role);
      if (extent.vector) return runner.take(key, std::vector<float>(extent.rows, 1.0f));
      matrices.push_back({key, filler.matrix(extent.rows, extent.cols)});
      weights.parameters += extent.rows * extent.cols;
    }
    runner.exchange(*runner.lay_out(matrices));
  };
  for (const auto& block : weights.program->blocks) {
    for (const backend::WeightUse& use : backend::weights_of(block)) put(use);
  }
  for (const backend::WeightUse& use : backend::weights_of(weights.program->output)) put(use);
  put({backend::WeightUse::Kind::matrix, {weights.program->embed.table}});
  runner.finish();
  weights.type = "q4_k";
  weights.count_bytes();
  return LanguageModelAccess::assemble(std::move(weights));
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Operations per second of cuBLAS with bfloat16; 0 without it.
double cublas_rate(const std::shared_ptr<Device>& device) {
  if (!kernels::cuda::cublas_problem().empty()) return 0;
  constexpr std::size_t kSize = 8192;
  constexpr int kRuns = 10;
  imago::cuda::Stream stream(device);
  const imago::cuda::Array<std::uint16_t> w(*device, kSize * kSize), x(*device, kSize * kSize);
  const imago::cuda::Array<float> y(*device, kSize * kSize);
  // Zeros would cost less power than numbers do, and so run faster than any: small bit patterns of every kind.
  std::vector<std::uint16_t> values(kSize * kSize);
  std::uint32_t state = 1;
  for (std::uint16_t& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<std::uint16_t>(0x3f00u | (state >> 24) | ((state >> 8) & 0x8000u));
  }
  stream.copy_in(std::as_bytes(std::span(values)), w.data());
  stream.copy_in(std::as_bytes(std::span(values)), x.data());
  stream.wait();
  const kernels::cuda::WeightProduct product{.type = kernels::cuda::GemmType::bfloat16,
                                             .rows = kSize,
                                             .cols = kSize,
                                             .tokens = kSize,
                                             .w = w.data(),
                                             .x = x.data(),
                                             .y = y.data()};
  const Timing timing = measure(3, [&] {
    for (int i = 0; i < kRuns; ++i) kernels::cuda::weight_product(product, stream);
    stream.wait();
  });
  return kRuns * 2.0 * kSize * kSize * kSize / timing.median;
}

void generation(const LanguageModel& model, std::size_t past, double bandwidth) {
  constexpr std::size_t kSteps = 128;
  const lm::LoadedModel& loaded = LanguageModelAccess::loaded(model);
  const models::Traits& traits = loaded.weights.traits;
  std::vector<TokenId> ids(past);
  for (std::size_t i = 0; i < past; ++i) ids[i] = static_cast<TokenId>(i * 7919 % traits.vocabulary);
  Sequence sequence(model, {.context = past + kSteps});
  sequence.append(ids);
  TokenId next = 1;
  const auto steps = [&] {
    for (std::size_t i = 0; i < kSteps; ++i) next = SequenceAccess::append(sequence, {&next, 1}, {});
  };
  const Timing timing = measure(3, [&] {
    sequence.truncate(past);
    steps();
  });
  const double token = timing.median / kSteps;
  const double keys = 2.0 * static_cast<double>(traits.blocks * traits.kv_heads * traits.head_values) * 2 *
                      (static_cast<double>(past) + kSteps / 2.0);
  const double bytes = static_cast<double>(loaded.weights.step_bytes) + keys;
  fmt::print(
      "generation after {:4} tokens: {:6.1f} tokens/s, {:.3f} ms a token, spread {:.0f} %; {:.2f} GB at {:.2f} "
      "TB/s would take {:.3f} ms: {:.2f} of that rate\n",
      past, 1 / token, 1e3 * token, 100 * timing.spread, 1e-9 * bytes, 1e-12 * bandwidth, 1e3 * bytes / bandwidth,
      bytes / bandwidth / token);
}

void prompt(const LanguageModel& model, std::size_t tokens, double rate) {
  const models::Traits& traits = LanguageModelAccess::loaded(model).weights.traits;
  std::vector<TokenId> ids(tokens);
  for (std::size_t i = 0; i < tokens; ++i) ids[i] = static_cast<TokenId>(i * 7919 % traits.vocabulary);
  Sequence sequence(model, {.context = tokens});
  const Timing timing = measure(5, [&] {
    sequence.truncate(0);
    SequenceAccess::append(sequence, ids, {});
  });
  const double block = static_cast<double>(traits.width) *
                       static_cast<double>(2 * traits.heads * traits.head_values +
                                           2 * traits.kv_heads * traits.head_values + 3 * traits.feed_forward);
  const double count = static_cast<double>(tokens);
  const double operations =
      static_cast<double>(traits.blocks) *
      (2 * block * count + 2 * count * count * static_cast<double>(traits.heads * traits.head_values));
  fmt::print(
      "prompt of {:4} tokens: {:6.1f} ms, spread {:.0f} %, {:.0f} tokens/s, {:.0f} TFLOP/s: {:.2f} of cuBLAS in "
      "bfloat16 at {:.0f}\n",
      tokens, 1e3 * timing.median, 100 * timing.spread, count / timing.median, 1e-12 * operations / timing.median,
      rate == 0 ? 0 : operations / timing.median / rate, 1e-12 * rate);
}

/// Answers of 256 tokens to that many requests at once, through an engine.
void requests(const std::shared_ptr<LanguageModel>& model, std::size_t count, float temperature) {
  constexpr std::size_t kPrompt = 16, kTokens = 256;
  Engine engine(model, {.context = 1024, .parallel = count, .cache_bytes = std::uint64_t{24} << 30});
  const auto run = [&] {
    std::vector<Generation> running;
    for (std::size_t i = 0; i < count; ++i) {
      Request request;
      request.generate = {
          .max_tokens = kTokens, .sampler = {.temperature = temperature, .seed = i + 1}, .ignore_end = true};
      request.reuse_prefix = false;
      for (std::size_t t = 0; t < kPrompt; ++t) {
        request.prompt.push_back(static_cast<TokenId>((i * 131 + t * 7919) % model->vocabulary()));
      }
      running.push_back(engine.submit(std::move(request)));
    }
    for (Generation& generation : running) generation.finish();
  };
  const Timing timing = measure(3, run);
  const EngineState state = engine.state();
  fmt::print("{:3} requests, temperature {}: {:6.0f} tokens/s, spread {:.0f} %, {:.2f} ms a step\n", count, temperature,
             static_cast<double>(count * kTokens) / timing.median, 100 * timing.spread,
             1e3 * (state.generate_seconds + state.prompt_seconds) / static_cast<double>(state.steps));
  std::fflush(stdout);
}

}  // namespace

void gpu_model_table(const std::shared_ptr<Device>& device) {
  const double bandwidth = read_bandwidth(device);
  const double rate = cublas_rate(device);
  std::shared_ptr<LanguageModel> made;
  const double loading = seconds_of([&] { made = std::make_shared<LanguageModel>(make_model(device)); });
  const LanguageModel& model = *made;
  fmt::print("llama, {:.2f} billion weights in q4_k, {:.2f} GB on {}, laid out and uploaded in {:.1f} s\n",
             1e-9 * static_cast<double>(LanguageModelAccess::loaded(model).weights.parameters),
             1e-9 * static_cast<double>(model.bytes()), device->name(), loading);
  std::fflush(stdout);
  generation(model, 16, bandwidth);
  std::fflush(stdout);
  prompt(model, 2048, rate);
  std::fflush(stdout);
  generation(model, 2048, bandwidth);
  prompt(model, 512, rate);
  for (const std::size_t count : {1, 4, 8, 16, 32, 64, 128}) requests(made, count, 0);
  requests(made, 32, 0.8f);
  LanguageModelAccess::loaded(model).weights.runners.back()->use_graphs(false);
  fmt::print("without graphs:\n");
  generation(model, 16, bandwidth);
}

}  // namespace imago::bench
