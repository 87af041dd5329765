#pragma once

#include <functional>
#include <span>

#include "backend/runner.h"
#include "imago/lm.h"

namespace imago {

/// Generation without logits on the host, where the model's accelerator can choose tokens.
struct SequenceAccess {
  /// Whether it can.
  static bool chooses(const Sequence& sequence) noexcept;
  /// As Sequence::append, but returns the token that follows; -1 once `go_on` has returned false. Throws UsageError if
  /// no token can follow.
  static TokenId append(Sequence& sequence, std::span<const TokenId> ids, const backend::TokenChoice& choice,
                        const std::function<bool(std::size_t done)>& go_on = {});
};

/// How a sampler would choose the next token, as numbers; none if it needs the logits themselves.
struct SamplerAccess {
  static bool needs_logits(const Sampler& sampler) noexcept;
  /// Draws a number, as Sampler::sample does. REQUIRES: it does not need logits.
  static backend::TokenChoice next_choice(Sampler& sampler);
};

}  // namespace imago
