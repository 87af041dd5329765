#include "gpu_matvec.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <string>
#include <vector>

#include "device/cuda/stream.h"
#include "gpu_read.h"
#include "imago/codec.h"
#include "imago/numeric.h"
#include "kernels/cuda/matrix.h"
#include "kernels/cuda/ops.h"

namespace imago::bench {

namespace {

using imago::cuda::Array;
using imago::cuda::Event;
using imago::cuda::Graph;
using imago::cuda::Stream;
using kernels::Arithmetic;
using kernels::cuda::Activations;
using kernels::cuda::GpuMatrix;
using kernels::cuda::GpuProduct;
using kernels::cuda::ProductScratch;

/// Bytes of all matrices, which are read in turn: four times an L2 of 50 MB, so that none is still cached.
constexpr std::size_t kBytesInTurn = 200 << 20;

/// Bits of a pattern, repeated: time does not depend on the values, as long as they are numbers.
struct Source {
  std::vector<std::byte> bytes;
  std::vector<float> scales;
};
Source make_source(Format format, std::size_t rows, std::size_t cols) {
  constexpr std::size_t kPattern = 8;
  std::vector<float> weights(kPattern * cols);
  std::uint32_t state = 1;
  for (float& w : weights) {
    state = state * 1664525u + 1013904223u;
    w = static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
  }
  Source source;
  std::vector<std::byte> some(packed_bytes(format, weights.size()));
  source.scales.assign(rows, derive_scale(format, weights));
  encode(format, weights, {std::span(source.scales).first(kPattern), cols}, some);
  source.bytes.reserve(some.size() * rows / kPattern);
  for (std::size_t i = 0; i < rows / kPattern; ++i) source.bytes.insert(source.bytes.end(), some.begin(), some.end());
  return source;
}

/// 0: nothing is asked.
double target_of(Format format) {
  const double bits = format.bits();
  if (bits < 3) return 0.55;
  if (bits < 4) return 0;
  return bits >= 8 ? 0.85 : 0.75;
}

/// Activations of a product, and room for its results.
struct Operands {
  static constexpr std::size_t kMost = kernels::cuda::kMatVecTokens;
  Array<float> x, y;
  Array<std::int8_t> q;
  Array<kernels::cuda::float2_pod> scales;

