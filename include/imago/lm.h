#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "imago/device.h"
#include "imago/format.h"
#include "imago/numeric.h"

namespace imago {

using TokenId = std::int32_t;

// ---- text and tokens

/// Text to token ids and back, as the model's own tokenizer does it. Immutable; safe from many threads.
class Tokenizer {
 public:
  /// From a Hugging Face folder, a tokenizer.json, a GGUF file, or a network that was saved with one. Throws IoError,
  /// FormatError, UnsupportedError.
  static Tokenizer load(const std::string& path);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  std::size_t size() const noexcept;
  /// `special`: the text of special tokens is read as such, and BOS and EOS are added where the tokenizer asks; else
  /// all of it is plain text. Bytes that are not UTF-8 are encoded as they are where the tokenizer has bytes, else as
  /// unknown. Time is linear in the text, but for a logarithm.
  std::vector<TokenId> encode(std::string_view text, bool special = false) const;
  /// The bytes of the text; special tokens only if asked for. Throws UsageError for an id outside the vocabulary.
  std::string decode(std::span<const TokenId> ids, bool special = false) const;
  /// The bytes that one token adds inside a text; a control token adds its name if asked for.
  std::string piece(TokenId id, bool special = false) const;
  /// As the vocabulary spells it. Throws UsageError.
  std::string_view spelling(TokenId id) const;

  std::optional<TokenId> bos() const noexcept;
  std::optional<TokenId> eos() const noexcept;
  bool adds_bos() const noexcept;
  /// Whether a text ends with it: EOS and its kin (end of turn).
  bool is_end(TokenId id) const noexcept;
  bool is_control(TokenId id) const noexcept;
  /// The model's chat template, Jinja; empty if it has none.
  const std::string& chat_template() const noexcept;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<const State> state);
  std::unique_ptr<const State> state_;
  friend struct TokenizerMaker;
};

/// Joins the pieces of tokens and gives out whole characters only: UTF-8 that a token cuts waits for the next one.
class Utf8Stream {
 public:
  /// What is complete now.
  std::string push(std::string_view bytes);
  /// What is left; half a character becomes U+FFFD.
  std::string finish();

 private:
  std::string pending_;
};

struct ChatMessage {
  std::string role;  ///< "system", "user", "assistant", "tool"
  std::string content;
};

/// A chat template in the subset of Jinja that published models use. No file, no network, no attributes of anything but
/// the values given; steps, depth and output are bounded. Immutable; safe from many threads.
class ChatTemplate {
 public:
  /// Throws FormatError with the line for text that is not Jinja, UnsupportedError for what is outside the subset.
  static ChatTemplate parse(std::string source);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  struct Variables {
    std::string bos_token, eos_token;
    bool add_generation_prompt = true;
    std::string date;  ///< what strftime_now gives, already formatted as %d %b %Y; empty: today
    /// More variables, name and JSON text: {"enable_thinking", "false"}.
    std::vector<std::pair<std::string, std::string>> more = {};
  };
  /// Throws UsageError with the text of raise_exception, FormatError when a bound is passed.
  std::string render(std::span<const ChatMessage> messages, const Variables& variables) const;

 private:
  struct State;
  explicit ChatTemplate(std::unique_ptr<const State> state);
  std::unique_ptr<const State> state_;
};

// ---- choosing the next token

struct SamplerOptions {
  float temperature = 0.8f;  ///< 0: the most likely token
  int top_k = 40;            ///< 0: all
  float top_p = 0.95f;       ///< 1: all
  float min_p = 0.05f;       ///< 0: all
  float typical_p = 1;       ///< 1: off
  float repeat_penalty = 1;  ///< 1: off
  float presence_penalty = 0, frequency_penalty = 0;
  int penalty_tokens = 64;                           ///< how far back penalties look; -1: all
  std::vector<std::pair<TokenId, float>> bias = {};  ///< added to logits; -infinity forbids
  std::uint64_t seed = 0;                            ///< 0: from the clock
};

struct TokenProbability {
  TokenId id;
  float log_probability;
};

/// Chooses tokens. Keeps what it chose and was told, for penalties. Not thread-safe.
class Sampler {
 public:
  /// Throws UsageError for options out of range, naming the option.
  explicit Sampler(const SamplerOptions& options);
  Sampler(Sampler&&) noexcept;
  Sampler& operator=(Sampler&&) noexcept;
  ~Sampler();

  /// The next token. Logits that are NaN never win. Throws UsageError for no logits.
  TokenId sample(std::span<const float> logits);
  /// Tells of a token that was not sampled here: the prompt.
  void accept(TokenId id);

