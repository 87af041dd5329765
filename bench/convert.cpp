// Converts a float16 GGUF of llama's shapes to q4_k and q8_0 and prints rate and peak memory, beside llama-quantize
// where that is on PATH: imago_bench_convert [BLOCKS, 16 make a model of 1 B parameters] [FOLDER].

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "folder.h"
#include "harness.h"
#include "imago/codec.h"
#include "imago/files.h"
#include "imago/models.h"
#include "imago/system.h"
#include "llama_quantize.h"

namespace imago::bench {
namespace {

constexpr std::size_t kWidth = 2048, kForward = 8192, kVocabulary = 32000, kHeads = 32, kKvHeads = 8;

std::vector<GgufMetadata> metadata(std::uint32_t blocks) {
  std::vector<std::string> tokens;
  for (std::size_t i = 0; i < kVocabulary; ++i) tokens.push_back(fmt::format("t{}", i));
  return {{"general.architecture", "llama"},
          {"llama.block_count", blocks},
          {"llama.context_length", std::uint32_t{2048}},
          {"llama.embedding_length", static_cast<std::uint32_t>(kWidth)},
          {"llama.feed_forward_length", static_cast<std::uint32_t>(kForward)},
          {"llama.attention.head_count", static_cast<std::uint32_t>(kHeads)},
          {"llama.attention.head_count_kv", static_cast<std::uint32_t>(kKvHeads)},
          {"llama.attention.layer_norm_rms_epsilon", 1e-5f},
          {"llama.rope.dimension_count", static_cast<std::uint32_t>(kWidth / kHeads)},
          {"llama.vocab_size", static_cast<std::uint32_t>(kVocabulary)},
          {"tokenizer.ggml.model", "llama"},
          {"tokenizer.ggml.tokens", GgufArray::of_strings(tokens)},
          {"tokenizer.ggml.scores", GgufArray::of<float>(std::vector<float>(kVocabulary))},
          {"tokenizer.ggml.token_type", GgufArray::of<std::int32_t>(std::vector<std::int32_t>(kVocabulary, 1))}};
}

std::vector<GgufEntry> entries(std::size_t blocks) {
  std::vector<GgufEntry> list;
  const auto matrix = [&](std::string name, std::size_t rows, std::size_t cols) {
    list.push_back({std::move(name), gguf_tensor_type(DType::float16), Shape{rows, cols}});
  };
  const auto vector = [&](std::string name) {
    list.push_back({std::move(name), gguf_tensor_type(DType::float32), Shape{kWidth}});
  };
  matrix("token_embd.weight", kVocabulary, kWidth);
  for (std::size_t i = 0; i < blocks; ++i) {
    const auto name = [&](std::string_view what) { return fmt::format("blk.{}.{}.weight", i, what); };
    constexpr std::size_t kKeys = kWidth / kHeads * kKvHeads;
    vector(name("attn_norm"));
    matrix(name("attn_q"), kWidth, kWidth);
    matrix(name("attn_k"), kKeys, kWidth);
    matrix(name("attn_v"), kKeys, kWidth);
    matrix(name("attn_output"), kWidth, kWidth);
    vector(name("ffn_norm"));
    matrix(name("ffn_gate"), kForward, kWidth);
    matrix(name("ffn_up"), kForward, kWidth);
    matrix(name("ffn_down"), kWidth, kForward);
  }
  vector("output_norm.weight");
  matrix("output.weight", kVocabulary, kWidth);
  return list;
}

std::size_t write_model(const std::string& path, std::size_t blocks) {
  GgufWriter writer(path, metadata(static_cast<std::uint32_t>(blocks)), entries(blocks));
  const std::vector<float> weights = synthetic_weights(std::size_t{1} << 22);
  std::vector<std::byte> half(2 * weights.size());
  encode(DType::float16, weights, {}, half);
  std::size_t parameters = 0;
  for (const GgufEntry& entry : writer.entries()) {
    const std::span<const std::byte> source = entry.shape.rank() == 1 ? std::as_bytes(std::span(weights)) : half;
    std::size_t left = entry.shape.elements() * static_cast<std::size_t>(entry.type.bytes);
    for (; left != 0; left -= std::min(left, source.size())) {
      writer.write(entry.name, source.first(std::min(left, source.size())));
    }
    parameters += entry.shape.elements();
  }
  writer.commit();
  return parameters;
}

struct Run {
  double seconds = 0;
  double peak_mib = 0;
  bool done = false;
};

/// `work` in a process of its own, so that its peak memory is its own.
template <class Work>
Run run_apart(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      work();
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  struct rusage usage {};
  ::wait4(child, &status, 0, &usage);
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
          static_cast<double>(usage.ru_maxrss) / 1024, WIFEXITED(status) && WEXITSTATUS(status) == 0};
}

[[noreturn]] void become(const std::vector<std::string>& command) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const int null = ::open("/dev/null", O_WRONLY);
  ::dup2(null, STDOUT_FILENO);
  ::dup2(null, STDERR_FILENO);
  ::execvp(words[0], words.data());
  ::_exit(127);
}

void report(std::string_view who, std::string_view type, const Run& run, std::uint64_t bytes) {
  if (!run.done) {
    fmt::print("{:<16}{:<8}failed\n", who, type);
    return;
  }
  fmt::print("{:<16}{:<8}{:>8.2f} s{:>8.2f} GB/s of input{:>8.0f} MiB at most\n", who, type, run.seconds,
             1e-9 * static_cast<double>(bytes) / run.seconds, run.peak_mib);
}

void bench(std::size_t blocks, const std::filesystem::path& parent) {
  const Folder folder(parent);
  const std::string in = folder.path / "in.gguf", out = folder.path / "out.gguf";
  const Run made = run_apart([&] { write_model(in, blocks); });
  if (!made.done) throw std::runtime_error("cannot make the model");
  const std::uint64_t bytes = std::filesystem::file_size(in);
  double load = 0;
  ::getloadavg(&load, 1);
  fmt::print("{} blocks, {:.2f} GB of float16, load before {:.2f}\n", blocks, 1e-9 * static_cast<double>(bytes), load);
  const std::vector<std::pair<Format, std::string>> types = {{BlockFormat::q4_k, "Q4_K_M"},
                                                             {BlockFormat::q8_0, "Q8_0"}};
  for (const auto& [format, theirs] : types) {
    ConvertOptions options;
    options.type = format;
    const Run ours = run_apart([&] { convert_model(in, out, options); });
    report("imago", format.name(), ours, bytes);
    std::filesystem::remove(out);
    if (!LlamaQuantize::available()) continue;
    const int threads = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
    const Run other = run_apart([&] { become({"llama-quantize", in, out, theirs, std::to_string(threads)}); });
    report("llama-quantize", theirs, other, bytes);
    if (ours.done && other.done) fmt::print("{:<24}{:>8.2f} times as fast\n", "imago", other.seconds / ours.seconds);
    std::filesystem::remove(out);
  }
}

}  // namespace
}  // namespace imago::bench

int main(int argc, char** argv) {
  try {
    const std::size_t blocks = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 16;
    imago::bench::bench(blocks, argc > 2 ? std::filesystem::path(argv[2]) : std::filesystem::temp_directory_path());
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
