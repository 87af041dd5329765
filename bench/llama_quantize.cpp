#include "llama_quantize.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string_view>

namespace imago::bench {

namespace {

/// Appends to a byte string in the way GGUF wants it: little-endian numbers, strings with a 64-bit length.
struct GgufBytes {
  std::string bytes;

  template <class T>
  GgufBytes& number(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  GgufBytes& text(std::string_view s) {
    number<std::uint64_t>(s.size());
    bytes.append(s);
    return *this;
  }
};

/// The least that llama-quantize accepts: a one-block llama with a single matrix.
std::string one_matrix_header(std::size_t columns, std::size_t rows) {
  constexpr std::uint32_t kU32 = 4, kF32 = 6, kString = 8;
  GgufBytes b;
  b.bytes = "GGUF";
  b.number<std::uint32_t>(3).number<std::uint64_t>(1).number<std::uint64_t>(7);
  b.text("general.architecture").number(kString).text("llama");
  b.text("llama.block_count").number(kU32).number<std::uint32_t>(1);
  b.text("llama.context_length").number(kU32).number<std::uint32_t>(512);
  b.text("llama.embedding_length").number(kU32).number(static_cast<std::uint32_t>(columns));
  b.text("llama.feed_forward_length").number(kU32).number(static_cast<std::uint32_t>(rows));
  b.text("llama.attention.head_count").number(kU32).number<std::uint32_t>(32);
  b.text("llama.attention.layer_norm_rms_epsilon").number(kF32).number(1e-5f);
  b.text("blk.0.ffn_up.weight").number<std::uint32_t>(2).number<std::uint64_t>(columns).number<std::uint64_t>(rows);
  b.number<std::uint32_t>(0).number<std::uint64_t>(0);  // F32, offset 0
  b.bytes.resize((b.bytes.size() + 31) / 32 * 32);
  return b.bytes;
}

std::string upper_case(std::string_view text) {
  std::string upper(text);
  for (char& c : upper) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return upper;
}

/// Its own spelling of the types. Some are names of mixes; with --pure they use one type only.
std::string llama_name(BlockFormat format) {
  const std::string upper = upper_case(name(format));
  if (format == BlockFormat::q3_k || format == BlockFormat::q4_k || format == BlockFormat::q5_k) return upper + "_S";
  return format == BlockFormat::mxfp4 ? "MXFP4_MOE" : upper;
}

/// What a command prints, both streams.
std::string output_of(const std::string& command) {
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {};
  std::string text;
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, n);
  ::pclose(pipe);
  return text;
}

}  // namespace

bool LlamaQuantize::available() { return std::system("command -v llama-quantize > /dev/null 2>&1") == 0; }

LlamaQuantize::LlamaQuantize(std::span<const float> weights) : count_(weights.size()) {
  std::string pattern = (std::filesystem::temp_directory_path() / "imago-bench-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make a folder in " + pattern);
  folder_ = pattern;
  std::ofstream file(folder_ / "in.gguf", std::ios::binary);
  const std::string header = one_matrix_header(kColumns, count_ / kColumns);
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  file.write(reinterpret_cast<const char*>(weights.data()), static_cast<std::streamsize>(weights.size_bytes()));
  if (!file.flush()) throw std::runtime_error("cannot write " + (folder_ / "in.gguf").string());
}

LlamaQuantize::~LlamaQuantize() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::optional<LlamaQuantize::Result> LlamaQuantize::run(BlockFormat format, int threads) const {
  const std::filesystem::path out = folder_ / "out.gguf";
  std::filesystem::remove(out);
  const std::string text = output_of(fmt::format("llama-quantize --pure {} {} {} {}", (folder_ / "in.gguf").string(),
                                                 out.string(), llama_name(format), threads));
  constexpr std::string_view kMark = "quantize time =";
  const std::size_t at = text.find(kMark);
  const bool same_type = upper_case(text).find("CONVERTING TO " + upper_case(name(format)) + " ") != std::string::npos;
  std::error_code missing;
  const std::size_t bytes = packed_bytes(format, count_);
  if (at == std::string::npos || !same_type || std::filesystem::file_size(out, missing) < bytes || missing)
    return std::nullopt;
  Result result{std::strtod(text.c_str() + at + kMark.size(), nullptr) * 1e-3, std::vector<std::byte>(bytes)};
  std::ifstream file(out, std::ios::binary);
  file.seekg(-static_cast<std::streamoff>(bytes), std::ios::end);  // the only tensor is the end of the file
  file.read(reinterpret_cast<char*>(result.packed.data()), static_cast<std::streamsize>(bytes));
  if (!file) return std::nullopt;
  return result;
}

}  // namespace imago::bench
