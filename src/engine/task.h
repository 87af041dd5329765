#pragma once

// A request inside the engine.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/page_pool.h"
#include "engine/stream.h"
#include "imago/engine.h"
#include "lm/answer.h"

namespace imago::engine {

using Clock = std::chrono::steady_clock;

struct Task {
  /// Throws UsageError, UnsupportedError: what the sampler and the answer do not take.
  Task(Request request, const Tokenizer* tokenizer, std::shared_ptr<Stream> to);

  std::size_t remaining() const noexcept { return tokens.size() - done; }
  /// Whether the next tokens to compute are of the prompt.
  bool in_prompt() const noexcept { return done < prompt; }
  /// Whether it has one token to go on from, as in every step of an answer.
  bool is_single() const noexcept { return !in_prompt() && remaining() == 1; }

  std::uint64_t id = 0;  ///< in the order of arrival
  GenerateOptions options;
  bool reuse_prefix;
  std::shared_ptr<Stream> stream;
  Sampler sampler;
  lm::Answer answer;

  std::vector<TokenId> tokens;  ///< the prompt, and what was generated
  std::size_t prompt;           ///< tokens of it

  // What the cache has of it.
  std::vector<Page> pages = {};
  std::optional<Page> state = {};  ///< slot of its states, where the model has them
  std::size_t fork = 0;            ///< where another text may begin to differ: states are kept there
  std::size_t done = 0;            ///< tokens
  bool current = true;             ///< all of them were computed by the model as it is

  bool ended = false;

  // For its result.
  std::size_t cached = 0, preemptions = 0;
  Clock::time_point submitted = Clock::now(), admitted = {}, answered = {};  ///< answered: the prompt was through
};

}  // namespace imago::engine
