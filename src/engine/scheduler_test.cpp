// Who runs when and in which pages, with a model whose every token depends on all tokens that its pages say came
// before.

#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "imago/error.h"

namespace imago::engine {
namespace {

constexpr std::size_t kPage = 4, kVocabulary = 50;

/// Keeps the ids themselves in its cache. The next token is a hash of all ids before it: of those in the pages, or with
/// states of those in the state.
class FakeRunner final : public StepRunner {
 public:
  explicit FakeRunner(const Limits& limits) : cells_(limits.pages * kPage, -1), states_(limits.states) {}

  std::size_t vocabulary() const override { return kVocabulary; }
  bool chooses() const override { return false; }

  static TokenId next(std::span<const TokenId> before) {
    std::uint64_t hash = 7;
    for (const TokenId id : before) hash = (hash ^ static_cast<std::uint64_t>(id + 1)) * 0x9e3779b97f4a7c15u;
    return static_cast<TokenId>((hash >> 33) % kVocabulary);
  }

  void run(const Step& step) override {
    ++steps;
    if (fails_at == steps) throw DeviceError("the device is gone");
    widest = std::max(widest, step.segments.size());
    std::size_t first = 0, row = 0;
    for (const StepSegment& segment : step.segments) {
      (segment.answer ? answer_tokens : prompt_tokens) += segment.tokens;
      for (std::size_t i = 0; i < segment.tokens; ++i) {
        cell(segment.pages, segment.past + i) = step.ids[first + i];
        if (!states_.empty()) pass_state(segment, i, step.ids[first + i]);
        if (row == step.rows.size() || step.rows[row] != first + i) continue;
        std::vector<TokenId> before;
        for (std::size_t u = 0; u <= segment.past + i; ++u) before.push_back(cell(segment.pages, u));
        if (!states_.empty()) {
          EXPECT_EQ(states_[segment.state], before);
        }
        const std::span<float> logits = step.logits.subspan(row++ * kVocabulary, kVocabulary);
        std::ranges::fill(logits, 0.0f);
        logits[static_cast<std::size_t>(next(before))] = 1;
      }
      first += segment.tokens;
    }
    EXPECT_EQ(row, step.rows.size());
    EXPECT_EQ(first, step.ids.size());
  }
  void copy(Page from, Page to, std::size_t tokens) override {
    std::copy_n(cells_.begin() + from * kPage, tokens, cells_.begin() + to * kPage);
  }

  void copy_state(Page from, Page to) override { states_.at(to) = states_.at(from); }

  std::size_t steps = 0, fails_at = 0, widest = 0, prompt_tokens = 0, answer_tokens = 0;

 private:
  void pass_state(const StepSegment& segment, std::size_t i, TokenId id) {
    std::vector<TokenId>& state = states_.at(segment.state);
    if (segment.past + i == 0) state.clear();
    EXPECT_EQ(state.size(), segment.past + i);
    state.push_back(id);
    if (i + 1 == segment.kept_tokens) states_.at(segment.kept_state) = state;
  }
  TokenId& cell(std::span<const Page> pages, std::size_t at) { return cells_[pages[at / kPage] * kPage + at % kPage]; }
  std::vector<TokenId> cells_;
  std::vector<std::vector<TokenId>> states_;
};

std::vector<TokenId> prompt_of(std::size_t size, TokenId seed = 0) {
  std::vector<TokenId> made;
  for (std::size_t i = 0; i < size; ++i)
    made.push_back(static_cast<TokenId>((seed * 7 + static_cast<TokenId>(i)) % 50));
  return made;
}

std::vector<TokenId> continuation(std::vector<TokenId> tokens, std::size_t count) {
  std::vector<TokenId> made;
  for (std::size_t i = 0; i < count; ++i) {
    made.push_back(FakeRunner::next(tokens));
    tokens.push_back(made.back());
  }
  return made;
}

struct Bench {
  explicit Bench(Limits given) : limits(given), runner(given), scheduler(runner, given) {}

  std::shared_ptr<Stream> submit(std::vector<TokenId> prompt, std::size_t tokens,
                                 const std::function<void(Request&)>& with = {}) {
    Request request{.prompt = std::move(prompt)};
    request.generate.max_tokens = tokens;
    request.generate.sampler.temperature = 0;
    if (with) with(request);
    auto stream = std::make_shared<Stream>(std::make_shared<Bell>());
    scheduler.add(std::make_unique<Task>(std::move(request), nullptr, stream));
    return stream;
  }
  void run() {
    while (scheduler.step()) {
    }
  }
  static RequestResult result(Stream& stream) {
    while (stream.take(std::nullopt).first) {
    }
    return stream.read();
  }
  static bool has_ended(Stream& stream) {
    for (;;) {
      const auto [event, more] = stream.take(Clock::now());
      if (!event) return !more;
    }
  }

