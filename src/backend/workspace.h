#pragma once

// Host memory of a forward pass.

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "backend/program.h"
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

/// Which token goes to which experts. A row is one token at one of its experts; the rows of an expert follow each
/// other.
struct Routing {
  std::vector<float> weights;        ///< [tokens][used]
  std::vector<std::size_t> chosen;   ///< [tokens][used]: the expert
  std::vector<std::size_t> row_of;   ///< [tokens][used]: the row
  std::vector<std::size_t> firsts;   ///< first row of each expert, and one more: the number of rows
  std::vector<std::size_t> singles;  ///< rows of each expert, its first ones, that are of the first tokens

  /// From the softmax of the router, [tokens][experts], which is overwritten. The lower number wins a draw.
  void route(const Experts& experts, std::span<float> probabilities, std::size_t tokens);
  /// Fills `singles` for that many first tokens.
  void count_singles(const Experts& experts, std::size_t tokens);
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
  LineVector<float> scores;             ///< of the router, [tokens][experts]
  LineVector<float> gathered, results;  ///< of experts, [rows][width]
  Routing routing;
};

}  // namespace imago::backend
