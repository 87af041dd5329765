#pragma once

// One reader of traits for each file format, and the limits that both of them hold a model to.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/hugging_face.h"
#include "imago/data.h"
#include "models/traits.h"

namespace imago::models {

// The largest model that is believed. Each limit is far above any model there is, and low enough that no product of
// three of them leaves 64 bits.
inline constexpr std::int64_t kMaxBlocks = 4096;
inline constexpr std::int64_t kMaxWidth = 1 << 20;
inline constexpr std::int64_t kMaxHeads = 1 << 14;
inline constexpr std::int64_t kMaxHeadValues = 1 << 14;
inline constexpr std::int64_t kMaxFeedForward = 1 << 22;
inline constexpr std::int64_t kMaxVocabulary = 1 << 24;
inline constexpr std::int64_t kMaxContext = 0x7fffffff;  // positions are 32-bit integers
inline constexpr std::int64_t kMaxExperts = 4096;
inline constexpr double kMinPositive = 1e-30;  // of all that must be above 0; inverses and squares stay finite
inline constexpr double kMaxEps = 1;
inline constexpr double kMaxRopeBase = 1e15;
inline constexpr double kMaxFactor = 1e6;  // multipliers, soft caps, rope factors; their inverses too

/// What a config.json says.
Traits config_traits(const files::JsonFile& config);

/// What the metadata of a GGUF file say.
Traits gguf_traits(const GgufFile& file);

// Keys of GGUF files that only imago writes and reads: what llama.cpp has no word for.
inline constexpr std::string_view kModelTypeKey = "imago.model_type";   // "mistral", which GGUF calls llama
inline constexpr std::string_view kLlama3Prefix = "imago.rope_llama3";  // what rope_freqs.weight was made of
/// `tokenizer.ggml.model` of a file without a tokenizer, as llama.cpp has it.
inline constexpr std::string_view kNoTokenizer = "no_vocab";

/// The names of fields that can contradict each other, as the form at hand spells them.
struct TraitKeys {
  std::string heads, kv_heads, rotary, experts, experts_used;
};

/// What fields cannot be together; empty if nothing is wrong.
std::string contradiction(const Traits& traits, const TraitKeys& keys);

/// Activation functions as config.json spells them. The first name of each is written.
inline constexpr std::pair<kernels::Activation, std::string_view> kActivationNames[] = {
    {kernels::Activation::silu, "silu"},
    {kernels::Activation::silu, "swish"},
    {kernels::Activation::gelu, "gelu_pytorch_tanh"},
    {kernels::Activation::gelu, "gelu_new"},
    {kernels::Activation::gelu, "gelu_fast"},
    {kernels::Activation::relu, "relu"},
    {kernels::Activation::relu2, "relu2"},
};

/// Whether transformers reads `layer_types` of it.
bool lists_layer_types(Architecture architecture) noexcept;

/// All blocks but every `period`-th; all of them if the period is 0.
std::vector<bool> all_but_every(std::size_t period, std::size_t blocks);

/// The scale of attention where nothing else is stated: one over the root of the values of a head.
float usual_attention_scale(const Traits& traits) noexcept;

/// The llama3 scaling of a GGUF file's `rope_freqs.weight`, under kLlama3Prefix.
struct Llama3Field {
  std::string_view key;
  double RopeScaling::*value;
  double high;
};
inline constexpr Llama3Field kLlama3Fields[] = {
    {"factor", &RopeScaling::factor, kMaxFactor},
    {"original_context", &RopeScaling::original_context, static_cast<double>(kMaxContext)},
    {"low_freq_factor", &RopeScaling::low_freq_factor, kMaxFactor},
    {"high_freq_factor", &RopeScaling::high_freq_factor, kMaxFactor},
};

}  // namespace imago::models
