#include "engine/scheduler.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <utility>

#include "base/line_vector.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "lm/language_model_state.h"

namespace imago::engine {

namespace {

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

bool needs_logits(const Task& task) {
  return task.options.log_probabilities > 0 || SamplerAccess::needs_logits(task.sampler);
}

}  // namespace

Task::Task(Request request, const Tokenizer* tokenizer, std::shared_ptr<Stream> to)
    : options(std::move(request.generate)),
      reuse_prefix(request.reuse_prefix),
      stream(std::move(to)),
      sampler(options.sampler),
      answer(tokenizer, options),
      tokens(std::move(request.prompt)),
      prompt(tokens.size()) {}

Scheduler::Scheduler(StepRunner& runner, const Limits& limits, std::function<void()> before_ends)
    : runner_(runner),
      limits_(limits),
      before_ends_(std::move(before_ends)),
      pool_(limits.pages),
      states_(limits.states),
      tree_(pool_, limits.page_tokens, limits.states != 0 ? &states_ : nullptr) {
  assert(limits.pages * limits.page_tokens >= limits.context);
  assert(limits.states == 0 || limits.states > limits.parallel);
}

void Scheduler::add(std::unique_ptr<Task> task) {
  task->id = counts_.requests++;
  waiting_.push_back(std::move(task));
}

bool Scheduler::step() {
  end_cancelled();
  admit();
  tell_ended();
  plan();
  if (parts_.empty()) return false;
  const Clock::time_point start = Clock::now();
  compute();
  const bool with_prompts = std::ranges::any_of(segments_, [](const StepSegment& part) { return !part.answer; });
  (with_prompts ? counts_.prompt_seconds : counts_.generate_seconds) += seconds_between(start, Clock::now());
  counts_.last_batch = ids_.size();
  ++counts_.steps;
  remove_ended();
  tell_ended();
  return true;
}

void Scheduler::end_cancelled() {
  for (const std::unique_ptr<Task>& task : running_) {
    if (task->stream->is_cancelled()) end(*task);
  }
  remove_ended();
  std::erase_if(waiting_, [&](const std::unique_ptr<Task>& task) {
    if (!task->stream->is_cancelled()) return false;
    end(*task);
    return true;
  });
}

void Scheduler::cancel_all() {
  for (const std::unique_ptr<Task>& task : running_) end(*task);
  for (const std::unique_ptr<Task>& task : waiting_) end(*task);
  remove_ended();
  waiting_.clear();
  tell_ended();
}

// ---- who runs

void Scheduler::admit() {
  // What a running request is about to compute is not computed twice: those that begin alike wait for it.
  const auto is_under_way = [&](const Task& task) {
    if (!limits_.prefix_cache || !task.reuse_prefix) return false;
    return std::ranges::any_of(running_, [&](const std::unique_ptr<Task>& other) {
      if (!other->in_prompt() || !other->current) return false;
      const std::size_t common = common_tokens(std::span(other->tokens).first(other->prompt), task.tokens);
      return common >= limits_.page_tokens && common > find(task.tokens).tokens;
    });
  };
  for (std::size_t i = 0; i < waiting_.size() && running_.size() < limits_.parallel;) {
    Task& task = *waiting_[i];
    if (is_under_way(task)) {
      ++i;
      continue;
    }
    try {
      if (!start(task)) return;
    } catch (...) {
      end(task, std::current_exception());
    }
    std::unique_ptr<Task> started = std::move(waiting_[i]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    if (started->answer.end()) continue;
    const auto after = std::ranges::upper_bound(running_, started->id, {}, [](const auto& other) { return other->id; });
    running_.insert(after, std::move(started));
  }
}

/// Gives it pages for all its tokens. False if there is no room now.
bool Scheduler::start(Task& task) {
  // One more page is left for each of those that run, or they would soon take back what it gets.
  if (!find_room(task, true) && !find_room(task, false)) return false;
  if (task.admitted == Clock::time_point()) {
    task.admitted = Clock::now();
    task.cached = task.done;
    counts_.cached_tokens += task.cached;
  }
  task.current = true;
  return true;
}

bool Scheduler::find_room(Task& task, bool use_partial) {
  CachedPrefix found;
  if (limits_.prefix_cache && task.reuse_prefix) {
    found = tree_.find(std::span(task.tokens).first(task.tokens.size() - 1));  // one is computed, for its logits
  }
  if (!use_partial) found.more = 0;
  const std::size_t needed = (task.tokens.size() + limits_.page_tokens - 1) / limits_.page_tokens;
  const auto idle = [&](Page page) { return pool_.is_held(page) ? 0u : 1u; };
  std::size_t taken = needed - found.pages.size() + running_.size();
  for (const Page page : found.pages) taken += idle(page);
  if (found.more != 0) taken += idle(found.partial);
  if (taken > pool_.free() + pool_.cached()) return false;

  task.pages = std::move(found.pages);
  for (const Page page : task.pages) pool_.hold(page);
  if (found.more != 0) pool_.hold(found.partial);
  const std::vector<Page> more = take_pages(needed - task.pages.size());
  const bool fits = task.pages.size() + more.size() == needed;
  task.done = task.pages.size() * limits_.page_tokens;
  task.pages.insert(task.pages.end(), more.begin(), more.end());
  if (fits && found.more != 0) {
    runner_.copy(found.partial, more.front(), found.more);
    task.done += found.more;
  }
  if (found.more != 0) pool_.drop(found.partial);
  if (fits && limits_.states != 0) {
    if (found.state) states_.hold(*found.state);
    task.state = take_state();
    if (found.state) {
      runner_.copy_state(*found.state, *task.state);
      states_.drop(*found.state);
    }
    task.fork = found.alike;
  }
  if (!fits) release(task);
  return fits;
}

std::optional<Page> Scheduler::take_state() {
  for (;;) {
    if (const std::optional<Page> slot = states_.take()) return slot;
    if (!tree_.drop_state()) return std::nullopt;
  }
}

void Scheduler::drop_state(std::optional<Page> slot) {
  if (slot) states_.drop(*slot);
}

void Scheduler::keep(std::span<const TokenId> tokens, std::span<const Page> pages, std::optional<Page> state) {
  tree_.insert(tokens, pages);
  if (state) tree_.keep_state(tokens, *state);
}

std::vector<Page> Scheduler::take_pages(std::size_t count) {
  std::vector<Page> taken;
  while (taken.size() < count) {
    if (const std::optional<Page> page = pool_.take()) {
      taken.push_back(*page);
    } else if (!tree_.drop_one()) {
      drop_pages(taken);
      return {};
    }
  }
  return taken;
}

std::vector<Page> Scheduler::claim_pages(std::size_t count) {
  std::vector<Page> taken = take_pages(count);
  while (taken.empty() && !running_.empty()) {
    preempt(running_.size() - 1);
    taken = take_pages(count);
  }
  return taken;
}

void Scheduler::drop_pages(std::span<const Page> pages) {
  for (const Page page : pages) pool_.drop(page);
}

/// Room for its next token. False if it has lost its own pages instead.
bool Scheduler::grow(Task& task) {
  while (task.pages.size() * limits_.page_tokens <= task.done) {
    if (const std::optional<Page> page = pool_.take()) {
      task.pages.push_back(*page);
    } else if (!tree_.drop_one()) {
      const bool own = running_.back().get() == &task;
      preempt(running_.size() - 1);
      if (own) return false;
    }
  }
  return true;
}

void Scheduler::preempt(std::size_t index) {
  std::unique_ptr<Task> task = std::move(running_[index]);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  publish(*task);
  release(*task);
  ++task->preemptions;
  ++counts_.preemptions;
  const auto after = std::ranges::upper_bound(waiting_, task->id, {}, [](const auto& other) { return other->id; });
  waiting_.insert(after, std::move(task));
}

// ---- a step

void Scheduler::plan() {
  parts_.clear();
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Task& task = *running_[i];
    if (task.is_single() && !task.stream->is_full() && grow(task)) parts_.push_back({&task, 1});
  }
  std::size_t left = limits_.prompt_tokens;
  for (const std::unique_ptr<Task>& task : running_) {
    if (left == 0) break;
    if (task->is_single() || task->stream->is_full()) continue;
    // Generated tokens that are computed again go apart from the prompt, as they did before.
    std::size_t end = task->in_prompt() ? task->prompt : task->tokens.size();
    if (task->done < task->fork) end = std::min(end, task->fork);
    const std::size_t count = std::min(left, end - task->done);
    parts_.push_back({task.get(), count});
    left -= count;
  }
  std::stable_partition(parts_.begin(), parts_.end(), [](const Part& part) { return !part.task->in_prompt(); });
  if (limits_.states != 0 && limits_.prefix_cache) plan_kept_states();
}

/// States are kept at the end of the last page that each part fills.
void Scheduler::plan_kept_states() {
  for (Part& part : parts_) {
    const std::size_t end = (part.task->done + part.tokens) / limits_.page_tokens * limits_.page_tokens;
    if (end <= part.task->done || !part.task->current) continue;
    part.kept = take_state();
    if (part.kept) part.kept_tokens = end - part.task->done;
  }
}

/// After a step: those that were kept go into the tree.
void Scheduler::keep_states() {
  for (Part& part : parts_) {
    if (!part.kept) continue;
    const std::size_t tokens = part.task->done + part.kept_tokens;
    keep(std::span(part.task->tokens).first(tokens), std::span(part.task->pages).first(tokens / limits_.page_tokens),
         part.kept);
    drop_state(part.kept);
  }
}

/// The arguments of a step that computes these parts.
void Scheduler::lay_out() {
  segments_.clear();
  ids_.clear();
  rows_.clear();
  row_tasks_.clear();
  for (const Part& part : parts_) {
    Task& task = *part.task;
    const std::span<const TokenId> ids = std::span(task.tokens).subspan(task.done, part.tokens);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    segments_.push_back({.pages = task.pages,
                         .past = task.done,
                         .tokens = part.tokens,
                         .answer = !task.in_prompt(),
                         .state = task.state.value_or(0),
                         .kept_tokens = part.kept_tokens,
                         .kept_state = part.kept.value_or(0)});
    if (part.tokens != task.remaining() || task.answer.enough()) continue;
    rows_.push_back(static_cast<std::uint32_t>(ids_.size() - 1));
    row_tasks_.push_back(&task);
  }
}

void Scheduler::compute() {
  lay_out();
  const bool choose =
      runner_.chooses() && std::ranges::none_of(row_tasks_, [](const Task* task) { return needs_logits(*task); });
  Step step{.ids = ids_, .segments = segments_, .rows = rows_};
  choices_.clear();
  chosen_.assign(rows_.size(), -1);
  if (choose) {
    for (Task* const task : row_tasks_) choices_.push_back(SamplerAccess::next_choice(task->sampler));
    step.choices = choices_;
    step.chosen = chosen_;
  } else {
    step.logits = sized(logits_, rows_.size() * runner_.vocabulary());
  }
  try {
    runner_.run(step);
  } catch (...) {
    for (const Part& part : parts_) {
      drop_state(part.kept);
      end(*part.task, std::current_exception());
    }
    return;
  }
  keep_states();

  const Clock::time_point now = Clock::now();
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    Task& task = *parts_[i].task;
    task.done += segments_[i].tokens;
    if (segments_[i].answer) continue;
    counts_.prompt_tokens += segments_[i].tokens;
    if (task.answered != Clock::time_point()) continue;  // only again, after it lost its pages
    task.stream->put({.prompt_done = task.done, .prompt_total = task.prompt, .prompt_cached = task.cached}, false);
    told_.push_back(task.stream);
    if (task.in_prompt()) continue;
    task.answered = now;
    task.answer.result().prompt_tokens = task.prompt - task.cached;
    lm::tell_prompt(task.sampler, task.tokens, task.options.sampler.penalty_tokens);
    publish(task);
  }

