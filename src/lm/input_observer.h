#pragma once

// What the matrices of a decoder multiply, for those who want to know: calibration.

#include <cstddef>
#include <span>

#include "models/matrix_names.h"

namespace imago::lm {

/// Told, while a decoder runs, of the inputs of its matrices.
class InputObserver {
 public:
  virtual ~InputObserver() = default;
  /// `x`, [tokens][columns], is about to be multiplied with the matrices of `roles` in `block`, of experts with those
  /// of `expert`. Called from one thread, in the order of the computation.
  virtual void see(std::span<const models::Role> roles, std::size_t block, std::size_t expert, std::span<const float> x,
                   std::size_t tokens) = 0;

 protected:
  InputObserver() = default;
  InputObserver(const InputObserver&) = default;
  InputObserver& operator=(const InputObserver&) = default;
};

}  // namespace imago::lm
