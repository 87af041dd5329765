#pragma once

// A decoder as data: the steps that turn tokens into logits, and the weights that each of them reads. models/program.h
// writes a program from the traits of a model; a backend runs it (backend/runner.h). A model that is made of known
// steps needs no other code.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/ops_args.h"
#include "kernels/recurrent.h"

namespace imago::backend {

/// What a weight is for.
enum class Role : std::uint8_t {
  token_embedding,     ///< [vocabulary, width]
  position_embedding,  ///< [context, width]
  token_types,         ///< [2, width]: of the first and of the second text of a pair
  embedding_norm,
  embedding_norm_bias,
  output_norm,
  output_norm_bias,
  output,      ///< [vocabulary, width]; absent when tied
  head_dense,  ///< [head_hidden, width]
  head_dense_bias,
  head_norm,
  head_output,  ///< [results, head_hidden]
  head_output_bias,
  // inside a block
  attention_norm,
  attention_norm_bias,
  attention_post_norm,
  attention_post_norm_bias,
  query,  ///< [heads · head_values, width]
  query_bias,
  key,  ///< [kv_heads · head_values, width]
  key_bias,
  value,
  value_bias,
  query_norm,
  key_norm,
  attention_output,  ///< [width, heads · head_values]
  attention_output_bias,
  sinks,  ///< [heads]
  feed_forward_norm,
  feed_forward_norm_bias,
  feed_forward_post_norm,
  feed_forward_post_norm_bias,
  gate,  ///< [feed_forward, width], of expert e where there are experts
  gate_bias,
  up,
  up_bias,
  down,  ///< [width, feed_forward]
  down_bias,
  router,         ///< [experts, width]
  router_bias,    ///< [experts]
  choice_bias,    ///< [experts], of the choice of experts alone
  shared_router,  ///< [1, width]
  shared_gate,    ///< [shared_feed_forward, width]
  shared_up,
  shared_down,     ///< [width, shared_feed_forward]
  attention_gate,  ///< [heads · head_values, width]
  channels,        ///< [channels, width], into what convolutions and scans run over
  input_gate,      ///< what decides what goes into a state
  output_gate,     ///< [results, width], by which the results of a scan are multiplied
  step,            ///< how large the steps of a scan are
  step_bias,
  step_low,  ///< [rank, channels], steps before they are spread over the channels
  taps,      ///< [channels][kernel] in files, [kernel][channels] in steps
  taps_bias,
  decay_rate,
  skip,
  scan_norm,
  scan_output,  ///< [width, results]
  query_low,    ///< [query_low, width], queries before they are spread over the heads
  query_low_norm,
  latent,  ///< [rank + rotary, width], keys and values compressed, and what of a key turns
  latent_norm,
  key_up,                 ///< [rank, plain] of each head: queries times it meet compressed keys
  value_up,               ///< [values, rank] of each head
  rope_factors,           ///< of GGUF, in no block: divisors of the rotary frequencies, [rotary / 2]
  output_bias,            ///< in no block
  layer_embedding,        ///< [tokens, blocks · layer_values], in no block
  layer_projection,       ///< [blocks · layer_values, width], in no block
  layer_projection_norm,  ///< in no block
  layer_gate,             ///< [layer_values, width]
  layer_output,           ///< [width, layer_values]
  layer_post_norm,
  block_scale,         ///< one number
  router_norm,         ///< norm of a router's input where experts read something else
  expert_scale,        ///< [experts], on the weights of the chosen ones
  dense_post_norm,     ///< norm after a dense layer beside experts
  experts_norm,        ///< norm of the input of experts beside a dense layer
  experts_post_norm,   ///< norm of their results
  stream_projection,   ///< [width, width] of each stream but the first, in no block
  stream_merge,        ///< likewise
  stream_router,       ///< [streams, width]
  stream_router_norm,  ///< [width]
  stream_prediction,   ///< [streams · streams, streams]
  stream_correction,   ///< [streams, streams]
  stream_scale,        ///< [width]
  laurel_low,          ///< [rank, width], a narrow layer beside attention
  laurel_up,           ///< [width, rank]
  laurel_norm,         ///< [width]
};
inline constexpr std::size_t kRoles = static_cast<std::size_t>(Role::laurel_norm) + 1;

/// As the enumerator is spelled.
std::string_view name(Role role) noexcept;

/// One weight of a model. Weights outside the blocks have block 0.
struct WeightKey {
  Role role = Role::query;
  std::size_t block = 0, expert = 0;

