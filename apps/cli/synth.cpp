// imago synth: a llama with random weights, for comparing the speed of programs that read GGUF.

#include <cmath>
#include <random>

#include "command.h"
#include "imago/codec.h"

namespace imago::cli {

namespace {

struct SynthCommand {
  std::string output;
  Format type = BlockFormat::q4_k;    ///< of the matrices
  std::optional<Format> output_type;  ///< of embedding and output; none: the same
  std::size_t width = 2048, blocks = 16, feed_forward = 8192, heads = 32, kv_heads = 8;
  std::size_t vocabulary = 32000, context = 4096;
  std::uint64_t seed = 1;
  int threads = 0;
  bool untied = false;
  bool quiet = false;
};

constexpr std::size_t kFewestTokens = 512;

/// The letter that GPT-2 writes for a byte: itself if it is printable, else one from U+0100 on.
std::string letter_of_byte(unsigned byte) {
  const auto visible = [](unsigned b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  unsigned code = byte;
  if (!visible(byte)) {
    code = 256;
    for (unsigned other = 0; other < byte; ++other) code += visible(other) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

/// The smallest tokenizer that every reader accepts: all bytes, two merges, an end token, and padding.
void add_tokenizer(std::size_t vocabulary, std::vector<GgufMetadata>& metadata) {
  constexpr std::int32_t kNormal = 1, kControl = 3, kUnused = 5;
  std::vector<std::string> tokens;
  for (unsigned byte = 0; byte < 256; ++byte) tokens.push_back(letter_of_byte(byte));
  tokens.insert(tokens.end(), {"th", "the"});
  const std::vector<std::string> merges = {"t h", "th e"};
  std::vector<std::int32_t> types(tokens.size(), kNormal);
  const auto end = static_cast<std::uint32_t>(tokens.size());
  tokens.push_back("<|endoftext|>");
  types.push_back(kControl);
  while (tokens.size() < vocabulary) {
    tokens.push_back(fmt::format("[PAD{}]", tokens.size()));
    types.push_back(kUnused);
  }
  metadata.push_back({"tokenizer.ggml.model", "gpt2"});
  metadata.push_back({"tokenizer.ggml.pre", "gpt-2"});
  metadata.push_back({"tokenizer.ggml.tokens", GgufArray::of_strings(tokens)});
  metadata.push_back({"tokenizer.ggml.token_type", GgufArray::of<std::int32_t>(types)});
  metadata.push_back({"tokenizer.ggml.merges", GgufArray::of_strings(merges)});
  metadata.push_back({"tokenizer.ggml.bos_token_id", end});
  metadata.push_back({"tokenizer.ggml.eos_token_id", end});
  metadata.push_back({"tokenizer.ggml.add_bos_token", false});
}

std::vector<GgufMetadata> metadata_of(const SynthCommand& options) {
  const auto u32 = [](std::size_t value) { return static_cast<std::uint32_t>(value); };
  std::vector<GgufMetadata> metadata = {
      {"general.architecture", "llama"},
      {"general.name", "random weights"},
      {"llama.block_count", u32(options.blocks)},
      {"llama.context_length", u32(options.context)},
      {"llama.embedding_length", u32(options.width)},
      {"llama.feed_forward_length", u32(options.feed_forward)},
      {"llama.attention.head_count", u32(options.heads)},
      {"llama.attention.head_count_kv", u32(options.kv_heads)},
      {"llama.attention.layer_norm_rms_epsilon", 1e-5f},
      {"llama.rope.dimension_count", u32(options.width / options.heads)},
      {"llama.rope.freq_base", 10000.0f},
      {"llama.vocab_size", u32(options.vocabulary)},
  };
  add_tokenizer(options.vocabulary, metadata);
  return metadata;
}

std::vector<GgufEntry> entries_of(const SynthCommand& options) {
  const GgufTensorType type = gguf_tensor_type(options.type);
  const GgufTensorType ends = gguf_tensor_type(options.output_type.value_or(options.type));
  const GgufTensorType norm = gguf_tensor_type(DType::float32);
  const std::size_t width = options.width, keys = width / options.heads * options.kv_heads;
  std::vector<GgufEntry> entries = {{"token_embd.weight", ends, Shape{options.vocabulary, width}}};
  for (std::size_t i = 0; i < options.blocks; ++i) {
    const auto add = [&](std::string_view name, const GgufTensorType& of, Shape shape) {
      entries.push_back({fmt::format("blk.{}.{}.weight", i, name), of, std::move(shape)});
    };
    add("attn_norm", norm, Shape{width});
    add("attn_q", type, Shape{width, width});
    add("attn_k", type, Shape{keys, width});
    add("attn_v", type, Shape{keys, width});
    add("attn_output", type, Shape{width, width});
    add("ffn_norm", norm, Shape{width});
    add("ffn_gate", type, Shape{options.feed_forward, width});
    add("ffn_up", type, Shape{options.feed_forward, width});
    add("ffn_down", type, Shape{width, options.feed_forward});
  }
  entries.push_back({"output_norm.weight", norm, Shape{width}});
  if (options.untied) entries.push_back({"output.weight", ends, Shape{options.vocabulary, width}});
  return entries;
}

/// Random weights, packed once. Tensors are copied from random positions in them: speed does not depend on values, and
/// encoding billions of weights would take minutes.
class Tile {
 public:
  Tile(Format format, double deviation, std::mt19937_64& random) : block_bytes_(packed_bytes(format, unit(format))) {
    std::vector<float> weights(kWeights);
    std::normal_distribution<float> normal(0, static_cast<float>(deviation));
    for (float& weight : weights) weight = normal(random);
    bytes_.resize(packed_bytes(format, kWeights));
    encode(format, weights, {}, bytes_);
  }

  void write(GgufWriter& writer, const GgufEntry& entry, std::size_t bytes, std::mt19937_64& random) const {
    while (bytes > 0) {
      const std::size_t begin = random() % (bytes_.size() / block_bytes_) * block_bytes_;
      const std::size_t count = std::min(bytes, bytes_.size() - begin);
      writer.write(entry.name, std::span(bytes_).subspan(begin, count));
      bytes -= count;
    }
  }

 private:
  static constexpr std::size_t kWeights = std::size_t{1} << 22;
  static std::size_t unit(Format format) { return static_cast<std::size_t>(format.block_values()); }

  std::size_t block_bytes_;
  std::vector<std::byte> bytes_;
};

void check(const SynthCommand& options) {
  if (options.width % options.heads != 0 || options.width / options.heads % 2 != 0) {
    throw UsageError(
        fmt::format("--heads: {} heads do not divide a width of {} into even parts", options.heads, options.width));
  }
  if (options.heads % options.kv_heads != 0) {
    throw UsageError(fmt::format("--kv-heads: {} heads cannot share {}", options.heads, options.kv_heads));
  }
  if (options.vocabulary < kFewestTokens) {
    throw UsageError(
        fmt::format("--vocabulary: {} tokens are too few; it needs at least {}", options.vocabulary, kFewestTokens));
  }
  for (const Format format : {options.type, options.output_type.value_or(options.type)}) {
    if (format.has_scales()) {
      throw UsageError(fmt::format("--type: GGUF has no {} with scales; use a float or a block format", format.name()));
    }
    const auto block = static_cast<std::size_t>(format.block_values());
    if (options.width % block != 0 || options.feed_forward % block != 0) {
      throw UsageError(fmt::format("--type: rows of {} and {} weights are not multiples of {}, the block of {}",
                                   options.width, options.feed_forward, block, format.name()));
    }
  }
}

void synth(const SynthCommand& options) {
  check(options);
  set_thread_count(options.threads);
  std::mt19937_64 random(options.seed);
  const double deviation = 1 / std::sqrt(static_cast<double>(options.width));
  const Format format = options.type, ends = options.output_type.value_or(format);
  const Tile tile(format, deviation, random);
  const Tile end_tile(ends, deviation, random);
  const std::vector<float> ones(options.width, 1.0f);
  GgufWriter writer(options.output, metadata_of(options), entries_of(options));
  Progress progress(options.quiet);
  std::size_t done = 0;
  for (const GgufEntry& entry : writer.entries()) {
    progress.show(done++, writer.entries().size(), entry.name);
    if (entry.shape.rank() == 1) {
      writer.write(entry.name, ones);
      continue;
    }
    const bool is_end = entry.name == "token_embd.weight" || entry.name == "output.weight";
    const std::size_t bytes = packed_bytes(is_end ? ends : format, entry.shape.elements());
    (is_end ? end_tile : tile).write(writer, entry, bytes, random);
  }
  writer.commit();
}

}  // namespace

Command add_synth(CLI::App& program) {
  CLI::App* command = program.add_subcommand("synth", "Write a language model with random weights, to measure speed");
  const auto options = std::make_shared<SynthCommand>();
  command->add_option("OUT", options->output, "GGUF file to write")->required();
  add_parsed(*command, "--type", options->type, parse_format, "TYPE", "Type of the matrices (default: q4_k)");
  add_parsed(*command, "--output-type", options->output_type, parse_format, "TYPE",
             "Type of embedding and output (default: that of --type)");
  const auto size = [&](const char* name, std::size_t& value, const char* what, std::size_t most) {
    add_number(*command, name, value, std::size_t{1}, most, fmt::format("{} (default: {})", what, value));
  };
  size("--width", options->width, "Width of the model", 65536);
  size("--blocks", options->blocks, "Blocks", 1024);
  size("--feed-forward", options->feed_forward, "Width of the feed-forward layers", 1 << 20);
  size("--heads", options->heads, "Query heads", 1024);
  size("--kv-heads", options->kv_heads, "Key and value heads", 1024);
  size("--vocabulary", options->vocabulary, "Size of the vocabulary", 1 << 20);
  size("--ctx", options->context, "Context length", 1 << 24);
  command->add_flag("--untied", options->untied, "A separate output matrix (default: the embedding)");
  add_seed(*command, options->seed, "Of the weights (default: 1)");
  add_threads(*command, options->threads);
  add_quiet(*command, options->quiet);
  command->footer(
      "The defaults make a llama with 1.0 billion weights.\n"
      "Examples:\n  imago synth llama-1b.gguf --type q4_k\n"
      "  imago synth small.gguf --type q8_0 --width 512 --blocks 4 --feed-forward 1536 --heads 8 --kv-heads 4");
  return {command, [options] { synth(*options); }};
}

}  // namespace imago::cli
