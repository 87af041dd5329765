#include "imago/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/model_runner.h"
#include "engine/scheduler.h"
#include "engine/stream.h"
#include "engine/task.h"
#include "lm/embedding.h"
#include "lm/language_model_state.h"
#include "lm/sequence_file.h"

namespace imago {

using engine::Clock;
using engine::Page;

namespace {

constexpr std::size_t kMostParallel = 256;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

engine::Limits limits_of(const engine::ModelRunner& runner, const EngineOptions& options) {
  std::size_t parallel = options.parallel != 0 ? options.parallel : std::min(kMostParallel, runner.pages());
  if (options.parallel == 0 && runner.states() != 0) parallel = std::min(parallel, runner.states() / 2);
  return {.context = runner.context(),
          .page_tokens = engine::kPageTokens,
          .pages = runner.pages(),
          .parallel = parallel,
          .states = runner.states(),
          .prompt_tokens = options.prompt_tokens.value_or(runner.usual_prompt_tokens()),
          .prefix_cache = options.prefix_cache};
}

}  // namespace

ContextError::ContextError(std::size_t prompt_tokens, std::size_t context)
    : Error(ErrorKind::usage,
            fmt::format("the prompt has {} tokens, which exceeds the available context size of {} tokens",
                        prompt_tokens, context)),
      prompt_tokens_(prompt_tokens),
      context_(context) {}

QueueFullError::QueueFullError(std::size_t queue)
    : Error(ErrorKind::unsupported, fmt::format("{} requests are waiting already; try again later", queue)) {}

// ---- a request under way

struct Generation::State : engine::Stream {
  using Stream::Stream;
};

Generation::Generation(std::shared_ptr<State> state) : state_(std::move(state)) {}
Generation::Generation(Generation&&) noexcept = default;
Generation& Generation::operator=(Generation&& other) noexcept {
  cancel();
  state_ = std::move(other.state_);
  return *this;
}
Generation::~Generation() { cancel(); }

std::optional<EngineEvent> Generation::next() { return state_->take(std::nullopt).first; }

std::pair<std::optional<EngineEvent>, bool> Generation::next_within(double seconds) {
  const auto patience = std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e6));
  return state_->take(Clock::now() + std::chrono::duration_cast<Clock::duration>(patience));
}

RequestResult Generation::finish(const std::function<bool(const EngineEvent&)>& on_event) {
  while (const std::optional<EngineEvent> event = next()) {
    if (!on_event || on_event(*event)) continue;
    state_->abandon();
    break;
  }
  return state_->read();
}

const RequestResult& Generation::result() const noexcept { return state_->read(); }

void Generation::cancel() noexcept {
  if (state_) state_->cancel();
}

// ---- the engine

struct Engine::State {
  State(std::shared_ptr<LanguageModel> loaded, const EngineOptions& given)
      : model(std::move(loaded)),
        options(given),
        runner(*model, given),
        limits(limits_of(runner, given)),
        scheduler(runner, limits,
                  [this] {
                    const std::scoped_lock lock(mutex);
                    take_snapshot();
                  }),
        bell(std::make_shared<engine::Bell>()) {}

  void run();
  /// Throws UsageError, ContextError.
  void check_prompt(std::span<const TokenId> ids);

  struct Text {
    std::span<const TokenId> ids;
    std::size_t second = backend::kNoSecondText;
  };
  /// `scores`: what a classifier says of each text instead of its embedding.
  std::vector<std::vector<float>> embed(std::span<const Text> texts, const EmbedOptions& wanted, bool scores);
  /// How many of these texts one step takes: one at least.
  std::size_t texts_of_step(std::span<const Text> texts) const;
  /// Runs the texts of one step, or one that needs several. REQUIRES: `embedding` is held.
  std::vector<std::vector<float>> pool(std::span<const Text> texts, Pooling pooling,
                                       const std::function<void()>& progress);

  /// Between two steps, on the thread of the caller.
  template <class Action>
  auto between_steps(Action&& action);
  /// What others may know of the scheduler. REQUIRES: the mutex is held, by whoever steps or is between steps.
  void take_snapshot();

  std::shared_ptr<LanguageModel> model;
  EngineOptions options;
  engine::ModelRunner runner;
  engine::Limits limits;
  engine::Scheduler scheduler;  // whoever steps, or is between steps
  std::shared_ptr<engine::Bell> bell;

