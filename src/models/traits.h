#pragma once

// What a decoder is: everything that tells one architecture from another, read from config.json or from the metadata
// of a GGUF file. models/program.h turns it into the steps that backends run, which do not ask for an architecture.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/program.h"
#include "files/tensor_file.h"
#include "kernels/ops_args.h"
#include "kernels/recurrent.h"

namespace imago::models {

enum class Architecture : std::uint8_t {
  llama,
  mistral,
  qwen2,
  qwen3,
  qwen3_moe,
  phi3,
  gemma2,
  olmo2,
  granite,
  smollm3,
  mixtral,
  gpt2,
  exaone4,
  olmoe,
  granitemoe,
  glm4,
  glm4_moe,
  minimax_m2,
  gpt_oss,
  deepseek_v2,
  deepseek_v3,
  olmo3,
  ministral3,
  cohere2,
  ernie4_5,
  hunyuan_v1_dense,
  starcoder2,
  phi,
  gpt_neox,
  stablelm,
  falcon,
  gemma3,
  embedding_gemma,
  gemma3n,
  gemma4,
  lfm2,
  lfm2_moe,
  qwen3_next,
  qwen3_5,
  qwen3_5_moe,
  mamba,
  mamba2,
  granitemoehybrid,
  nemotron_h,
  falcon_h1,
  bert,
  nomic_bert,
  modernbert,
};

/// As config.json spells it in `model_type`. (GGUF writes "llama" for mistral and mixtral, "qwen3moe".)
std::string_view name(Architecture architecture) noexcept;

/// How rotary frequencies change beyond the context that was trained on.
struct RopeScaling {
  enum class Kind : std::uint8_t { none, linear, llama3, yarn, proportional };
  Kind kind = Kind::none;
  double factor = 1;                                 ///< proportional: the share of the pairs that turn, the first ones
  double original_context = 0;                       ///< llama3, yarn
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;              ///< yarn
  double attention_factor = 0;                       ///< yarn, on cosines and sines; 0: 0.1 · ln(factor) + 1
  bool truncate = true;                              ///< yarn: round the correction range to whole pairs
  double scale_growth = 0;  ///< yarn: attention_scale has grown by (1 + scale_growth · 0.1 · ln(factor))², deepseek's

  bool operator==(const RopeScaling&) const = default;
};

/// How fast the pairs of a head turn.
struct Rope {
  double base = 10000;
  std::size_t rotary = 0;  ///< values of a head that turn, even
  RopeScaling scaling;

  bool operator==(const Rope&) const = default;
};

using backend::ExpertScores;
using backend::NormKind;
/// Norms of queries and keys: one weight for each head, or one for the whole row.
enum class QueryNorm : std::uint8_t { none, head, row };

/// Which row of a text becomes its embedding; numbered as in GGUF.
enum class Pooling : std::uint8_t { unknown, mean, cls, last };

/// What is made of the embedding of a text: results = g(output · norm(f(dense · x))), with biases where files have
/// them.
struct Head {
  std::size_t results = 0;  ///< 0: there is no head
  std::size_t hidden = 0;   ///< rows of the dense matrix; 0: none
  bool norm = false;
  kernels::Activation activation = kernels::Activation::linear, result_activation = kernels::Activation::linear;
  bool scores = false;  ///< results are scores of the text, for classifiers; else another embedding

