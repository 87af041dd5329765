#pragma once

// Activations as the matrix kernels want them: padded to whole blocks, with sums, quantized for the fast form.

#include <cstddef>
#include <span>

#include "kernels/matrix.h"

namespace imago::kernels {

/// Prepared in memory that the calling thread keeps from one product to the next, so that a product allocates nothing
/// once it has run: at most one of them at a time in a thread.
class PreparedActivations {
 public:
  /// `needs_sums`: fill Activations::sums in the exact form; the fast form always has it.
  PreparedActivations(std::span<const float> x, std::size_t batch, std::size_t cols, Arithmetic arithmetic,
                      bool needs_sums);
  PreparedActivations(std::span<const float> x, std::size_t batch, std::size_t cols, const MatrixKernel& kernel)
      : PreparedActivations(x, batch, cols, kernel.arithmetic, kernel.functions.needs_sums) {}
  PreparedActivations(const PreparedActivations&) = delete;
  PreparedActivations& operator=(const PreparedActivations&) = delete;

  const Activations& view() const noexcept { return view_; }

 private:
  Activations view_{};
};

}  // namespace imago::kernels