  std::mutex mutex;
  std::condition_variable changed;
  bool stepping = false, exclusive = false;
  std::uint64_t rounds = 0;  // rounds of the thread so far
  bool asleep = false;       // it waits for the bell
  std::size_t exclusive_waiting = 0;
  bool stopping = false, draining = false;
  std::vector<std::unique_ptr<engine::Task>> inbox;
  struct Known {
    EngineState state;
    std::vector<Clock::time_point> submitted;  // when the running ones were submitted
  } known;
  std::uint64_t refused = 0;
  std::mutex embedding;  // one text at a time: the pages of all others can be had

  std::thread thread;  // last: it uses all of them
};

void Engine::State::take_snapshot() {
  EngineState& state = known.state;
  std::vector<EngineState::Running> running = std::move(state.running);
  running.clear();
  known.submitted.clear();
  for (const std::unique_ptr<engine::Task>& task : scheduler.running()) {
    running.push_back({.id = task->id,
                       .prompt_tokens = task->prompt,
                       .prompt_done = std::min(task->done, task->prompt),
                       .generated = task->answer.result().ids.size(),
                       .max_tokens = task->options.max_tokens});
    known.submitted.push_back(task->submitted);
  }
  state = scheduler.counts();
  state.running = std::move(running);
  state.waiting = scheduler.waiting();
  state.page_tokens = limits.page_tokens;
  state.pages = scheduler.pool().size();
  state.pages_used = scheduler.pool().held();
  state.pages_cached = scheduler.pool().cached();
}

void Engine::State::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return stopping || (!exclusive && exclusive_waiting == 0); });
    if (stopping) break;
    known.state.waiting += inbox.size();  // until the step is over
    known.state.requests += inbox.size();
    for (std::unique_ptr<engine::Task>& task : inbox) scheduler.add(std::move(task));
    inbox.clear();
    stepping = true;
    lock.unlock();
    const bool more = scheduler.step();
    lock.lock();
    stepping = false;
    ++rounds;
    asleep = !more;
    take_snapshot();
    changed.notify_all();
    if (more) continue;
    lock.unlock();
    bell->wait();
    lock.lock();
    asleep = false;
  }
  for (std::unique_ptr<engine::Task>& task : inbox) scheduler.add(std::move(task));
  lock.unlock();
  scheduler.cancel_all();
}

void Engine::State::check_prompt(std::span<const TokenId> ids) {
  if (ids.empty()) throw UsageError("there are no tokens to continue");
  LanguageModelAccess::loaded(*model).check_ids(ids);
  if (ids.size() <= limits.context) return;
  const std::scoped_lock lock(mutex);
  ++refused;
  throw ContextError(ids.size(), limits.context);
}

std::size_t Engine::State::texts_of_step(std::span<const Text> texts) const {
  std::size_t count = 0, tokens = 0, pages = 0;
  for (const Text& text : texts) {
    tokens += text.ids.size();
    pages += engine::pages_of(text.ids.size());
    if (count != 0 && (!runner.embeds_together() || tokens > limits.prompt_tokens || pages > limits.pages)) break;
    ++count;
  }
  return count;
}

template <class Action>
auto Engine::State::between_steps(Action&& action) {
  std::unique_lock lock(mutex);
  ++exclusive_waiting;
  changed.wait(lock, [&] { return !stepping && !exclusive; });
  --exclusive_waiting;
  exclusive = true;
  lock.unlock();
  struct Leave {
    State& state;
    ~Leave() {
      {
        const std::scoped_lock again(state.mutex);
        state.exclusive = false;
        state.take_snapshot();
      }
      state.changed.notify_all();
    }
  } const leave{*this};
  return action();
}