 private:
  friend struct SamplerAccess;
  struct State;
  std::unique_ptr<State> state_;
};

/// The `count` most likely tokens by log-softmax, most likely first, and always `chosen`, last, if it is not among
/// them.
std::vector<TokenProbability> top_log_probabilities(std::span<const float> logits, std::size_t count,
                                                    std::optional<TokenId> chosen = std::nullopt);

// ---- models

enum class CacheKind : std::uint8_t { float32, float16, q8_0 };

/// Which of the rows that a model makes of a text becomes its embedding: their mean, the first or the last.
enum class Pooling : std::uint8_t { mean, cls, last };

struct LanguageModelOptions {
  /// Morph matrices at load; none: as they are stored. Rows that fit no block of it take a type with smaller blocks, as
  /// in convert_model.
  std::optional<Format> type = std::nullopt;
  /// Activations in int8 or bfloat16 for types of 8 bits and fewer and block formats; else float32 throughout.
  bool fast = true;
  bool eager = false;  ///< read the file first instead of mapping it
  /// Where the tokenizer is, as for Tokenizer::load; empty: in the model itself.
  std::string tokenizer = {};
  /// Where the last `gpu_layers` blocks and the output run, and with all of them the token embedding too; null or the
  /// host: everything here.
  std::shared_ptr<Device> device = nullptr;
  std::size_t gpu_layers = std::numeric_limits<std::size_t>::max();
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};  ///< bytes of weights packed
  /// Bytes on each device that versions of matrices may take that `morph` replaced; none: as many as stay free.
  std::optional<std::uint64_t> kept_bytes = std::nullopt;
};

/// A weight matrix of a model, or those of all experts of a block.
struct ModelMatrix {
  std::string name;  ///< as in GGUF files: "blk.0.attn_q.weight"; parts of fused matrices have one name
  std::string role;  ///< "query", "gate", "down", "token_embedding", …
  std::optional<std::size_t> block;
  Format type;
  std::uint64_t weights = 0, bytes = 0;  ///< bytes as products or lookups read them
};

/// What a metamorphosis has done.
struct MorphedMatrices {
  std::vector<std::string> changed = {};  ///< names of those that have another type now
  /// Names of those whose rows do not fit blocks of the type: they take smaller blocks, or stay as they are stored.
  std::vector<std::string> misfits = {};
  std::size_t encoded = 0;                          ///< versions made from the file; the others were kept
  std::uint64_t bytes_before = 0, bytes_after = 0;  ///< LanguageModel::bytes
};

/// A decoder, packed for the kernels of this machine. Any number of sequences may run on it, from one thread at a time
/// each; nothing but `morph` and `undo` changes it.
class LanguageModel {
 public:
  /// From a GGUF file, a Hugging Face folder, or a network of layers in any form that is one (import_network makes
  /// such networks). Throws IoError, FormatError, UnsupportedError; DeviceError if it does
  /// not fit the device, saying how many layers would.
  static LanguageModel load(const std::string& path, const LanguageModelOptions& options = {});
  LanguageModel(LanguageModel&&) noexcept;
  LanguageModel& operator=(LanguageModel&&) noexcept;
  ~LanguageModel();

  std::string_view architecture() const noexcept;
  std::string_view type() const noexcept;  ///< the type of most of its weights: "q4_k"; valid until the next morph
  std::size_t vocabulary() const noexcept;
  std::size_t context() const noexcept;        ///< positions it was made for
  std::size_t max_positions() const noexcept;  ///< that sequences can have
  /// False for encoders and models without an output matrix: they make embeddings, and no sequence can be begun.
  bool generates() const noexcept;
  Pooling pooling() const noexcept;  ///< how rows become an embedding, as the file asks for; the mean if it does not
  std::size_t embedding_width() const noexcept;
  std::uint64_t parameters() const noexcept;
  std::uint64_t bytes() const noexcept;  ///< size of its run forms, in the memory of the host and of its device
  /// What the options asked for and did not get: which rows fit no block of the type, and what they are instead.
  std::span<const std::string> notes() const noexcept;
  /// Null for a folder without tokenizer.
  const Tokenizer* tokenizer() const noexcept;
  /// Throws UnsupportedError, naming what is missing, if there is none.
  const Tokenizer& require_tokenizer() const;

  // Metamorphosis: other types for some matrices while no sequence runs a step. Sequences go on with their caches.