  /// The same weight of another expert.
  WeightKey of_expert(std::size_t other) const noexcept { return {role, block, other}; }
  friend auto operator<=>(const WeightKey&, const WeightKey&) = default;
};

/// Activations by name: one row for each token of a batch.
enum class Slot : std::uint8_t {
  stream,  ///< [width], what blocks read and add to
  normed,  ///< [width]
  branch,  ///< [width], what is about to be added to the stream
  query,   ///< [heads][head_values]; after attention its results
  key,     ///< [kv_heads][head_values]
  value,
  hidden,        ///< [feed_forward]
  logits,        ///< [vocabulary]
  channels,      ///< what short convolutions and scans run over
  input_gate,    ///< what decides what goes into their states
  output_gate,   ///< what results of attention or of a scan are multiplied by
  step,          ///< sizes of steps, before their bias
  step_low,      ///< [rank]
  scanned,       ///< results of a scan, or of a convolution that is the whole mixer
  layer_inputs,  ///< [blocks][layer_values]: what each block gets besides the stream; made once, before the first
  layer_hidden,  ///< [layer_values]
  query_low,     ///< queries before they are spread over the heads
  attended,      ///< results of latent attention
  routed,        ///< [width], what a router reads where experts read something else
  from_experts,  ///< [width], what experts make beside a dense layer
  dense_hidden,  ///< [shared_feed_forward], of that dense layer
  up,            ///< [feed_forward], what `hidden` will be multiplied by
  laurel_low,    ///< [rank]
  streams,       ///< [streams][width]: all streams of a token, where a model has several
};
inline constexpr std::size_t kSlots = static_cast<std::size_t>(Slot::streams) + 1;
std::string_view name(Slot slot) noexcept;

enum class NormKind : std::uint8_t { rms, layer };

// The steps. A bias that a file does not have adds nothing; every other weight must be there.

/// layer_inputs = scale · (norm of projection_scale · (projection · stream) + table_scale · row of the token in
/// `table`). The norm runs over the values of each block; tokens beyond the table have its first row.
struct LayerInputs {
  WeightKey table, projection, norm;
  float table_scale = 1, projection_scale = 1, scale = 1, eps = 0;
};

struct Norm {
  Slot in = Slot::stream, out = Slot::normed;
  WeightKey weight;
  std::optional<WeightKey> bias = {};  ///< layer norms only
  NormKind kind = NormKind::rms;
  float eps = 0;
};

/// Where tokens have several streams, blocks work on `stream`, and `streams` has all of them. The first of those is the
/// stream, and stream i of the others is matrix i - 1 times it, scaled to its root mean square.
struct StartStreams {
  std::size_t count = 0;
  WeightKey
      projection;  ///< projection of the first of the other streams; those of others differ in the number of the expert
};

/// Before the first block: stream = scale · row of the token in `table`, + row of its position in `positions`, + row of
/// its text, the first or the second of a pair, in `types`; then `norm`.
struct Embed {
  WeightKey table;
  std::optional<WeightKey> positions = {}, types = {};
  float scale = 1;
  std::optional<LayerInputs> layers = {};
  std::optional<StartStreams> streams = {};
  std::optional<Norm> norm = {};  ///< applied to the stream in place
};

/// out = activation(matrix · in + bias), with `up` also · (up · in + up_bias).
struct Product {
  WeightKey matrix = {};
  std::optional<WeightKey> up = {}, bias = {}, up_bias = {};
  kernels::Activation activation = kernels::Activation::linear;
  Slot out = Slot::branch;
};

/// Products that share their input.
struct Products {
  Slot in = Slot::normed;
  std::vector<Product> list;
};

/// RMS norm in place, over each run of as many values as there are weights: a head or the whole row. With `groups`, the
/// weights are those of so many runs.
struct NormHeads {
  Slot at = Slot::query;
  WeightKey weight;
  float eps = 0;
  std::size_t groups = 1;
};

/// The heads of values through an RMS norm without weights. `from`: where they are, which may be the keys.
struct NormValues {
  Slot from = Slot::value;
  float eps = 0;
};

/// layer_hidden = activation(layer_hidden) · the inputs of this block.
struct TakeLayerInput {
  kernels::Activation activation = kernels::Activation::linear;
};

/// out = stream · factor, which is one number or one for each value.
struct ScaleStream {
  WeightKey factor;
  Slot out = Slot::stream;  ///< or `normed`
};

/// hidden = activation(max(0, hidden - mean - deviations · σ)) · up, with the mean and the standard deviation σ of the
/// values of a token: the largest few of them remain.
struct SparseGate {
  float deviations = 0;
  kernels::Activation activation = kernels::Activation::linear;
};

// Steps of models with several streams. m = tanh(router · RMS norm of the stream by `norm`), [streams].

/// `streams` before a block become what they are expected to be after it: stream i += Σ_j c[i][j] · stream j, all at
/// once, where c = coefficients · m. Then stream = the first of them.
struct PredictStreams {
  std::size_t count = 0;
  WeightKey norm, router, coefficients;
  float eps = 0;
};

/// What a block made of the first of `streams` tells of the others: stream i += (1 + c[i]) · (stream - the first of
/// `streams`), where c = coefficients · m. Then stream = the first of them.
struct CorrectStreams {
  std::size_t count = 0;
  WeightKey norm, router, coefficients;
  float eps = 0;
};

/// stream = the mean of the first of `streams` and what the others become: each times its own matrix, scaled to the
/// root mean square of the first.
struct MergeStreams {
  std::size_t count = 0;
  WeightKey matrix;  ///< as StartStreams::projection
};

/// Rotations that a model may have: that of most blocks and another one.
inline constexpr std::size_t kRopes = 2;

/// Rotates queries and keys, stores keys and values in the cache and attends to it. Results replace the queries.
struct Attend {
  std::size_t rotary = 0;  ///< values of a head that turn; 0: no rotation
  std::size_t rope = 0;    ///< which rotation
  kernels::RopePairs pairs = kernels::RopePairs::halves;
  std::size_t window = 0;  ///< keys that a token sees, its own among them; 0: all before it
  bool causal = true;      ///< else it sees all keys of its text, or `window` / 2 on either side of its own
  float scale = 1;         ///< on q · k
  float cap = 0;           ///< soft cap of scores; 0: none
  /// A score per head that takes part in the softmax of its queries and adds no value.
  std::optional<WeightKey> sinks = {};
  /// Norms of the heads of queries and keys after the rotation; both or none.
  std::optional<WeightKey> query_norm = {}, key_norm = {};
  float eps = 0;  ///< eps of those norms
  /// Queries are multiplied by 1 + growth · ln(1 + floor(position / growth_period)); 0: they are not.
  float growth = 0;
  std::size_t growth_period = 1;
  /// An earlier block of the same runner whose keys and values it attends to; it has none of its own then.
  std::optional<std::size_t> cache = {};
};

/// Attention to compressed keys and values. A query has `plain` values and `rotary` that turn; the row in the key slot
/// has `rank` compressed values, which are normed, and `rotary` that turn and all heads share. The cache holds these
/// rows and nothing else. Head h scores row (c, r) with scale · ((key_up[h] · plain) · c + turned · r), and value_up[h]
/// · Σ p · c goes to `attended`: the definition's keys key_up[h]ᵀ · c and values value_up[h] · c are never made.
struct LatentAttend {
  std::size_t heads = 0, plain = 0, rotary = 0, rank = 0, values = 0;
  kernels::RopePairs pairs = kernels::RopePairs::halves;
  float scale = 1;
  WeightKey norm = {};
  float eps = 0;
  WeightKey key_up = {}, value_up = {};  ///< head 0; other heads differ in the number of the expert only
};

// Steps that pass states from token to token. The states of a block are `Block::state` values per sequence, zeros
// before the first token; those of a step begin at its `state`. kernels/ops_args.h has the formulas.

/// channels → out, which is the channels themselves or `scanned`.
struct ShortConv {
  Slot out = Slot::channels;
  WeightKey taps;
  std::optional<WeightKey> bias = {};
  kernels::Activation activation = kernels::Activation::linear;
  std::size_t kernel = 0, state = 0;
};

/// channels → scanned. With the delta rule queries and keys are normalized, the strength is the sigmoid of `input_gate`
/// and the step only decides the decay; without it the strength is the step.
struct LinearScan {
  kernels::LinearScanShape shape;
  WeightKey decay_rate, step_bias;
  std::optional<WeightKey> skip = {};
  float low_step = 0, high_step = std::numeric_limits<float>::infinity();
  std::size_t state = 0;
};

/// channels → scanned, by a decay of its own for each channel and state. `input_gate` has what the states take in and
/// what reads them.
struct ChannelScan {
  WeightKey decay_rate, step_bias, skip;
  std::size_t states = 0, state = 0;
};

/// at *= f(by).
struct Gate {
  Slot at = Slot::query, by = Slot::output_gate;
  kernels::Activation activation = kernels::Activation::linear;
};

/// A dense branch that all tokens take beside their experts: what it makes is added to their sum, times
/// sigmoid(router · in) where there is a router.
struct SharedExpert {
  Product hidden, down;
  std::optional<WeightKey> router = {};  ///< a matrix of one row
};

/// What the products of a router become.
enum class ExpertScores : std::uint8_t { softmax, sigmoid };

/// A mixture of experts. Scores are the softmax or the sigmoid of router · in + router_bias. A token goes to the `used`
/// experts of the highest score + choice_bias, the lower number first among equals; where experts come in groups, of
/// consecutive ones, only to those of the `groups_used` best groups, judged by their best expert or by the sum of their
/// two best. The weight of an expert is its score, without the choice bias. The products are those of expert 0; others
/// differ in the number of the expert only.
struct Experts {
  Slot in = Slot::normed;
  Slot router_in = Slot::normed;
  WeightKey router = {};
  std::optional<WeightKey> router_bias = {}, choice_bias = {};
  std::optional<WeightKey> expert_scale = {};  ///< the weight of a chosen expert is multiplied by its own
  Product hidden = {}, down = {};
  std::size_t count = 0, used = 0;
  ExpertScores scores = ExpertScores::softmax;
  std::size_t groups = 1, groups_used = 1;  ///< count is a multiple of groups
  bool two_judge_group = false;
  bool normalize = true;  ///< the weights of the chosen experts sum to 1
  float scale = 1;        ///< on the weights
  std::optional<SharedExpert> shared = {};
};

/// at *= factor.
struct Scale {
  Slot at = Slot::normed;
  float factor = 1;
};

/// to = scale · (to + factor · from). With `streams` it is each of them but the first that `from` is added to.
struct Add {
  float factor = 1;
  Slot from = Slot::branch, to = Slot::stream;
  float scale = 1;
};

/// logits · scale, then cap · tanh(logits / cap) where cap is not 0.
struct AdjustLogits {
  float scale = 1, cap = 0;
};

using Step = std::variant<Norm, Products, NormHeads, Attend, Experts, Add, AdjustLogits, ShortConv, LinearScan,
                          ChannelScan, Gate, NormValues, TakeLayerInput, ScaleStream, LatentAttend, SparseGate,
                          PredictStreams, CorrectStreams, MergeStreams, Scale>;

/// Widths of activations.
struct Sizes {
  std::size_t width = 0, heads = 0, kv_heads = 0, head_values = 0, feed_forward = 0, vocabulary = 0;
  std::size_t experts = 0, experts_used = 0;  ///< 0: no experts
  std::size_t shared_feed_forward = 0;        ///< rows of the expert that all tokens share; 0: there is none
  std::size_t query_values = 0;               ///< values of a head of queries; 0: head_values
  std::size_t query_low = 0, attended = 0;    ///< attended: not 0 where the cache holds no values
  std::size_t channels = 0, input_gate = 0, output_gate = 0, step = 0, step_low = 0, scanned = 0;
  std::size_t layer_inputs = 0, layer_values = 0;  ///< 0: blocks have no inputs besides the stream
  std::size_t streams = 0, laurel_low = 0;         ///< streams of a token; 0: one