std::vector<std::vector<float>> Engine::State::embed(std::span<const Text> texts, const EmbedOptions& wanted,
                                                     bool scores) {
  for (const Text& text : texts) check_prompt(text.ids);
  const Pooling pooling = wanted.pooling.value_or(model->pooling());
  const std::scoped_lock one_at_a_time(embedding);
  std::vector<std::vector<float>> vectors;
  while (vectors.size() < texts.size()) {
    const std::span<const Text> rest = texts.subspan(vectors.size());
    const std::span<const Text> together = rest.first(texts_of_step(rest));
    std::vector<std::vector<float>> more = pool(together, pooling, [&] {
      if (wanted.progress) wanted.progress(vectors.size(), texts.size());
    });
    if (runner.has_head(scores)) {
      between_steps([&] {
        for (std::vector<float>& one : more) one = runner.apply_head(one);
      });
    }
    std::ranges::move(more, std::back_inserter(vectors));
  }
  return vectors;
}

std::vector<std::vector<float>> Engine::State::pool(std::span<const Text> texts, Pooling pooling,
                                                    const std::function<void()>& progress) {
  std::vector<TokenId> ids;
  std::size_t page_count = 0;
  for (const Text& text : texts) {
    ids.insert(ids.end(), text.ids.begin(), text.ids.end());
    page_count += engine::pages_of(text.ids.size());
  }
  const std::vector<Page> pages = between_steps([&] { return scheduler.claim_pages(page_count); });
  struct Drop {
    State& state;
    std::span<const Page> pages;
    ~Drop() {
      state.between_steps([&] { state.scheduler.drop_pages(pages); });
      state.bell->ring();  // somebody may have waited for them
    }
  } const drop{*this, pages};

  const std::size_t width = runner.width();
  std::vector<lm::Pooler> poolers(texts.size(), lm::Pooler(pooling, width));
  // Only a text that is alone may be longer than a step; an encoder sees all of it at once.
  const std::size_t most = runner.sees_all() ? ids.size() : limits.prompt_tokens;
  for (std::size_t done = 0; done < ids.size();) {
    progress();
    const std::size_t tokens = std::min(most, ids.size() - done);
    std::vector<engine::TextPiece> pieces;
    std::span<const Page> left = pages;
    for (const Text& text : texts) {
      const std::size_t own = engine::pages_of(text.ids.size());
      const std::size_t count = texts.size() == 1 ? tokens : text.ids.size();
      pieces.push_back({.pages = left.first(own), .past = done, .tokens = count, .second = text.second});
      left = left.subspan(own);
    }
    between_steps([&] {
      const Clock::time_point start = Clock::now();
      std::span<const float> rows = runner.hidden(std::span(ids).subspan(done, tokens), pieces);
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        poolers[i].add(rows.first(pieces[i].tokens * width));
        rows = rows.subspan(pieces[i].tokens * width);
      }
      scheduler.count_step(tokens, seconds_since(start));
    });
    done += tokens;
    // Requests get a step between two pieces.
    std::unique_lock lock(mutex);
    changed.wait(lock, [&, before = rounds] { return rounds != before || asleep; });
  }
  std::vector<std::vector<float>> vectors;
  for (const lm::Pooler& pooler : poolers) vectors.push_back(pooler.result());
  return vectors;
}

