#pragma once

// Plain arguments of the operations between matrix products. Included by files with instruction-set flags: no functions
// here, no includes that bring any. The type of the arguments stands for the operation: each folder offers an overload
// `run` for each (generic/folder.inl.h), and kName begins the names of its rows in the table.

#include <cstddef>
#include <cstdint>

namespace imago::kernels {

/// y = x / sqrt(mean(x²) + eps) · (weight + weight_offset), row by row. x and y may be the same.
struct RmsNormArgs {
  static constexpr const char* kName = "rms_norm";
  const float* x;  // [rows][cols]
  float* y;        // [rows][cols]
  std::size_t rows, cols;
  const float* weight;  // [cols]; null: y = x / sqrt(…)
  float weight_offset;  // 0, or 1 for models that store weights around zero
  float eps;
};

/// y = (x - mean) / sqrt(variance + eps) · gamma + beta, row by row, biased variance. x and y may be the same.
struct LayerNormArgs {
  static constexpr const char* kName = "layer_norm";
  const float* x;  // [rows][cols]
  float* y;        // [rows][cols]
  std::size_t rows, cols;
  const float* gamma;  // [cols]
  const float* beta;   // [cols]; null: zeros
  float eps;
};

/// x = softmax(t), row by row, where t = scale · x, or cap · tanh(scale · x / cap) if cap > 0. Entries of -inf are
/// masked: they become 0, with a cap too. A row of nothing else becomes zeros. REQUIRES: scale > 0.
struct SoftmaxArgs {
  static constexpr const char* kName = "softmax";
  float* x;  // [rows][cols]
  std::size_t rows, cols;
  float scale;
  float cap;  // 0: none
};

/// Which two values of a head turn together.
enum class RopePairs : std::uint8_t {
  halves,    ///< x[j] and x[j + rotary/2]: Hugging Face, NeoX
  adjacent,  ///< x[2j] and x[2j + 1]: GGUF files of the llama family
};

/// (a, b) becomes (a · cos - b · sin, a · sin + b · cos) for the pairs in the first `rotary` values of each head.
struct RopeArgs {
  static constexpr const char* kName = "rope";
  float* x;  // [heads][head_values]: one token
  std::size_t heads, head_values;
  std::size_t rotary;    // even, <= head_values
  const float* cos_sin;  // rotary/2 cosines, then rotary/2 sines
  RopePairs pairs;
};

/// The activation functions; docs/layers.md has their formulas and numbers. No layer has gelu_erf, x/2 · (1 + erf(x /
/// √2)), of which gelu is an approximation: language models tell the two apart.
/// Nor has any layer clamped_swish, gpt-oss's: m · σ(1.702 m) with m = min(x, 7).
enum class Activation : std::uint8_t {
  linear,
  relu,
  relu2,
  leaky_relu,
  silu,
  gelu,
  tanh,
  sigmoid,
  gelu_erf,
  clamped_swish
};
inline constexpr int kActivationCount = 10;
/// Where clamped_swish is cut, and how steep it is.
inline constexpr float kSwishLimit = 7, kSwishSlope = 1.702f;

/// y = f(x), or f(x) · up if `up` is given; of clamped_swish f(x) · (1 + up cut to ±7). y may be x or up.
struct ActivateArgs {
  static constexpr const char* kName = "activate";
  const float* x;
  const float* up;  // null: none
  float* y;
  std::size_t count;
  Activation function;
};

/// y += factor · x.
struct AddScaledArgs {
  static constexpr const char* kName = "add_scaled";
  const float* x;
  float* y;
  std::size_t count;
  float factor;
};

/// y = factor · x. They may be the same.
struct ScaleArgs {
  static constexpr const char* kName = "scale";
  const float* x;
  float* y;
  std::size_t count;
  float factor;
};

enum class UpdateKind : std::uint8_t { plain, momentum, adam };

/// One step of an optimizer. g = clamp(gradient, ±bound) · factor; weights end at `floor` or above. The same bits on
/// every machine. No two arrays overlap.
///   plain:     w -= rate · g
///   momentum:  m1 = momentum · m1 + g, w -= rate · m1
///   adam:      m1 += (g - m1) · blend1, m2 = m2 · beta2 + blend2 · g · g,
///              w = w · keep - rate · (m1 / (sqrt(m2) / root_correction2 + epsilon))
struct UpdateArgs {
  static constexpr const char* kName = "update";
  float* weights;
  const float* gradient;
  float* moment1;  // null where the kind has none
  float* moment2;  // likewise
  std::size_t count;
  UpdateKind kind;
  float rate, keep, momentum, beta2, blend1, blend2, root_correction2, epsilon;
  float bound, factor, floor;
};

/// sum = Σ clamp(x, ±bound)² in double; NaN if some x is NaN or infinite. The same bits on every machine.
struct SquaresArgs {
  static constexpr const char* kName = "squares";
  const float* x;
  std::size_t count;
  float bound;
  double* sum;
};

/// One token for the integer matrix kernels, quantized as imago::quantize_activations does.
struct QuantizeArgs {
  static constexpr const char* kName = "quantize_tokens";
  const float* x;  // [cols]
  std::size_t cols;
  std::int8_t* q;  // [cols rounded up to 32], zero past cols
  float* scales;   // one per 32
  float* sums16;   // one per 16: scale · Σ q
};

/// How a cache keeps keys and values: rows of one head, in float32, in float16, or in blocks of q8_0.
enum class CacheType : std::uint8_t { f32, f16, q8_0 };

/// The keys a query sees: [first, first + count).
struct KeyRange {
  std::size_t first, count;
};

/// Room for one call of attention, in lines so that vectors in it do not straddle two.
struct alignas(64) ScratchLine {
  std::byte bytes[64];
};

/// Keys in float32 of one tile: 32 rows of 128 values fill half of a 32 KiB cache, and 32 is two or four vectors.
inline constexpr std::size_t kTileKeys = 32;
/// Queries that share each decoded tile. With 128 values each, queries and sums fill the other half.
inline constexpr std::size_t kTileQueries = 16;

/// y = Σ p(u) · value(u) with p = softmax over the keys u in the range of the query's token; the scores are
/// scale · (q · key(u)), capped as in SoftmaxArgs. A query without keys gives zeros. A sink takes part in the softmax
/// and adds nothing to y. One head of keys and values, with the `group` heads of queries that share it. A query's
/// result depends on no other query.
struct AttentionArgs {
  static constexpr const char* kName = "attention";
  const float* q;  // head h of token t at q + t · token_stride + h · head_values
  float* y;        // laid out like q; may be q
  std::size_t tokens, group, head_values;
  std::size_t token_stride;  // in floats
  CacheType type;
  // The head's row u at keys + pages[u >> page_shift] · page_bytes + (u modulo 2^page_shift) · row_bytes; so are
  // values.
  const std::byte* keys;
  const std::byte* values;
  const std::uint32_t* pages;
  std::size_t page_bytes, row_bytes;
  unsigned page_shift;
  const KeyRange* ranges;  // [tokens]
  float scale;
  float cap;             // 0: none
  const float* sinks;    // [group]: a score of each head beside those of its keys, with no value; null: none
  ScratchLine* scratch;  // attention_scratch_lines(head_values)
};

/// A convolution of each channel along the tokens, each seeing itself and those before it:
/// y[t][c] = f(bias[c] + Σ_k taps[k][c] · x[t + k - (kernel - 1)][c]). Rows before the first are those of the state,
/// the oldest first; afterwards it holds the last kernel - 1 rows of x. Rows are `stride` floats apart, those of taps
/// and state too.
struct ShortConvArgs {
  static constexpr const char* kName = "short_conv";
  const float* x;
  float* y;  // token t is at y + (t - first_result) · stride; may be x if all are wanted
  const float* taps;
  const float* bias;  // null: zeros
  float* state;
  std::size_t tokens, first_result, channels, stride;
  std::size_t kernel;     // from 1 to kMaxTaps
  Activation activation;  // linear or silu
};
inline constexpr std::size_t kMaxTaps = 8;

/// How large a step of a scan is, and what a state keeps over it: step = clamp(ln(1 + e^(x + bias)), low, high),
/// decay = e^(step · rate).
struct StepSizeArgs {
  static constexpr const char* kName = "step_size";
  const float* x;  // [rows][cols]
  std::size_t rows, cols;
  const float* bias;  // [cols]
  const float* rate;  // [cols]
  float* step;        // [rows][cols], may be x; null: not wanted
  float* decay;       // likewise
  float low, high;
};

/// Columns of a state that lie together: [keys][32] for the first 32 values, and so on, the last of them narrower.
/// With 128 keys they fill a third of a first-level cache.
inline constexpr std::size_t kStateColumns = 32;

/// A state of [keys][values] decays, takes in each token and is read by it:
/// S = decay · S + k ⊗ δ, y = Sᵀ q + skip · v, where δ = strength · v, or by the delta rule, which replaces what the
/// state has under a key, δ = strength · (v - decay · Sᵀ k). Token by token: results do not depend on how a text is
/// cut.
struct LinearScanArgs {
  static constexpr const char* kName = "linear_scan";
  const float* q;  // [keys], of token t at q + t · stride, and so on
  const float* k;
  const float* v;  // [values]
  std::size_t stride;
  float* y;  // token t is at y + (t - first_result) · y_stride
  std::size_t y_stride;
  const float* decay;  // token t is at decay + t · scalar_stride
  const float* strength;
  std::size_t scalar_stride;
  std::size_t tokens, first_result, keys;
  std::size_t values;  // up to kStateColumns: the columns of a state are independent
  float* state;        // [keys][values]
  bool delta;
  float skip;
};

/// The same with a decay of its own for each channel and value of its state:
/// h[n][c] = e^(step · rate[n][c]) · h[n][c] + step · x · b[n], y = Σ_n h[n][c] · r[n] + skip[c] · x, where step and x
/// are those of the channel.
struct ChannelScanArgs {
  static constexpr const char* kName = "channel_scan";
  const float* x;  // [channels], of token t at x + t · stride
  const float* step;
  float* y;            // token t is at y + (t - first_result) · stride
  std::size_t stride;  // also between the channels of rates and state
  const float* b;      // [states], of token t at b + t · b_stride
  const float* r;      // likewise
  std::size_t b_stride;
  std::size_t tokens, first_result, channels, states;
  const float* rates;  // [states]
  const float* skip;   // [channels]
  float* state;        // [states]
};

}  // namespace imago::kernels