  std::size_t of(Slot slot) const noexcept;
  /// How many of a weight there are that experts or heads have of their own.
  std::size_t copies() const noexcept;
  /// The larger of each.
  void include(const Sizes& other) noexcept;
  bool operator==(const Sizes&) const = default;
};

/// Blocks may differ in their steps and in the sizes of all slots but the stream.
struct Block {
  Sizes sizes;
  std::vector<Step> steps;
  std::size_t state = 0;  ///< values that each sequence has besides its keys and values
};

struct Program {
  Sizes sizes;  ///< sizes of the output, and the largest of any block
  Embed embed;
  std::vector<Block> blocks;
  std::vector<Step> output;  ///< from the stream to the logits; without a product there are none
  Block head;                ///< from a pooled row in the stream to logits of their own: scores of a text; often empty
};

/// A weight, or several matrices that one product reads together.
struct WeightUse {
  enum class Kind : std::uint8_t {
    matrix,
    router,  ///< a matrix that keeps its type: it is small and decides which experts run
    norm,
    bias,  ///< may be absent
  };
  Kind kind = Kind::matrix;
  std::vector<WeightKey> keys;
};
/// The weights of steps, in their order; an expert's after those of the expert before.
std::vector<WeightUse> weights_of(std::span<const Step> steps);

/// One step in a line: "products normed: query + query_bias -> query, …". For tests and people.
std::string text(const Embed& step);
std::string text(const Step& step);
/// Steps line by line.
std::string text(std::span<const Step> steps);

}  // namespace imago::backend