Engine::Engine(std::shared_ptr<LanguageModel> model, const EngineOptions& options)
    : state_(std::make_unique<State>(std::move(model), options)) {
  state_->take_snapshot();
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

Engine::~Engine() {
  {
    const std::scoped_lock lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  state_->bell->ring();
  state_->thread.join();
}

const LanguageModel& Engine::model() const noexcept { return *state_->model; }
std::size_t Engine::context() const noexcept { return state_->limits.context; }

Generation Engine::submit(Request request) {
  State& state = *state_;
  LanguageModelAccess::loaded(*state.model).require_logits();
  state.check_prompt(request.prompt);
  for (const auto& [id, bias] : request.generate.sampler.bias) {
    if (id >= 0 && static_cast<std::size_t>(id) < state.model->vocabulary()) continue;
    throw UsageError(fmt::format("bias: token {} is outside the vocabulary of {}", id, state.model->vocabulary()));
  }
  auto stream = std::make_shared<Generation::State>(state.bell);
  auto task = std::make_unique<engine::Task>(std::move(request), state.model->tokenizer(), stream);
  {
    const std::scoped_lock lock(state.mutex);
    if (state.draining) throw UnsupportedError("no more requests are taken: the engine ends");
    const EngineState& known = state.known.state;
    const std::size_t accepted = known.running.size() + known.waiting + state.inbox.size();
    if (accepted >= state.limits.parallel + state.options.queue) {
      ++state.refused;
      throw QueueFullError(state.options.queue);
    }
    state.inbox.push_back(std::move(task));
  }
  state.bell->ring();
  return Generation(std::move(stream));
}

std::vector<std::vector<float>> Engine::embed(std::span<const std::vector<TokenId>> texts,
                                              const EmbedOptions& options) {
  std::vector<State::Text> made;
  for (const std::vector<TokenId>& ids : texts) made.push_back({ids});
  std::vector<std::vector<float>> vectors = state_->embed(made, options, false);
  if (options.normalize) {
    for (std::vector<float>& vector : vectors) lm::normalize(vector);
  }
  return vectors;
}

std::vector<float> Engine::embed(std::span<const TokenId> ids) {
  const std::vector<TokenId> text(ids.begin(), ids.end());
  return std::move(embed({&text, 1}).front());
}

std::vector<float> Engine::score(std::span<const TextPair> pairs, const EmbedOptions& options) {
  LanguageModelAccess::loaded(*state_->model).require_score();
  std::vector<State::Text> texts;
  for (const TextPair& pair : pairs) texts.push_back({pair.ids, pair.second});
  std::vector<float> scores;
  for (const std::vector<float>& one : state_->embed(texts, {.progress = options.progress}, true)) {
    scores.push_back(one.front());
  }
  return scores;
}

EngineState Engine::state() const {
  const std::scoped_lock lock(state_->mutex);
  EngineState made = state_->known.state;
  for (std::size_t i = 0; i < made.running.size(); ++i) {
    made.running[i].seconds = seconds_since(state_->known.submitted[i]);
  }
  made.waiting += state_->inbox.size();
  made.requests += state_->inbox.size();
  made.refused = state_->refused;
  return made;
}

bool Engine::drain(double seconds) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  state.draining = true;
  const auto patience = std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e6));
  return state.changed.wait_for(lock, patience, [&] {
    return !state.stepping && state.inbox.empty() && state.known.state.waiting == 0 &&
           state.known.state.running.empty();
  });
}

void Engine::change_model(const std::function<void(LanguageModel&)>& change) {
  state_->between_steps([&] {
    // Even if it fails: it may have changed something before.
    struct Forget {
      engine::Scheduler& scheduler;
      ~Forget() { scheduler.forget(true); }
    } const forget{state_->scheduler};
    change(*state_->model);
  });
}

std::size_t Engine::save_prefix(std::span<const TokenId> ids, const std::string& path) {
  return state_->between_steps([&] {
    engine::CachedPrefix found = state_->scheduler.find(ids);
    if (found.more != 0) found.pages.push_back(found.partial);
    const std::size_t tokens = found.tokens + found.more;
    lm::save_sequence(path, state_->runner.owner(), ids.first(tokens), state_->runner.cache(), found.pages,
                      found.state.value_or(0));
    return tokens;
  });
}

std::vector<TokenId> Engine::load_prefix(const std::string& path) {
  return state_->between_steps([&] {
    engine::Scheduler& scheduler = state_->scheduler;
    lm::KvCache& cache = state_->runner.cache();
    // As many pages as a file of this size can fill.
    std::error_code unreadable;
    const std::uintmax_t bytes = std::filesystem::file_size(path, unreadable);
    const std::size_t most = unreadable ? 0 : bytes / (sizeof(TokenId) + cache.token_bytes());
    const std::size_t room = std::min(most, state_->limits.context);
    const std::vector<Page> pages = scheduler.take_pages((room + engine::kPageTokens - 1) / engine::kPageTokens);
    const std::optional<Page> slot = scheduler.take_state();
    struct Drop {
      engine::Scheduler& scheduler;
      std::span<const Page> pages;
      std::optional<Page> slot;
      ~Drop() {
        scheduler.drop_pages(pages);
        scheduler.drop_state(slot);
      }
    } const drop{scheduler, pages, slot};
    std::vector<TokenId> ids = lm::restore_sequence(path, state_->runner.owner(), cache, pages, slot.value_or(0));
    scheduler.keep(ids, pages, slot);
    return ids;
  });
}

void Engine::forget_prefixes() {
  state_->between_steps([&] { state_->scheduler.forget(false); });
}

}  // namespace imago
