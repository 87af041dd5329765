#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "imago/error.h"
#include "imago/lm.h"

namespace imago {

/// A request needs more tokens than it may have.
class ContextError final : public Error {
 public:
  ContextError(std::size_t prompt_tokens, std::size_t context);
  std::size_t prompt_tokens() const noexcept { return prompt_tokens_; }
  std::size_t context() const noexcept { return context_; }

 private:
  std::size_t prompt_tokens_, context_;
};

/// As many requests wait as may.
class QueueFullError final : public Error {
 public:
  explicit QueueFullError(std::size_t queue);
};

/// Two texts in one for a cross-encoder.
struct TextPair {
  std::vector<TokenId> ids;
  std::size_t second = 0;  ///< the place where the second one begins
};

struct EmbedOptions {
  std::optional<Pooling> pooling = {};  ///< none: the model's
  bool normalize = false;               ///< to a length of 1
  /// Called before each step; what it throws ends the work.
  std::function<void(std::size_t done, std::size_t texts)> progress = {};
};

struct EngineOptions {
  /// Tokens of a request that the cache holds: its prompt, and its answer but for the last token; 0: the model's.
  std::size_t context = 0;
  CacheKind cache = CacheKind::float16;
  std::size_t parallel = 0;  ///< requests that run at a time; 0: as many as the cache holds, 256 at most
  std::size_t queue = 1024;  ///< requests that wait; more are refused
  /// Bytes of keys and values, on all devices together; none: what `parallel` requests of `context` tokens need, as far
  /// as a half of the free memory goes. At least one request of `context` tokens fits.
  std::optional<std::uint64_t> cache_bytes = std::nullopt;
  /// Prompt tokens of a step, besides one token of each request that is past its prompt; none: 512, and 2048 where a
  /// GPU runs all blocks.
  std::optional<std::size_t> prompt_tokens = std::nullopt;
  bool prefix_cache = true;  ///< keep pages of ended requests for those that begin alike
};

struct Request {
  std::vector<TokenId> prompt;
  GenerateOptions generate = {};  ///< its `prompt_progress` is not called; see EngineEvent
  bool reuse_prefix = true;       ///< take pages of earlier requests that begin alike
};

struct RequestResult : GenerateResult {
  std::size_t cached_tokens = 0;  ///< of the prompt, taken from earlier requests; prompt_tokens counts the others
  double waiting_seconds = 0;     ///< before its first step
  std::size_t preemptions = 0;    ///< times it lost its pages to others and was computed again
};

/// What a request tells while it runs: a token, or how far its prompt is.
struct EngineEvent {
  std::optional<GeneratedToken> token = {};
  std::size_t prompt_done = 0, prompt_total = 0;  ///< tokens, those from the cache among them
  std::size_t prompt_cached = 0;                  ///< from the cache
};

/// A request under way. Dropping it cancels the request. One thread reads at a time; `cancel` may come from any.
class Generation {
 public:
  Generation(Generation&&) noexcept;
  Generation& operator=(Generation&&) noexcept;
  ~Generation();

  /// Waits for the next event; empty once the request has ended. Throws what ended it: DeviceError, UsageError.
  std::optional<EngineEvent> next();
  /// As above, but waits until `seconds` have passed at most. The second value: whether more may come.
  std::pair<std::optional<EngineEvent>, bool> next_within(double seconds);
  /// Reads what is left and returns the whole.
  RequestResult finish(const std::function<bool(const EngineEvent&)>& on_event = {});
  /// What is there so far; complete once `next` was empty.
  const RequestResult& result() const noexcept;
  /// Its pages are free after the step under way.
  void cancel() noexcept;