  bool operator==(const Head&) const = default;
};

/// How information passes from token to token in a block.
enum class Mixer : std::uint8_t {
  attention,
  short_conv,               ///< a short convolution between two gates, as in lfm2
  delta_rule,               ///< gated delta net
  mamba,                    ///< selective scan with a decay for each channel and value of its state
  mamba2,                   ///< and with one for each head
  mamba2_beside_attention,  ///< both read the same norm
  none,                     ///< a feed-forward layer alone
};

constexpr bool has_attention(Mixer mixer) noexcept {
  return mixer == Mixer::attention || mixer == Mixer::mamba2_beside_attention;
}
constexpr bool is_recurrent(Mixer mixer) noexcept { return mixer != Mixer::attention && mixer != Mixer::none; }

/// What may differ from block to block.
struct BlockTraits {
  Mixer mixer = Mixer::attention;
  bool rope = true;
  std::size_t window = 0;                     ///< keys a token sees; 0: all before it
  std::size_t feed_forward = 0;               ///< its width; that of one expert where there are experts
  bool experts = false;                       ///< else one dense feed-forward layer
  std::size_t head_values = 0, kv_heads = 0;  ///< 0: those of the model
  bool keys_are_values = false;               ///< values are the keys before their norm
  std::optional<std::size_t> cache = {};      ///< an earlier block whose keys and values it attends to
  bool attention_norm = true;                 ///< where there are norms before
  double sparsity = 0;                        ///< share of the values of a gate that are cut off; 0: none are

  bool operator==(const BlockTraits&) const = default;
};

/// Sizes of the blocks whose mixer is not attention.
struct RecurrentTraits {
  std::size_t kernel = 0;         ///< tokens that a short convolution sees
  kernels::LinearScanShape scan;  ///< mamba has as many heads as channels, with one value each
  std::size_t rank = 0;           ///< mamba: of the sizes of steps before they are spread over the channels
  float low_step = 0, high_step = std::numeric_limits<float>::infinity();
  std::size_t norm_groups = 1;  ///< groups of a scan's results, each with a norm of its own; 0: they have no norm
  bool log_rates = false;       ///< Hugging Face folders hold the logarithms of the negated decay rates

  bool operator==(const RecurrentTraits&) const = default;
};

/// Numbers that inputs and results of the branches of falcon_h1 are multiplied by, as its folders state them; GGUF
/// files have them in their weights.
struct Multipliers {
  float attention_in = 1, key = 1, attention_out = 1;
  float scan_in = 1, scan_out = 1;
  std::array<float, 5> scan = {1, 1, 1, 1, 1};  ///< of output gates, values, keys, queries and steps
  float gate = 1, down = 1;

  bool operator==(const Multipliers&) const = default;
};

struct Traits {
  Architecture architecture = Architecture::llama;

  // Sizes, all checked: positive, heads a multiple of kv_heads, within the limits stated in traits_reading.h.
  std::size_t blocks = 0;
  std::size_t width = 0;
  std::size_t heads = 0, kv_heads = 0, head_values = 0;
  std::size_t vocabulary = 0;
  std::size_t context = 0;  ///< positions it was made for

  NormKind norm = NormKind::rms;
  double norm_eps = 1e-6;
  float norm_offset = 0;     ///< added to the weights of norms: 1 in Hugging Face folders of gemma
  bool pre_norms = true;     ///< before attention and feed-forward
  bool post_norms = false;   ///< after them, before the residual sum
  bool parallel = false;     ///< attention and feed-forward read the same stream, and both are added to it
  bool shared_norm = false;  ///< and they share the norm before attention
  QueryNorm query_norm = QueryNorm::none;
  bool attention_gate = false;  ///< results of attention are multiplied by the sigmoid of a product

  kernels::Activation activation = kernels::Activation::silu;
  bool gated = true;  ///< act(gate x) · (up x); else act(up x)

  bool learned_positions = false;  ///< a table of position embeddings instead of rope
  double rope_base = 10000;
  std::size_t rotary = 0;  ///< values of a head that turn, even
  kernels::RopePairs rope_pairs = kernels::RopePairs::halves;
  RopeScaling rope_scaling;         ///< none in GGUF files with Role::rope_factors, which hold its outcome
  std::optional<Rope> window_rope;  ///< for blocks with a window, where they turn in another way
  double query_growth = 0;          ///< queries grow by 1 + it · ln(1 + position / the original context, rounded down)

  std::vector<BlockTraits> block;  ///< one per block

  // Latent attention; backend/program.h says what it is. Heads of queries have head_values, `rotary` of them turn.
  std::size_t latent = 0;         ///< values of compressed keys and values; 0: plain attention
  std::size_t latent_values = 0;  ///< values of a head's results
  std::size_t query_low = 0;      ///< values of compressed queries; 0: they are not compressed

