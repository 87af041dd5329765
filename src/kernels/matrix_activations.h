#pragma once

// Activations as the matrix kernels want them: padded to whole blocks, with sums, quantized for the fast form.

#include <cstddef>
#include <span>

#include "kernels/matrix.h"

namespace imago::kernels {

/// What the kernels of some products read.
struct ActivationNeeds {
  bool floats = false, sums = false;  ///< the exact form; the int8 form always has sums
  bool int8 = false;
  bool totals = false, tile_totals = false;
  const MatrixFunctions* tiles = nullptr;  ///< of one that takes tiles: all make the same of a token

  /// Adds what `kernel` reads of `batch` tokens.
  void add(const MatrixKernel& kernel, std::size_t batch) noexcept;
};

/// Prepared in memory that the calling thread keeps from one product to the next, so that a product allocates nothing
/// once it has run: at most one of them at a time in a thread.
class PreparedActivations {
 public:
  PreparedActivations(std::span<const float> x, std::size_t batch, std::size_t cols, const ActivationNeeds& needs);
  PreparedActivations(const PreparedActivations&) = delete;
  PreparedActivations& operator=(const PreparedActivations&) = delete;

  const Activations& view() const noexcept { return view_; }

 private:
  Activations view_{};
};

}  // namespace imago::kernels