  errors_.assign(rows_.size(), nullptr);
  // Sampling on the host takes far longer than what follows a choice that the device has made.
  const std::size_t rows_per_part = choose ? std::max<std::size_t>(1, rows_.size()) : 1;
  parallel_for(rows_.size(), rows_per_part, [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) {
      try {
        follow(row, *row_tasks_[row]);
      } catch (...) {
        errors_[row] = std::current_exception();
      }
    }
  });
  for (const Task* const task : row_tasks_) told_.push_back(task->stream);
  waker_.wake(told_);
  counts_.generated_tokens += rows_.size();
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    Task& task = *row_tasks_[row];
    if (errors_[row] || task.answer.end()) end(task, errors_[row]);
  }
  for (const Part& part : parts_) {
    Task& task = *part.task;
    if (!task.ended && task.answer.enough() && task.remaining() == 0) end(task);  // no answer was asked for
  }
}

/// The token that follows a row.
void Scheduler::follow(std::size_t row, Task& task) {
  std::span<const float> logits;
  TokenId id = chosen_[row];
  if (choices_.empty()) {
    logits = std::span<const float>(logits_).subspan(row * runner_.vocabulary(), runner_.vocabulary());
    id = task.sampler.sample(logits);
  } else if (id < 0) {
    throw UsageError("no token can follow: all logits are NaN or -infinity");
  }
  const std::size_t before = task.answer.result().ids.size();
  std::optional<GeneratedToken> token = task.answer.take(id, task.done == limits_.context, logits);
  if (!task.answer.end()) task.tokens.push_back(id);
  if (!token) return;
  task.stream->put({.token = std::move(token),
                    .prompt_done = task.prompt,
                    .prompt_total = task.prompt,
                    .prompt_cached = task.cached},
                   task.answer.result().ids.size() != before);
}