  Operands(Device& device, std::size_t rows, std::size_t cols, Stream& stream)
      : x(device, kMost * cols), y(device, kMost * rows), q(device, kMost * cols), scales(device, kMost * cols / 32) {
    std::vector<float> values(kMost * cols);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7919 % 1000) * 0.002f - 1.0f;
    stream.copy_in(std::as_bytes(std::span(values)), x.data());
    kernels::cuda::quantize(x.data(), kMost, cols, {q.data(), scales.data()}, stream);
    stream.wait();
  }
};

/// Seconds of one product, when those of all matrices run one after the other in a graph.
double seconds_of(std::span<const GpuMatrix> matrices, const Operands& a, std::size_t tokens, ProductScratch& scratch,
                  Stream& stream) {
  const Activations input{
      .x = a.x.data(), .q = a.q.data(), .scales = a.scales.data(), .count = tokens, .cols = matrices[0].cols()};
  const std::size_t rounds = std::max<std::size_t>(1, 16 / matrices.size());
  const auto work = [&] {
    for (std::size_t round = 0; round < rounds; ++round) {
      for (const GpuMatrix& m : matrices) {
        const GpuProduct product{.matrix = &m, .y = a.y.data()};
        kernels::cuda::multiply({&product, 1}, input, Arithmetic::fast, scratch, stream);
      }
    }
  };
  work();
  const Graph graph(stream, work);
  graph.launch(stream);
  std::vector<double> all;
  for (int i = 0; i < 7; ++i) {
    Event begin, end;
    begin.record(stream);
    graph.launch(stream);
    end.record(stream);
    all.push_back(Event::seconds_between(begin, end) / static_cast<double>(rounds * matrices.size()));
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

struct Shape {
  std::size_t rows, cols;
};
constexpr std::size_t kTokens[] = {2, 4, 8};
constexpr Shape kShapes[] = {{14336, 4096}, {4096, 14336}, {28672, 8192}};  // of models of 8 and 70 billion weights

/// A shape of which one matrix is as large as all in turn: those above are within the L2 in few bits.
Shape large_shape(Format format) {
  constexpr std::size_t kCols = 8192, kRowsTogether = 1024;
  const double rows = static_cast<double>(kBytesInTurn) * 8 / (format.bits() * static_cast<double>(kCols));
  return {(static_cast<std::size_t>(rows) / kRowsTogether + 1) * kRowsTogether, kCols};
}

/// A format at a shape: its matrices, as many as it takes.
struct Case {
  double bytes;
  std::vector<GpuMatrix> matrices;
  Operands operands;

  Case(const std::shared_ptr<Device>& device, Format format, Shape shape, Stream& stream)
      : bytes(static_cast<double>(packed_bytes(format, shape.rows * shape.cols))),
        operands(*device, shape.rows, shape.cols, stream) {
    const Source source = make_source(format, shape.rows, shape.cols);
    const std::size_t copies = static_cast<std::size_t>(kBytesInTurn / bytes) + 1;
    for (std::size_t i = 0; i < copies; ++i) {
      matrices.emplace_back(
          device, kernels::PackedMatrix{format, shape.rows, shape.cols, source.bytes, {source.scales, shape.cols}});
    }
  }
};

std::vector<Format> formats_named(std::string_view only) {
  std::vector<Format> formats;
  for (const DTypeInfo& row : kDTypes) formats.emplace_back(row.id);
  for (const BlockFormatInfo& row : kBlockFormats) formats.emplace_back(row.id);
  std::erase_if(formats, [&](Format format) { return !format.name().starts_with(only); });
  return formats;
}

/// Types of which one matrix of a model is not several times the L2.
void print_large(const std::shared_ptr<Device>& device, std::string_view only, double read) {
  Stream stream(device);
  ProductScratch scratch(device);
  std::printf("\nmatvec of one matrix of %zu MiB, 8192 columns\n", kBytesInTurn >> 20);
  for (const Format format : formats_named(only)) {
    if (format.bits() >= 3) continue;
    const Shape shape = large_shape(format);
    const Case one(device, format, shape, stream);
    const double seconds = seconds_of(one.matrices, one.operands, 1, scratch, stream);
    std::printf("%-12.*s %5.2f | %6zu rows %7.2f us %6.3f\n", static_cast<int>(format.name().size()),
                format.name().data(), format.bits(), shape.rows, seconds * 1e6, one.bytes / seconds / read);
    std::fflush(stdout);
  }
}

}  // namespace

int gpu_matvec_table(const std::shared_ptr<Device>& device, std::string_view only) {
  const double copy = measure_copy_bandwidth(*device), read = read_bandwidth(device);
  std::printf("copy %.0f GB/s, read %.0f GB/s\n\n", copy * 1e-9, read * 1e-9);
  std::printf(
      "matvec, int8 activations (types over 8 bits and fp8: float32): us, and file bytes as part of read bandwidth\n");
  std::printf("%-12s %5s |", "", "");
  for (const Shape shape : kShapes) std::printf(" %5zu x %5zu |", shape.rows, shape.cols);
  std::printf("        | us for tokens, first and second shape\n%-12s %5s |", "format", "bits");
  for ([[maybe_unused]] const Shape shape : kShapes) std::printf(" %6s %6s |", "us", "part");
  std::printf(" %6s |", "target");
  for (int shape = 0; shape < 2; ++shape) {
    for (const std::size_t tokens : kTokens) std::printf(" %6zu", tokens);
  }
  std::printf("\n");
  Stream stream(device);
  ProductScratch scratch(device);
  int missed = 0;
  for (const Format format : formats_named(only)) {
    std::printf("%-12.*s %5.2f", static_cast<int>(format.name().size()), format.name().data(), format.bits());
    double worst = 1;
    std::vector<double> tokens_us;
    for (const Shape shape : kShapes) {
      const Case one(device, format, shape, stream);
      const auto seconds_with = [&](std::size_t tokens) {
        return seconds_of(one.matrices, one.operands, tokens, scratch, stream);
      };
      const double seconds = seconds_with(1);
      if (shape.cols != 8192) {
        for (const std::size_t tokens : kTokens) tokens_us.push_back(1e6 * seconds_with(tokens));
      }
      const double part = one.bytes / seconds / read;
      worst = std::min(worst, part);
      std::printf(" | %6.2f %6.3f", seconds * 1e6, part);
    }
    const double target = target_of(format);
    if (worst < target) ++missed;
    std::printf(" | %.2f %c |", target, worst < target ? '-' : '+');
    for (const double us : tokens_us) std::printf(" %6.2f", us);
    std::printf("\n");
    std::fflush(stdout);
  }
  std::printf("%d targets missed\n", missed);
  print_large(device, only, read);
  return missed;
}

}  // namespace imago::bench
