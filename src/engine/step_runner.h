#pragma once

// What the scheduler asks of a model: steps over pages of its cache.

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/runner.h"
#include "engine/page_pool.h"
#include "imago/lm.h"

namespace imago::engine {

/// Consecutive tokens of one request in a step.
struct StepSegment {
  std::span<const Page> pages;
  std::size_t past = 0, tokens = 0;
  bool answer = false;          ///< generated tokens: computed as if each came alone, however many there are
  Page state = 0;               ///< slot of the states of the request
  std::size_t kept_tokens = 0;  ///< after so many of the tokens the states are copied; 0: they are not
  Page kept_state = 0;          ///< to this slot
};

struct Step {
  std::span<const TokenId> ids;           ///< tokens of all segments, one after the other
  std::span<const StepSegment> segments;  ///< those of answers first
  std::span<const std::uint32_t> rows;    ///< tokens of the step that others will follow, ascending
  std::span<float> logits = {};           ///< [rows][vocabulary], unless tokens are chosen
  std::span<const backend::TokenChoice> choices = {};
  std::span<TokenId> chosen = {};  ///< one per row; -1 where none can follow
};

class StepRunner {
 public:
  virtual ~StepRunner() = default;
  virtual std::size_t vocabulary() const = 0;
  /// Whether it can choose tokens where the logits are.
  virtual bool chooses() const = 0;
  /// Throws DeviceError, std::bad_alloc: what the step was to write may then be anything.
  virtual void run(const Step& step) = 0;
  /// Copies the first tokens of a page to another. Throws DeviceError.
  virtual void copy(Page from, Page to, std::size_t tokens) = 0;
  /// Copies the states of a slot to another. Throws DeviceError.
  virtual void copy_state(Page from, Page to) = 0;

 protected:
  StepRunner() = default;
  StepRunner(const StepRunner&) = default;
  StepRunner& operator=(const StepRunner&) = default;
};

}  // namespace imago::engine