  /// All weight matrices but routers, block by block, then the ends.
  std::vector<ModelMatrix> matrices() const;
  /// Makes matrices anew from the file, as `LanguageModelOptions::type` would, or takes kept versions. `pattern` is a
  /// role ("ffn", "attention", "query", "output"), a block ("blk.3"), or a regular expression over names. A tied
  /// embedding changes in both places. Progress counts matrices, a gate and its `up` as one. Throws UsageError for a
  /// pattern that matches nothing; UnsupportedError, IoError, FormatError, DeviceError, std::bad_alloc: all matrices
  /// then have their types from before.
  MorphedMatrices morph(std::string_view pattern, Format type,
                        const std::function<void(std::uint64_t done, std::uint64_t total)>& progress = {});
  /// Takes the last `morph` back that changed something and was not undone. Throws as `morph`, and UsageError if there
  /// is none.
  MorphedMatrices undo(const std::function<void(std::uint64_t done, std::uint64_t total)>& progress = {});

 private:
  friend class Sequence;
  friend struct LanguageModelAccess;
  struct State;
  explicit LanguageModel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct SequenceOptions {
  std::size_t context = 0;  ///< tokens there is room for; 0: the model's
  CacheKind cache = CacheKind::float16;
  /// Tokens of a prompt that run together; none: 512, and 2048 where a GPU runs all blocks.
  std::optional<std::size_t> batch = std::nullopt;
};

/// One text under way: the tokens so far, their keys and values. The model must outlive it. Not thread-safe.
class Sequence {
 public:
  /// Throws UsageError if the context is 0 or beyond 2^24, std::bad_alloc or DeviceError if the cache does not fit.
  Sequence(const LanguageModel& model, const SequenceOptions& options = {});
  Sequence(Sequence&&) noexcept;
  Sequence& operator=(Sequence&&) noexcept;
  ~Sequence();

  std::size_t size() const noexcept;      ///< tokens in the cache
  std::size_t capacity() const noexcept;  ///< tokens there is room for
  std::span<const TokenId> tokens() const noexcept;
  /// The one of its model; null if the model has none.
  const Tokenizer* tokenizer() const noexcept;

  /// Appends tokens and returns the logits after the last of them: one per token of the vocabulary, valid until the
  /// next call. Throws UsageError for no tokens, ids outside the vocabulary, and more tokens than there is room for,
  /// saying how many there would be; the sequence is then as before.
  std::span<const float> append(std::span<const TokenId> ids);
  /// As above for a long prompt: `go_on` is asked after each batch but the last, with the tokens done. Once it says no,
  /// the sequence is as before and the result is empty.
  std::span<const float> append(std::span<const TokenId> ids, const std::function<bool(std::size_t done)>& go_on);
  /// As above, with the logits after each of them: [ids.size()][vocabulary].
  void append(std::span<const TokenId> ids, std::span<float> logits);
  /// Forgets all tokens from `size` on. Throws UsageError if there are fewer. Models with states (convolutions, scans)
  /// cannot go back: what comes next first computes the tokens that stay once more, and throws as `append`.
  void truncate(std::size_t size);

  /// Keys, values and tokens to a file, and back. The file names the model by a fingerprint; another model, cache kind
  /// or a damaged file is a FormatError, and the sequence is then as before. Throws IoError.
  void save(const std::string& path) const;
  void restore(const std::string& path);

