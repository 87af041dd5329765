// Encoding and decoding rates of every type, beside llama-quantize where it is on PATH: one matrix, one run.

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "base/cpu.h"
#include "base/parallel.h"
#include "harness.h"
#include "imago/codec.h"
#include "imago/numeric.h"
#include "imago/system.h"
#include "kernels/codec.h"
#include "llama_quantize.h"

namespace imago::bench {
namespace {

constexpr std::size_t kCount = std::size_t{16384} * LlamaQuantize::kColumns;  // 256 MiB of float32, beyond every cache

/// sqrt(Σ (w - v)² / Σ w²)
double relative_error(std::span<const float> weights, std::span<const float> values) {
  double error = 0;
  double power = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double w = weights[i];
    const double e = w - static_cast<double>(values[i]);
    error += e * e;
    power += w * w;
  }
  return std::sqrt(error / power);
}

struct Buffers {
  std::vector<float> weights = synthetic_weights(kCount);
  std::vector<float> values = std::vector<float>(kCount);
  std::vector<std::byte> packed = std::vector<std::byte>(kCount * sizeof(double));
};

void print_row(Format format, Buffers& b, const LlamaQuantize* llama, double copy_rate) {
  const std::size_t bytes = packed_bytes(format, kCount);
  const std::span<std::byte> packed = std::span(b.packed).first(bytes);
  const float scale = derive_scale(format, std::span(b.weights).first(1u << 18));
  const Scales scales{std::span(&scale, 1), kCount};
  const Timing encoding = measure(3, [&] { encode(format, b.weights, scales, packed); });
  const Timing decoding = measure(5, [&] { decode(format, packed, scales, b.values); });
  const double error = relative_error(b.weights, b.values);
  const double rate = kCount / encoding.median;
  const double moved = static_cast<double>(bytes + kCount * sizeof(float)) / decoding.median;
  fmt::print("{:<20} {:>9.1f} {:>8.0f} {:>5.0f}% {:>8.0f} {:>5.0f}% {:>9.2f} {:>10.5f}",
             kernels::choose_codec(format, allowed_cpu_features()).name, format.bits(), rate * 1e-6,
             encoding.spread * 100, kCount / decoding.median * 1e-6, decoding.spread * 100, moved / copy_rate, error);
  std::optional<LlamaQuantize::Result> theirs;
  if (llama != nullptr && format.is_block()) theirs = llama->run(format.block(), thread_count());
  if (theirs) {
    decode(format.block(), theirs->packed, b.values);
    const double their_rate = kCount / theirs->seconds;
    fmt::print(" {:>9.0f} {:>7.1f}x {:>9.3f}", their_rate * 1e-6, rate / their_rate,
               error / relative_error(b.weights, b.values));
  }
  fmt::print("\n");
  std::fflush(stdout);
}

int run() {
  Buffers b;
  std::optional<LlamaQuantize> llama;
  if (LlamaQuantize::available()) llama.emplace(b.weights);
  const Timing copy = measure(5, [&] {
    parallel_for(kCount, 4096, [&](std::size_t begin, std::size_t end) {
      std::memcpy(b.packed.data() + begin * sizeof(float), b.weights.data() + begin, (end - begin) * sizeof(float));
    });
  });
  const double copy_rate = 2 * kCount * sizeof(float) / copy.median;

  fmt::print("{}, {} threads, {} M weights; rates in million weights per second, spread beside them.\n",
             cpu_model_name(), thread_count(), kCount / 1000000);
  fmt::print("'of copy' is bytes moved by decoding against a copy with the same threads in this run ({:.1f} GB/s).\n",
             copy_rate * 1e-9);
  fmt::print("llama-quantize: {}\n\n",
             llama ? "on PATH; its rate includes its file reading and writing" : "not on PATH");
  fmt::print("{:<20} {:>9} {:>8} {:>6} {:>8} {:>6} {:>9} {:>10} {:>9} {:>8} {:>9}\n", "kernel", "bits", "encode", "",
             "decode", "", "of copy", "rel. error", "llama", "ratio", "err ratio");
  for (const DTypeInfo& type : kDTypes) print_row(type.id, b, nullptr, copy_rate);
  for (const BlockFormatInfo& format : kBlockFormats) print_row(format.id, b, llama ? &*llama : nullptr, copy_rate);
  return 0;
}

}  // namespace
}  // namespace imago::bench

int main() {
  try {
    return imago::bench::run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "imago_bench_codecs: error: {}\n", error.what());
    return 1;
  }
}