  Limits limits;
  FakeRunner runner;
  Scheduler scheduler;
};

Limits limits(std::size_t pages, std::size_t parallel = 8, std::size_t context = 40) {
  return {.context = context, .page_tokens = kPage, .pages = pages, .parallel = parallel, .prompt_tokens = 16};
}

TEST(Scheduler, EveryRequestGetsWhatItGetsAlone) {
  Bench bench(limits(100));
  std::vector<std::shared_ptr<Stream>> streams;
  for (TokenId i = 0; i < 8; ++i)
    streams.push_back(bench.submit(prompt_of(3 + 3 * static_cast<std::size_t>(i), i), 10));
  bench.run();
  for (TokenId i = 0; i < 8; ++i) {
    const RequestResult result = Bench::result(*streams[static_cast<std::size_t>(i)]);
    EXPECT_EQ(result.ids, continuation(prompt_of(3 + 3 * static_cast<std::size_t>(i), i), 10)) << i;
    EXPECT_EQ(result.end, EndReason::max_tokens);
    EXPECT_EQ(result.prompt_tokens + result.cached_tokens, 3 + 3 * static_cast<std::size_t>(i));
  }
  EXPECT_EQ(bench.runner.widest, 8u);
  EXPECT_EQ(bench.scheduler.pool().held(), 0u);
}

Limits with_states(Limits limits, std::size_t states) {
  limits.states = states;
  return limits;
}

TEST(Scheduler, PrefixesOfModelsWithStatesEndWhereStatesWereKept) {
  Bench bench(with_states(limits(100), 20));
  const auto first = bench.submit(prompt_of(15), 10);
  bench.run();
  EXPECT_EQ(Bench::result(*first).ids, continuation(prompt_of(15), 10));

  // The last page that the prompt filled; then the last that the answer did.
  const auto again = bench.submit(prompt_of(15), 10);
  bench.run();
  EXPECT_EQ(Bench::result(*again).cached_tokens, 12u);
  EXPECT_EQ(Bench::result(*again).ids, continuation(prompt_of(15), 10));
  std::vector<TokenId> longer = prompt_of(15);
  for (const TokenId id : continuation(prompt_of(15), 10)) longer.push_back(id);
  const auto next = bench.submit(longer, 4);
  bench.run();
  EXPECT_EQ(Bench::result(*next).cached_tokens, 24u);
  EXPECT_EQ(Bench::result(*next).ids, continuation(longer, 4));
}

TEST(Scheduler, StatesAreKeptWhereTextsBeginToDiffer) {
  Bench bench(with_states(limits(100), 20));
  const auto fork_at_9 = [&](TokenId seed) {
    std::vector<TokenId> tokens = prompt_of(9);
    for (const TokenId id : prompt_of(6, seed)) tokens.push_back(id);
    const auto stream = bench.submit(tokens, 3);
    bench.run();
    EXPECT_EQ(Bench::result(*stream).ids, continuation(tokens, 3));
    return Bench::result(*stream).cached_tokens;
  };
  EXPECT_EQ(fork_at_9(1), 0u);
  EXPECT_EQ(fork_at_9(2), 0u) << "the first had no reason to keep them there";
  EXPECT_EQ(fork_at_9(3), 8u);
}

TEST(Scheduler, RequestsWithStatesGetWhatTheyGetAloneWhateverIsKept) {
  for (const std::size_t states : {4U, 6U, 40U}) {
    Bench bench(with_states(limits(24, 3), states));
    std::mt19937 random(static_cast<unsigned>(states));
    std::vector<std::pair<std::vector<TokenId>, std::shared_ptr<Stream>>> all;
    for (int i = 0; i < 60; ++i) {
      std::vector<TokenId> tokens = prompt_of(1 + random() % 20, static_cast<TokenId>(random() % 3));
      for (const TokenId id : prompt_of(random() % 9, static_cast<TokenId>(random() % 3))) tokens.push_back(id);
      const auto stream = bench.submit(tokens, random() % 12);
      all.emplace_back(std::move(tokens), stream);
      if (random() % 2 == 0) bench.scheduler.step();
      if (random() % 8 == 0) all[random() % all.size()].second->cancel();
    }
    bench.run();
    for (const auto& [tokens, stream] : all) {
      const RequestResult result = Bench::result(*stream);
      EXPECT_EQ(result.ids, continuation(tokens, result.ids.size()));
    }
    EXPECT_EQ(bench.scheduler.pool().held(), 0u);
    std::vector<Page> free;
    while (const auto slot = bench.scheduler.take_state()) free.push_back(*slot);
    EXPECT_EQ(free.size(), states) << "none is lost";
    for (const Page slot : free) bench.scheduler.drop_state(slot);
  }
}

TEST(Scheduler, ALongPromptDoesNotStopTheTokensOfOthers) {
  Bench bench(limits(200, 8, 400));
  const auto first = bench.submit(prompt_of(4), 30);
  bench.scheduler.step();
  const auto second = bench.submit(prompt_of(100, 3), 4);
  std::size_t tokens = 0, steps = 0;
  for (bool answered = false; !answered; ++steps) {
    ASSERT_TRUE(bench.scheduler.step());
    EXPECT_LE(bench.scheduler.counts().last_batch, 17u);
    while (const auto event = first->take(Clock::now()).first) tokens += event->token ? 1 : 0;
    while (const auto event = second->take(Clock::now()).first) answered = answered || event->token;
  }
  EXPECT_EQ(steps, 7u);  // 100 tokens, 16 a step
  EXPECT_EQ(tokens, steps + 1);
}

TEST(Scheduler, PromptsShareAStepInTheOrderOfArrival) {
  Bench bench(limits(100));
  const auto first = bench.submit(prompt_of(10, 1), 1), second = bench.submit(prompt_of(10, 2), 1);
  bench.scheduler.step();
  EXPECT_TRUE(Bench::has_ended(*first));
  EXPECT_FALSE(Bench::has_ended(*second));
  EXPECT_EQ(bench.scheduler.counts().last_batch, 16u);
  bench.scheduler.step();
  EXPECT_TRUE(Bench::has_ended(*second));
  EXPECT_EQ(bench.scheduler.counts().last_batch, 4u);
}

TEST(Scheduler, PrefixesAreComputedOnce) {
  Bench bench(limits(100));
  const auto first = bench.submit(prompt_of(20), 10);
  bench.run();
  const std::vector<TokenId> answer = Bench::result(*first).ids;

  std::vector<TokenId> longer = prompt_of(20);
  longer.insert(longer.end(), answer.begin(), answer.end());
  longer.push_back(1);
  const std::size_t before = bench.runner.prompt_tokens;
  const auto second = bench.submit(longer, 5);
  bench.run();
  RequestResult result = Bench::result(*second);
  EXPECT_EQ(result.cached_tokens, 29u);  // the last token of an answer is not computed
  EXPECT_EQ(result.prompt_tokens, 2u);
  EXPECT_EQ(bench.runner.prompt_tokens - before, 2u);
  EXPECT_EQ(result.ids, continuation(longer, 5));

  // The same again: the last token is computed for its logits. Another end: as far as they agree.
  result = Bench::result(*[&] {
    const auto again = bench.submit(longer, 5);
    bench.run();
    return again;
  }());
  EXPECT_EQ(result.prompt_tokens, 1u);
  EXPECT_EQ(result.ids, continuation(longer, 5));
  std::vector<TokenId> fork = longer;
  fork[17] = 49;
  const auto third = bench.submit(fork, 5), refusing = bench.submit(fork, 5, [](Request&r) { r.reuse_prefix = false; });
  bench.run();
  EXPECT_EQ(Bench::result(*third).cached_tokens, 17u);
  EXPECT_EQ(Bench::result(*refusing).cached_tokens, 0u);
  EXPECT_EQ(third->read().ids, continuation(fork, 5));
  EXPECT_EQ(refusing->read().ids, continuation(fork, 5));
  EXPECT_EQ(Bench::result(*[&] {
              bench.scheduler.forget(false);
              const auto anew = bench.submit(longer, 5);
              bench.run();
              return anew;
            }())
                .cached_tokens,
            0u);
}

TEST(Scheduler, EqualPromptsThatComeTogetherAreComputedOnce) {
  Bench bench(limits(100));
  std::vector<std::shared_ptr<Stream>> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(bench.submit(prompt_of(22), 6));
  const auto other = bench.submit(prompt_of(5, 9), 6);
  bench.scheduler.step();
  EXPECT_EQ(bench.scheduler.running().size(), 2u) << "one of the equal ones, and the other";
  bench.run();
  EXPECT_EQ(bench.runner.prompt_tokens, 22u + 3 + 5);
  for (const auto& stream : streams) EXPECT_EQ(Bench::result(*stream).ids, continuation(prompt_of(22), 6));
  EXPECT_EQ(Bench::result(*other).ids, continuation(prompt_of(5, 9), 6));
}

TEST(Scheduler, WithoutRoomTheLastOneStartsAnewAndLosesNothing) {
  Bench bench(limits(12));
  std::vector<std::shared_ptr<Stream>> streams;
  for (TokenId i = 0; i < 5; ++i) streams.push_back(bench.submit(prompt_of(5, i), 30));
  bench.run();
  std::size_t preemptions = 0;
  for (TokenId i = 0; i < 5; ++i) {
    const RequestResult result = Bench::result(*streams[static_cast<std::size_t>(i)]);
    EXPECT_EQ(result.ids, continuation(prompt_of(5, i), 30)) << i;
    EXPECT_EQ(result.cached_tokens, 0u);
    EXPECT_EQ(result.prompt_tokens, 5u);
    preemptions += result.preemptions;
  }
  EXPECT_GT(preemptions, 0u);
  EXPECT_EQ(Bench::result(*streams[0]).preemptions, 0u) << "the first one always goes on";
  EXPECT_EQ(bench.scheduler.counts().preemptions, preemptions);
  EXPECT_EQ(bench.scheduler.pool().held(), 0u);
}

TEST(Scheduler, SeedsGoOnAfterAPreemption) {
  const auto sampled = [](Request& request) {
    request.generate.sampler.temperature = 5;
    request.generate.sampler.seed = 3;
    request.generate.sampler.presence_penalty = 0.5f;
  };
  Bench alone(limits(100));
  const auto wanted = alone.submit(prompt_of(5, 2), 30, sampled);
  alone.run();
  Bench tight(limits(12));
  for (TokenId i = 0; i < 2; ++i) tight.submit(prompt_of(5, i), 30);
  const auto got = tight.submit(prompt_of(5, 2), 30, sampled);
  tight.run();
  EXPECT_EQ(Bench::result(*got).ids, Bench::result(*wanted).ids);
  EXPECT_GT(got->read().preemptions, 0u);
}

TEST(Scheduler, ARequestThatFillsTheContextEndsThere) {
  Bench bench(limits(10));  // exactly one of them
  const auto stream = bench.submit(prompt_of(30), 100), next = bench.submit(prompt_of(40, 1), 100);
  bench.run();
  EXPECT_EQ(Bench::result(*stream).end, EndReason::context_full);
  EXPECT_EQ(stream->read().ids.size(), 11u);
  EXPECT_EQ(Bench::result(*next).end, EndReason::context_full);
  EXPECT_EQ(next->read().ids, continuation(prompt_of(40, 1), 1));
  // Its own tokens as a prompt fill the memory, and the page that it would copy has no place beside them.
  std::vector<TokenId> again = prompt_of(40, 1);
  again[38] = 0;
  const auto last = bench.submit(again, 3);
  bench.run();
  EXPECT_EQ(Bench::result(*last).ids, continuation(again, 1));
  EXPECT_EQ(last->read().cached_tokens, 36u);
}

TEST(Scheduler, NoAnswerIsGivenWhereNoneIsAskedFor) {
  Bench bench(limits(100));
  const auto stream = bench.submit(prompt_of(20), 0);
  bench.run();
  EXPECT_EQ(Bench::result(*stream).end, EndReason::max_tokens);
  EXPECT_EQ(stream->read().prompt_tokens, 20u);
  EXPECT_TRUE(stream->read().ids.empty());
  EXPECT_EQ(bench.scheduler.counts().cancelled, 0u);
}

TEST(Scheduler, CancelledRequestsFreeTheirPagesBeforeTheNextStep) {
  Bench bench(limits(30, 2));
  const auto first = bench.submit(prompt_of(5), 30), second = bench.submit(prompt_of(30, 1), 30);
  const auto waiting = bench.submit(prompt_of(5, 2), 30);
  bench.scheduler.step();
  EXPECT_EQ(bench.scheduler.waiting(), 1u);
  for (const auto& stream : {first, second, waiting}) stream->cancel();
  EXPECT_FALSE(bench.scheduler.step());
  EXPECT_EQ(bench.scheduler.pool().held(), 0u);
  EXPECT_EQ(bench.scheduler.waiting(), 0u);
  EXPECT_EQ(bench.scheduler.counts().cancelled, 3u);
  for (const auto& stream : {first, second, waiting}) EXPECT_EQ(Bench::result(*stream).end, EndReason::cancelled);
  EXPECT_EQ(second->read().prompt_tokens, 0u);
}

TEST(Scheduler, AFailedStepEndsItsRequestsAndNoOthers) {
  Bench bench(limits(30, 2));
  const auto first = bench.submit(prompt_of(5), 30), second = bench.submit(prompt_of(5, 1), 30);
  const auto later = bench.submit(prompt_of(5, 2), 8);
  bench.runner.fails_at = 4;
  bench.run();
  EXPECT_THROW(Bench::result(*first), DeviceError);
  EXPECT_THROW(Bench::result(*second), DeviceError);
  EXPECT_EQ(first->read().ids.size(), 3u);
  EXPECT_EQ(Bench::result(*later).ids, continuation(prompt_of(5, 2), 8));
  EXPECT_EQ(bench.scheduler.pool().held(), 0u);
}

TEST(Scheduler, ASlowReaderStopsNobodyElse) {
  Bench bench(limits(10'000, 8, 20'000));
  const auto slow = bench.submit(prompt_of(5), 6000), quick = bench.submit(prompt_of(5, 1), 8000);
  std::size_t seen = 0;
  while (bench.scheduler.step()) {
    while (quick->take(Clock::now()).first) ++seen;
  }
  EXPECT_EQ(seen, 8001u);  // and the prompt
  EXPECT_EQ(bench.scheduler.running().size(), 1u);
  const RequestResult result = Bench::result(*[&] {
    while (slow->take(Clock::now()).first) {
    }
    bench.run();
    return slow;
  }());
  EXPECT_EQ(result.ids.size(), 6000u);
}

TEST(Scheduler, AChangedModelForgetsWhatRanBefore) {
  Bench bench(limits(100));
  const auto first = bench.submit(prompt_of(12), 20);
  for (int i = 0; i < 4; ++i) bench.scheduler.step();
  bench.scheduler.forget(true);
  bench.run();
  const auto second = bench.submit(prompt_of(12), 2);
  bench.run();
  EXPECT_EQ(Bench::result(*first).ids, continuation(prompt_of(12), 20));
  EXPECT_EQ(Bench::result(*second).cached_tokens, 0u);
}

/// Requests of all kinds at random times, little memory: nobody gets a wrong token and no page is lost.
TEST(Scheduler, RandomTrafficKeepsEveryAnswerRight) {
  std::mt19937 random(5);
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  struct Sent {
    std::shared_ptr<Stream> stream;
    std::vector<TokenId> prompt;
    std::size_t tokens;
    bool cancelled = false;
  };
  Bench bench(limits(24, 6));
  std::vector<Sent> sent;
  for (int round = 0; round < 3000; ++round) {
    if (below(4) == 0) {
      std::vector<TokenId> prompt = prompt_of(1 + below(30), static_cast<TokenId>(below(3)));
      if (below(2) == 0) prompt[below(prompt.size())] = static_cast<TokenId>(below(kVocabulary));
      const std::size_t tokens = below(12);
      sent.push_back(
          {bench.submit(prompt, tokens, [&](Request& r) { r.reuse_prefix = below(5) != 0; }), prompt, tokens});
    }
    if (!sent.empty() && below(20) == 0) {
      Sent& victim = sent[sent.size() - 1 - below(std::min<std::size_t>(sent.size(), 5))];
      victim.stream->cancel();
      victim.cancelled = true;
    }
    if (below(400) == 0) bench.scheduler.forget(below(2) == 0);
    bench.scheduler.step();
    const PagePool& pool = bench.scheduler.pool();
    ASSERT_EQ(pool.held() + pool.cached() + pool.free(), pool.size());
  }
  bench.run();
  EXPECT_EQ(bench.scheduler.pool().held(), 0u);
  std::size_t preemptions = 0, cached = 0;
  for (const Sent& one : sent) {
    const RequestResult result = Bench::result(*one.stream);
    const std::vector<TokenId> wanted = continuation(one.prompt, one.tokens);
    preemptions += result.preemptions;
    cached += result.cached_tokens;
    if (one.cancelled) {
      ASSERT_LE(result.ids.size(), wanted.size());
      EXPECT_TRUE(std::equal(result.ids.begin(), result.ids.end(), wanted.begin()));
    } else {
      EXPECT_EQ(result.ids, wanted);
    }
  }
  EXPECT_GT(preemptions, 0u);
  EXPECT_GT(cached, 0u);
}

}  // namespace
}  // namespace imago::engine
