#pragma once

// Which tokens of which requests a step computes, and in which pages.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/page_pool.h"
#include "engine/prefix_tree.h"
#include "engine/step_runner.h"
#include "engine/task.h"
#include "imago/engine.h"

namespace imago::engine {

struct Limits {
  std::size_t context = 0;        ///< tokens of a request
  std::size_t page_tokens = 64;   ///< tokens in a page
  std::size_t pages = 0;          ///< at least one request of `context` tokens has room
  std::size_t parallel = 1;       ///< requests that run
  std::size_t states = 0;         ///< slots of states, more than run; 0: the model has none
  std::size_t prompt_tokens = 0;  ///< most prompt tokens of a step
  bool prefix_cache = true;
};

/// Runs requests, step by step. Each step takes one token of every request that is past its prompt, and prompt tokens
/// up to a limit, those of earlier requests first. Requests start in the order in which they come. One that finds no
/// page for its next token takes those of the one that came last, perhaps its own; what loses its pages starts anew
/// with the tokens it has. Not thread-safe.
class Scheduler {
 public:
  /// `before_ends` is called whenever requests have ended, before their readers learn of it.
  Scheduler(StepRunner& runner, const Limits& limits, std::function<void()> before_ends = {});

  void add(std::unique_ptr<Task> task);
  /// One step. False if there was nothing to do: all requests have ended or wait for their readers.
  bool step();
  /// Cancels all.
  void cancel_all();

  /// The longest cached prefix of these tokens.
  CachedPrefix find(std::span<const TokenId> tokens) { return tree_.find(tokens); }
  /// Pages that nobody uses, at the expense of cached ones; empty if there are not so many. The caller drops them.
  std::vector<Page> take_pages(std::size_t count);
  /// The same, at the expense of requests too.
  std::vector<Page> claim_pages(std::size_t count);
  void drop_pages(std::span<const Page> pages);
  /// A slot of states that nobody uses, at the expense of a cached one; none if all are in use. The caller drops it.
  std::optional<Page> take_state();
  void drop_state(std::optional<Page> slot);
  /// Caches a text whose pages the caller has filled and still holds.
  void keep(std::span<const TokenId> tokens, std::span<const Page> pages, std::optional<Page> state);
  /// Counts tokens that the caller has run as a step of a prompt.
  void count_step(std::size_t tokens, double seconds) noexcept;
  /// Drops what is cached. `model_changed`: what runs is not cached either.
  void forget(bool model_changed);

  std::size_t waiting() const noexcept { return waiting_.size(); }
  std::span<const std::unique_ptr<Task>> running() const noexcept { return running_; }
  const PagePool& pool() const noexcept { return pool_; }
  /// Counts so far; its `running` and `waiting` are not filled.
  const EngineState& counts() const noexcept { return counts_; }

 private:
  /// The next tokens of a task.
  struct Part {
    Task* task;
    std::size_t tokens;
    std::size_t kept_tokens = 0;  ///< after so many of them states are kept
    std::optional<Page> kept = {};
  };

  void end_cancelled();
  void admit();
  bool start(Task& task);
  bool find_room(Task& task, bool use_partial);
  bool grow(Task& task);
  void preempt(std::size_t index);
  void plan();
  void plan_kept_states();
  void keep_states();
  void lay_out();
  void compute();
  void follow(std::size_t row, Task& task);
  void publish(const Task& task);
  void release(Task& task);
  void end(Task& task, std::exception_ptr error = nullptr);
  void remove_ended();
  void tell_ended();

  /// What is left of a request: what its reader gets.
  struct Ended {
    std::shared_ptr<Stream> stream;
    RequestResult result;
    std::exception_ptr error;
  };

  StepRunner& runner_;
  const Limits limits_;
  const std::function<void()> before_ends_;
  PagePool pool_, states_;
  PrefixTree tree_;
  std::deque<std::unique_ptr<Task>> waiting_;
  std::vector<std::unique_ptr<Task>> running_;  // in the order of arrival
  std::vector<Ended> ended_;
  EngineState counts_;
  Waker waker_;

  // Lists of the current step, kept for their memory.
  std::vector<Part> parts_;
  std::vector<StepSegment> segments_;
  std::vector<TokenId> ids_, chosen_;
  std::vector<std::uint32_t> rows_;
  std::vector<Task*> row_tasks_;
  std::vector<std::shared_ptr<Stream>> told_;  // what readers have not been woken for
  std::vector<backend::TokenChoice> choices_;
  std::vector<float> logits_;
  std::vector<std::exception_ptr> errors_;
};

}  // namespace imago::engine