 private:
  friend struct SequenceAccess;
  friend void append_together(std::span<Sequence* const> sequences, std::span<const TokenId> ids,
                              std::span<float> logits);
  struct State;
  std::unique_ptr<State> state_;
};

/// One token each for several sequences of one model, in one batch: reads the weights once. logits is
/// [sequences][vocabulary]. Throws as append, and UsageError if a sequence comes twice or models differ.
void append_together(std::span<Sequence* const> sequences, std::span<const TokenId> ids, std::span<float> logits);

// ---- embeddings

/// What the output matrix of a decoder reads, and what an encoder makes, of each of these tokens: [ids.size()][width].
/// Throws UsageError for no tokens, ids outside the vocabulary, and more tokens than the model has positions.
std::vector<float> hidden_states(const LanguageModel& model, std::span<const TokenId> ids);

// ---- generation

struct GenerateOptions {
  std::size_t max_tokens = 256;
  SamplerOptions sampler = {};
  std::vector<std::string> stop = {};  ///< ends before the first of these strings
  bool ignore_end = false;             ///< go on after EOS
  std::size_t log_probabilities = 0;   ///< how many to report per token
  /// Called between the batches of a long prompt; it may stop there by returning false. The sequence is then as before.
  std::function<bool(std::size_t done, std::size_t total)> prompt_progress = {};
};

enum class EndReason : std::uint8_t { max_tokens, end_token, stop_string, context_full, cancelled };

struct GeneratedToken {
  TokenId id;
  std::string text;  ///< what is new: whole characters, nothing that may yet become a stop string
  std::vector<TokenProbability> top = {};
};

struct GenerateResult {
  std::string text;
  std::vector<TokenId> ids;
  EndReason end = EndReason::max_tokens;
  double prompt_seconds = 0, generate_seconds = 0;
  std::size_t prompt_tokens = 0;  ///< evaluated; 0 if it was stopped before the end of the prompt
};

/// Appends `prompt` to the sequence and continues it; the last token of the result is not in the sequence yet.
/// `on_token` sees each token as it comes, and the end token only if it sets text free that was held back; it may stop
/// by returning false. Ends at the context's end with context_full. Throws as Sequence::append, as Sampler, UsageError
/// for an empty stop string, and UnsupportedError for stop strings without a tokenizer.
GenerateResult generate(Sequence& sequence, std::span<const TokenId> prompt, const GenerateOptions& options,
                        const std::function<bool(const GeneratedToken&)>& on_token = {});

// ---- judging

struct PerplexityOptions {
  std::size_t context = 512;
  CacheKind cache = CacheKind::float32;
  std::function<void(std::size_t done, std::size_t total, double perplexity)> progress = {};  ///< windows
};

struct PerplexityReport {
  double perplexity = 0;
  std::size_t tokens_scored = 0, windows = 0;
};

/// Windows of `context` tokens without overlap, the last incomplete one dropped, the second half of each scored. BOS
/// takes the first place of a window only where the tokenizer asks for it. Throws UsageError for a text shorter than
/// one window, naming its tokens.
PerplexityReport measure_perplexity(const LanguageModel& model, std::string_view text,
                                    const PerplexityOptions& options = {});

struct DivergenceOptions {
  std::size_t context = 512;
  CacheKind cache = CacheKind::float32;
  std::function<void(std::size_t done, std::size_t total)> progress = {};  ///< windows
};

/// Divergences are counted in bins, four to a power of ten: bin 0 is all below 10^-7, bin i >= 1 begins at
/// 10^(-7 + (i - 1) / 4), and the last one has all from 100 on, infinite ones too.
inline constexpr std::size_t kDivergenceBins = 38;
/// Where bin `bin` begins; 0 for bin 0.
inline double divergence_bin_start(std::size_t bin) noexcept {
  return bin == 0 ? 0 : std::pow(10.0, -7 + static_cast<double>(bin - 1) / 4);
}

/// How far the predictions of a model are from those of a reference. Divergences are KL(reference || model) in nats,
/// one per scored position.
struct DivergenceReport {
  double reference_perplexity = 0, perplexity = 0;
  double mean = 0, median = 0, percentile_99 = 0, largest = 0;
  double same_top = 0;  ///< share of the positions whose most likely token is the same, 0 to 1
  std::size_t tokens_scored = 0, windows = 0;
  std::vector<std::uint64_t> histogram = {};  ///< positions in each of kDivergenceBins bins
};

/// Runs both models over the text side by side, in the windows of `measure_perplexity` and with the tokens of the
/// reference, and compares their predictions. Memory: 8 bytes per scored position, and logits of some positions at a
/// time. Logits that are not numbers diverge infinitely. Throws UsageError as `measure_perplexity`, and for models
/// whose vocabularies differ: in size, or in how their tokenizers, where both have one, read this text.
DivergenceReport measure_divergence(const LanguageModel& reference, const LanguageModel& other, std::string_view text,
                                    const DivergenceOptions& options = {});
/// As above for several models, in their order; the reference runs once.
std::vector<DivergenceReport> measure_divergence(const LanguageModel& reference,
                                                 std::span<const LanguageModel* const> others, std::string_view text,
                                                 const DivergenceOptions& options = {});

struct ModelBenchOptions {
  std::size_t prompt = 512, generate = 128;
  int repeats = 3;
  std::function<void(const std::string& test, std::size_t done, std::size_t total)> progress = {};
};

struct ModelBenchResult {
  std::string test;              ///< "pp512", "tg128"
  double tokens_per_second = 0;  ///< the median
  double stddev = 0;
  double gb_per_s = 0;  ///< weights and cache read per second; generation only
};

/// Speed of prompt processing and generation with random tokens. Throws UsageError if either does not fit the context.
std::vector<ModelBenchResult> bench_model(const LanguageModel& model, const ModelBenchOptions& options = {});

}  // namespace imago