  float attention_scale = 1;  ///< on q · k
  float attention_cap = 0;    ///< 0: none
  bool attention_sinks = false;
  float logit_cap = 0;  ///< 0: none
  float embedding_scale = 1, residual_scale = 1;
  float logit_scale = 1;  ///< logits are multiplied by it
  Multipliers multipliers;

  // The blocks with experts; backend/program.h says what each of it does.
  std::size_t experts = 0, experts_used = 0;  ///< 0: no experts
  ExpertScores expert_scores = ExpertScores::softmax;
  bool choice_bias = false;
  std::size_t expert_groups = 1, expert_groups_used = 1;
  bool two_judge_group = false;
  bool norm_expert_weights = true;  ///< weights of the chosen experts sum to 1
  float expert_scale = 1;
  std::size_t shared_feed_forward = 0;  ///< width of the expert that all tokens share; 0: there is none
  bool shared_router = false;           ///< which weighs it
  bool experts_beside = false;          ///< the shared expert is a dense layer: each side has norms of its own

  /// Inputs that each block has besides the stream: their width, and tokens that have some. 0: there are none.
  std::size_t layer_values = 0, layer_vocabulary = 0;

  std::size_t streams = 0;      ///< of each token; 0: one
  std::size_t laurel_rank = 0;  ///< of a narrow layer beside attention; 0: there is none

  RecurrentTraits recurrent;
  bool tied_output = false;  ///< logits by the token embedding
  bool has_output = true;    ///< false: no logits, what blocks make is the result

  // Encoders, and decoders that make embeddings.
  bool causal = true;           ///< a token sees those before it; else all of its text
  bool embedding_norm = false;  ///< after the sum of embeddings
  bool sum_norms = false;       ///< norms come after the residual sums, and there are no others
  std::size_t token_types = 0;  ///< rows of the table of token types; 0: none
  Pooling pooling = Pooling::unknown;
  Head head;

  bool operator==(const Traits&) const = default;
};

/// The rotation of the blocks without a window, and of all of them if there is no other.
inline Rope main_rope(const Traits& traits) { return {traits.rope_base, traits.rotary, traits.rope_scaling}; }

/// Whether any block attends to keys and values.
bool attends(const Traits& traits);
/// The blocks that do, and after how many the first of them is; 1 if none does.
std::vector<bool> attention_of_blocks(const Traits& traits);
std::size_t attention_period(const Traits& traits);
std::size_t head_values_of(const Traits& traits, std::size_t block);
std::size_t kv_heads_of(const Traits& traits, std::size_t block);
/// The values of a head in the blocks with a window; those of the model if there are none.
std::size_t window_head_values(const Traits& traits);
/// How many standard deviations above the mean a value must be where that share is cut off; values are taken to be
/// normally distributed. And the share, rounded to what a person would have written.
float sparse_deviations(double share);
double sparse_share(float deviations);

/// Whether each block rotates, and the window of each.
std::vector<bool> rope_of_blocks(const Traits& traits);
std::vector<std::size_t> window_of_blocks(const Traits& traits);
/// The blocks with experts, and the first of them; `blocks` if there is none.
std::vector<bool> experts_of_blocks(const Traits& traits);
std::size_t first_experts(const Traits& traits);
/// The width of dense feed-forward layers, of the first one; 0 if there are none. And that of experts.
std::size_t dense_feed_forward(const Traits& traits);
std::size_t expert_feed_forward(const Traits& traits);
/// REQUIRES: one entry for each of the blocks.
void set_rope(Traits& traits, const std::vector<bool>& flags);
void set_feed_forward(Traits& traits, std::size_t width);
void set_windows(Traits& traits, const std::vector<std::size_t>& windows);

/// Throws FormatError or UnsupportedError, naming the field, for what is missing, out of range or of a kind that imago
/// does not run (threats.md 53); an unknown architecture is answered with the known ones.
Traits read_traits(const files::TensorFile& file);

}  // namespace imago::models
