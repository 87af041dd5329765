// Language models with random weights: the shape of a published one, to measure how fast programs run it.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>

#include "convert/target_types.h"
#include "files/hugging_face.h"
#include "files/json_text.h"
#include "imago/codec.h"
#include "imago/error.h"
#include "imago/models.h"
#include "models/byte_letters.h"
#include "models/recipe_parts.h"
#include "models/traits_reading.h"
#include "quant/scheme.h"

namespace imago {

namespace convert {

namespace {

using models::LayoutTensor;
using models::Role;
using models::Traits;

constexpr std::size_t kFewestTokens = 512;

/// The smallest tokenizer that every reader accepts: all bytes, two merges, an end token, and padding.
void add_tokenizer(std::size_t vocabulary, std::vector<GgufMetadata>& metadata) {
  constexpr std::int32_t kNormal = 1, kControl = 3, kUnused = 5;
  std::vector<std::string> tokens;
  for (const char32_t letter : models::kByteLetters) files::append_utf8(tokens.emplace_back(), letter);
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

/// Random weights, packed once. Tensors are copied from random positions in them: speed does not depend on values, and
/// encoding billions of weights would take minutes.
class Tile {
 public:
  Tile(Format format, double deviation, std::mt19937_64& random)
      : block_bytes_(packed_bytes(format, static_cast<std::size_t>(format.block_values()))) {
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

  std::size_t block_bytes_;
  std::vector<std::byte> bytes_;
};

/// What a vector is filled with so that activations stay finite: states decay, norms and scales do nothing, biases add
/// nothing. None: random weights.
std::optional<float> filling(Role role) {
  constexpr std::array kZero = {Role::sinks,
                                Role::embedding_norm_bias,
                                Role::output_norm_bias,
                                Role::query_bias,
                                Role::attention_norm_bias,
                                Role::attention_post_norm_bias,
                                Role::key_bias,
                                Role::feed_forward_norm_bias,
                                Role::feed_forward_post_norm_bias,
                                Role::value_bias,
                                Role::attention_output_bias,
                                Role::gate_bias,
                                Role::up_bias,
                                Role::down_bias,
                                Role::router_bias,
                                Role::step_bias,
                                Role::taps_bias,
                                Role::choice_bias,
                                Role::output_bias};
  if (role == Role::taps) return std::nullopt;
  if (role == Role::decay_rate) return -1.0F;
  return std::ranges::find(kZero, role) == kZero.end() ? 1.0F : 0.0F;
}

/// One tensor to be written.
struct Planned {
  LayoutTensor tensor;
  Format format;
};

/// The type of a matrix whose rows fit no block of `type` is one with smaller blocks, or float16.
Format type_of(Format type, std::size_t cols) { return fitting_type(type, cols).value_or(Format(DType::float16)); }

/// Whether the model has a tensor that others of its architecture may lack.
bool has_optional(Role role, const models::ConfigFields& config, bool has_factors) {
  constexpr std::pair<Role, std::string_view> kFlags[] = {{Role::query_bias, "attention_bias"},
                                                          {Role::key_bias, "attention_bias"},
                                                          {Role::value_bias, "attention_bias"},
                                                          {Role::attention_output_bias, "attention_bias"},
                                                          {Role::taps_bias, "use_conv_bias"}};
  if (role == Role::rope_factors) return has_factors;
  return std::ranges::any_of(kFlags,
                             [&](const auto& one) { return one.first == role && config.flag(one.second, false); });
}

std::vector<Planned> plan_tensors(const Traits& traits, const models::ConfigFields& config,
                                  const RandomModelOptions& options, bool has_factors) {
  std::vector<Planned> plan;
  models::for_each_tensor(traits, models::usual_naming(traits, true), [&](const LayoutTensor& tensor, std::size_t) {
    if (tensor.optional && !has_optional(tensor.roles[0], config, has_factors)) return;
    const bool end = tensor.roles[0] == Role::token_embedding || tensor.roles[0] == Role::output;
    const Format wanted = end ? options.ends.value_or(options.type) : options.type;
    const bool wide = models::is_wide_in_gguf(traits, tensor);
    plan.push_back({tensor, wide ? Format(DType::float32) : type_of(wanted, tensor.shape.last())});
  });
  return plan;
}

}  // namespace

}  // namespace convert

void write_random_model(const std::string& config, const std::string& path, const RandomModelOptions& options) {
  using namespace convert;
  for (const Format format : {options.type, options.ends.value_or(options.type)}) {
    require_holdable(FileForm::gguf, format);
  }
  const files::JsonFile file = files::JsonFile::parse(config, "config.json");
  const Traits traits = models::config_traits(file);
  models::gguf_losses(traits, "config.json");
  if (traits.vocabulary < kFewestTokens) {
    throw UsageError(fmt::format("{} tokens are too few for the tokenizer of a random model; it needs at least {}",
                                 traits.vocabulary, kFewestTokens));
  }

  std::vector<GgufMetadata> metadata = models::gguf_settings(traits, file, "random weights");
  if (const auto number = gguf_file_type(options.type, false)) metadata.push_back({"general.file_type", *number});
  add_tokenizer(traits.vocabulary, metadata);
  const std::vector<float> factors = models::gguf_rope_factors(traits);
  const std::vector<Planned> plan =
      plan_tensors(traits, models::ConfigFields(file.root(), "config.json"), options, !factors.empty());
  std::vector<GgufEntry> entries;
  for (const Planned& one : plan) {
    entries.push_back({one.tensor.name, gguf_tensor_type(one.format), one.tensor.shape});
  }

  std::mt19937_64 random(options.seed);
  const double deviation = 1 / std::sqrt(static_cast<double>(traits.width));
  std::map<Format, Tile> tiles;
  GgufWriter writer(path, std::move(metadata), std::move(entries));
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const auto& [tensor, format] = plan[i];
    if (options.progress) options.progress(tensor.name, i, plan.size());
    const std::size_t elements = tensor.shape.elements();
    const Role role = tensor.roles[0];
    if (role == Role::rope_factors) {
      writer.write(tensor.name, factors);
      continue;
    }
    const std::optional<float> value =
        models::use_of(traits, tensor) == models::TensorUse::vector ? filling(role) : std::nullopt;
    if (value) {
      writer.write(tensor.name, std::vector<float>(elements, *value));
      continue;
    }
    const Tile& tile = tiles.try_emplace(format, format, deviation, random).first->second;
    tile.write(writer, writer.entries()[i], packed_bytes(format, elements), random);
  }
  writer.commit();
}

}  // namespace imago