// ---- what remains

void Scheduler::publish(const Task& task) {
  if (!limits_.prefix_cache || !task.current || task.done == 0) return;
  const std::size_t pages = (task.done + limits_.page_tokens - 1) / limits_.page_tokens;
  tree_.insert(std::span(task.tokens).first(task.done), std::span(task.pages).first(pages));
}

void Scheduler::release(Task& task) {
  drop_pages(task.pages);
  task.pages.clear();
  drop_state(std::exchange(task.state, std::nullopt));
  task.done = task.fork = 0;
}

void Scheduler::end(Task& task, std::exception_ptr error) {
  const Clock::time_point now = Clock::now();
  if (!error) publish(task);
  release(task);
  if (!task.answer.end() && !task.answer.enough()) {
    task.answer.cancel();
    if (!error) ++counts_.cancelled;
  }
  RequestResult whole{std::move(task.answer.result())};
  const auto seconds = [&](Clock::time_point from, Clock::time_point to) {
    if (from == Clock::time_point()) return 0.0;
    return seconds_between(from, to == Clock::time_point() ? now : to);
  };
  whole.waiting_seconds = seconds(task.submitted, task.admitted);
  whole.prompt_seconds = seconds(task.admitted, task.answered);
  whole.generate_seconds = seconds(task.answered, {});
  whole.cached_tokens = task.cached;
  whole.preemptions = task.preemptions;
  ended_.push_back({task.stream, std::move(whole), std::move(error)});
  task.ended = true;
}

void Scheduler::remove_ended() {
  std::erase_if(running_, [](const std::unique_ptr<Task>& task) { return task->ended; });
}

void Scheduler::tell_ended() {
  if (ended_.empty()) return;
  if (before_ends_) before_ends_();
  for (Ended& ended : ended_) ended.stream->end(std::move(ended.result), std::move(ended.error));
  ended_.clear();
}

void Scheduler::count_step(std::size_t tokens, double seconds) noexcept {
  ++counts_.steps;
  counts_.prompt_tokens += tokens;
  counts_.prompt_seconds += seconds;
}

void Scheduler::forget(bool model_changed) {
  tree_.clear();
  if (!model_changed) return;
  for (const std::unique_ptr<Task>& task : running_) task->current = false;
}

}  // namespace imago::engine
