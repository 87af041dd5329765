#pragma once

// One reader of traits for each file format, the limits that both check, and what readers and writers share.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/hugging_face.h"
#include "imago/data.h"
#include "models/fields.h"
#include "models/traits.h"

namespace imago::models {

struct ArchitectureFacts;

// The largest model that is accepted. Each limit is far above any known model, and low enough that no product of
// three of them leaves 64 bits.
inline constexpr std::int64_t kMaxBlocks = 4096;
inline constexpr std::int64_t kMaxWidth = 1 << 20;
inline constexpr std::int64_t kMaxHeads = 1 << 14;
inline constexpr std::int64_t kMaxHeadValues = 1 << 14;
inline constexpr std::int64_t kMaxFeedForward = 1 << 22;
inline constexpr std::int64_t kMaxVocabulary = 1 << 24;
inline constexpr std::int64_t kMaxContext = 0x7fffffff;  // positions are 32-bit integers
inline constexpr std::int64_t kMaxExperts = 4096;
inline constexpr std::int64_t kMaxStreams = 64;
inline constexpr std::int64_t kMaxTokenTypes = 256;
inline constexpr std::int64_t kMaxClasses = 1 << 16;
inline constexpr double kMinPositive = 1e-30;  // for what must be above 0: inverses and squares stay finite
inline constexpr double kMaxEps = 1;
inline constexpr double kMaxRopeBase = 1e15;
inline constexpr double kMaxFactor = 1e6;  // multipliers, soft caps, rope factors; their inverses too

/// Calls take(block, entry) for each entry of a list under `key`. Throws FormatError unless it has one for each block.
template <class Take>
void for_each_block(const files::JsonValue& list, std::string_view key, std::size_t blocks, Take&& take) {
  const auto elements = list.elements(key);
  if (elements.size() != blocks) {
    list.fail(std::string(key) + " has " + std::to_string(elements.size()) + " entries for " + std::to_string(blocks) +
              " blocks");
  }
  std::size_t block = 0;
  for (const files::JsonMember member : elements) take(block++, member.value);
}

/// Reads a config.json.
Traits config_traits(const files::JsonFile& config);
/// The part of a config.json that describes the language model: all of it, unless there are encoders beside.
ConfigFields text_fields(const ConfigFields& whole);

/// Whether the class that it names is a model without a head.
bool names_bare_model(const files::JsonFile& config);
/// Reads what dense modules of sentence-transformers make of the embedding of a text.
void read_dense(std::span<const files::DenseModule> modules, Traits& traits);
/// Reads the config.json of a pooling module of sentence-transformers.
Pooling read_pooling(const files::JsonFile& config);

/// Reads the metadata of a GGUF file.
Traits gguf_traits(const GgufFile& file);

// Keys of GGUF files that only imago writes and reads: llama.cpp has none for these.
inline constexpr std::string_view kModelTypeKey = "imago.model_type";       // "mistral", which GGUF calls llama
inline constexpr std::string_view kNormGroupsKey = "ssm.norm_group_count";  // after the architecture; usual: all groups
inline constexpr std::string_view kActivationKey = "hidden_activation";     // what llama.cpp reads for modern-bert, too
inline constexpr std::string_view kOwnPrefix = "imago";                     // the prefix of kHasOutput
inline constexpr std::string_view kHasOutput = "has_output";  // false: there are no logits, and no matrix is tied
inline constexpr std::string_view kLlama3Prefix = "imago.rope_llama3";  // what rope_freqs.weight was made of
/// `tokenizer.ggml.model` of a file without a tokenizer, as llama.cpp has it.
inline constexpr std::string_view kNoTokenizer = "no_vocab";

/// Feed-forward layers and experts: widths of all blocks, and all traits of experts. REQUIRES: blocks is set.
void read_config_feed_forward(const ConfigFields& config, Traits& traits);
/// What gemma 3n and 4 have besides. REQUIRES: sizes and windows are set.
void read_config_gemma(const ConfigFields& config, Traits& traits);
void read_gguf_gemma(const GgufFields& fields, Traits& traits);
void read_gguf_feed_forward(const GgufFields& fields, Traits& traits);
/// The key of config.json with the number of experts.
std::string_view experts_key(const ConfigFields& config);

/// The names of fields that can contradict each other, as the file spells them.
struct TraitKeys {
  std::string heads, kv_heads, rotary, experts, experts_used, groups, groups_used;
};

/// Throws FormatError for fields that contradict each other.
void check_traits(const Traits& traits, const Fields& fields, const TraitKeys& keys);

/// Activation functions as config.json spells them. The first name of each is written.
inline constexpr std::pair<kernels::Activation, std::string_view> kActivationNames[] = {
    {kernels::Activation::silu, "silu"},
    {kernels::Activation::silu, "swish"},
    {kernels::Activation::silu, "swiglu"},  // where it is gated anyway
    {kernels::Activation::gelu, "gelu_pytorch_tanh"},
    {kernels::Activation::gelu, "gelu_new"},
    {kernels::Activation::gelu, "gelu_fast"},
    {kernels::Activation::gelu_erf, "gelu"},
    {kernels::Activation::gelu_erf, "gelu_python"},
    {kernels::Activation::relu, "relu"},
    {kernels::Activation::relu2, "relu2"},
};

/// granite's: of embeddings, branches, attention and logits.
constexpr bool has_multipliers(Architecture architecture) noexcept {
  return architecture == Architecture::granite || architecture == Architecture::granitemoe ||
         architecture == Architecture::granitemoehybrid;
}

/// The activation function of a field, or the fallback if it is absent. Throws UnsupportedError for an unknown one.
kernels::Activation read_activation(const Fields& fields, std::string_view key, kernels::Activation fallback);

/// All blocks but every `period`-th; all of them if the period is 0.
std::vector<bool> all_but_every(std::size_t period, std::size_t blocks);
/// Those with a window where one of every `period` has none: the first or the last of them, as the architecture has it.
std::vector<bool> all_but_some(const ArchitectureFacts& row, std::size_t period, std::size_t blocks);

/// The blocks with a window.
std::vector<bool> windowed(const Traits& traits);
/// The blocks that rotate unless a file says otherwise. REQUIRES: windows are set.
std::vector<bool> usual_rope(const Traits& traits);

/// What RopeScaling::scale_growth makes of the scale of attention.
float scale_growth(const RopeScaling& scaling) noexcept;
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