 private:
  friend class Engine;
  struct State;
  explicit Generation(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

/// What an engine does right now, and has done so far.
struct EngineState {
  struct Running {
    std::uint64_t id = 0;
    std::size_t prompt_tokens = 0, prompt_done = 0, generated = 0, max_tokens = 0;
    double seconds = 0;  ///< since it was submitted
  };
  std::vector<Running> running = {};
  std::size_t waiting = 0;
  std::size_t page_tokens = 0, pages = 0, pages_used = 0, pages_cached = 0;  ///< used: by running requests
  std::size_t last_batch = 0;                                                ///< tokens of the last step
  // So far.
  std::uint64_t requests = 0, cancelled = 0, refused = 0, preemptions = 0, steps = 0;
  std::uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  double prompt_seconds = 0, generate_seconds = 0;  ///< of steps with and without prompts
};

/// Serves requests on one model: at every step the prompts, in pieces, and the next tokens of all running requests
/// share one pass over the weights. Keys and values lie in pages of one pool; pages of ended requests stay as long as
/// there is room, for requests that begin alike. A request that finds no room waits, or the one that came last gives
/// its pages up and is computed again later. With temperature 0, or a seed, the answer of a request does not depend on
/// the others, on the CPU bit for bit. All members may be called from any thread.
class Engine {
 public:
  /// Throws UsageError for options that do not fit the model, std::bad_alloc or DeviceError if the cache does not fit.
  explicit Engine(std::shared_ptr<LanguageModel> model, const EngineOptions& options = {});
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  /// Cancels what runs and waits.
  ~Engine();

  const LanguageModel& model() const noexcept;
  std::size_t context() const noexcept;
  /// Throws UsageError for an empty prompt, ids outside the vocabulary, options that a Sampler refuses;
  /// ContextError if the prompt leaves no room for an answer; QueueFullError; UnsupportedError after `drain`.
  Generation submit(Request request);
  /// One vector for each text, pooled from what `hidden_states` gives. Texts share steps as far as prompts do, and
  /// need room as requests do, for which the ones that came last give up theirs. Throws as `submit`.
  std::vector<std::vector<float>> embed(std::span<const std::vector<TokenId>> texts, const EmbedOptions& options = {});
  std::vector<float> embed(std::span<const TokenId> ids);
  /// How well the texts of each pair go together, by a model with one score. The options but `progress` do not matter.
  /// Throws as `submit`, and UnsupportedError for other models.
  std::vector<float> score(std::span<const TextPair> pairs, const EmbedOptions& options = {});
  EngineState state() const;
  /// No new requests from now on; returns when the running and waiting ones have ended, false after `seconds`.
  bool drain(double seconds);
  /// Calls `change` between two steps: a metamorphosis. Forgets cached prefixes. Rethrows what it throws.
  void change_model(const std::function<void(LanguageModel&)>& change);

  /// The longest cached prefix of `ids` into a file, and back into the cache. Return its tokens. The file names the
  /// model as the one of a Sequence does. Throw IoError, FormatError.
  std::size_t save_prefix(std::span<const TokenId> ids, const std::string& path);
  std::vector<TokenId> load_prefix(const std::string& path);
  /// Drops the cached prefixes.
  void forget_prefixes();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// ---- texts and conversations

/// The ids of a prompt: special tokens are read as such, and BOS comes first where the tokenizer asks, but not twice.
std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, std::string_view text);
/// The ids of a text to embed: as those of a prompt, but EOS stays where the tokenizer adds it.
std::vector<TokenId> encode_whole(const Tokenizer& tokenizer, std::string_view text);
/// Two texts to score, each with its EOS.
TextPair encode_pair(const Tokenizer& tokenizer, std::string_view first, std::string_view second);
/// The ids of a conversation, by the chat template of the tokenizer. Throws UnsupportedError if it has none.
std::vector<TokenId> encode_messages(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                     const ChatTemplate::Variables& variables = {});

/// A conversation with an engine. When the context is full the oldest exchanges are left out of the prompt, the system
/// message never. A model without a template that can be used gets "User: …" and "Assistant: …". Not thread-safe.
class ChatSession {
 public:
  struct Options {
    GenerateOptions generate = {};
    std::string system = {};  ///< empty: none
  };
  /// The engine must outlive it. Throws UnsupportedError if the model has no tokenizer.
  ChatSession(Engine& engine, const Options& options);

  /// Why the chat template is not used; empty if it is.
  const std::string& note() const noexcept { return note_; }

  /// Adds a message and its answer. False if it was stopped before the first token: then, and if it throws, the
  /// conversation is unchanged. Throws as Engine::submit, Generation::next and ChatTemplate::render.
  bool say(std::string message, const std::function<bool(const EngineEvent&)>& on_event = {});
  /// Another answer to the last message. Returns and throws as `say`, and UsageError if there is none.
  bool again(const std::function<bool(const EngineEvent&)>& on_event = {});
  /// Forgets all messages but the system message.
  void clear();
  /// Empty: none.
  void set_system(std::string text);
  /// As JSON: {"messages": [{"role": …, "content": …}, …]}. Throw IoError, FormatError.
  void save(const std::string& path) const;
  void load(const std::string& path);

  const std::vector<ChatMessage>& messages() const noexcept { return messages_; }
  const RequestResult& last() const noexcept { return last_; }

 private:
  std::vector<TokenId> encode(std::span<const ChatMessage> messages, std::size_t first) const;
  std::vector<TokenId> prompt(std::span<const ChatMessage> messages);
  bool answer(std::vector<ChatMessage> messages, const std::function<bool(const EngineEvent&)>& on_event);

  Engine& engine_;
  Options options_;
  std::string note_;
  std::vector<ChatMessage> messages_;
  std::size_t first_ = 0;  // those before it, but the system message, are left out
  std::uint64_t answers_ = 0;
  RequestResult last_;
};

}  // namespace imago
