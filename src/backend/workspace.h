#pragma once

// Host memory of a forward pass.

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "backend/program.h"
#include "backend/routing.h"
#include "base/line_vector.h"
#include "kernels/matrix.h"
#include "kernels/ops_args.h"

namespace imago::backend {

/// Sees the inputs of the matrices while a program runs on the CPU: calibration.
class InputObserver {
 public:
  virtual ~InputObserver() = default;
  /// `x`, [tokens][columns], is about to be multiplied with the matrices of `roles` in `block`, of experts with those
  /// of `expert`. Called from one thread, in the order of the computation.
  virtual void see(std::span<const Role> roles, std::size_t block, std::size_t expert, std::span<const float> x,
                   std::size_t tokens) = 0;

 protected:
  InputObserver() = default;
  InputObserver(const InputObserver&) = default;
  InputObserver& operator=(const InputObserver&) = default;
};

/// Grows to the largest batch it has seen and is then used again. One per sequence.
struct Workspace {
  InputObserver* observer = nullptr;

  LineVector<float>& at(Slot slot) noexcept { return slots[static_cast<std::size_t>(slot)]; }
  LineVector<float>& stream() noexcept { return at(Slot::stream); }

  std::array<LineVector<float>, kSlots> slots;  ///< [tokens][width of the slot]; hidden of experts: [rows][…]
  LineVector<float> up;                         ///< as hidden
  std::vector<kernels::KeyRange> ranges;
  std::vector<kernels::Product> products;
  LineVector<float> scores;             ///< results of the router, [tokens][experts]
  LineVector<float> gathered, results;  ///< inputs and results of experts, [rows][width]
  LineVector<float> latent;             ///< queries of latent attention, [tokens][heads][rank + rotary]
  Routing routing;
};

}  // namespace imago::backend
