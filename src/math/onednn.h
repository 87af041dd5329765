#pragma once

// What the files that call oneDNN share.

#include <array>
#include <cstddef>
#include <cstdint>

#include "math/backend.h"

namespace imago::math {

/// While it exists, oneDNN computes on the calling thread alone, since our pool splits the work. The destructor
/// restores the OpenMP setting of this thread.
class OneThread {
 public:
  OneThread() noexcept;
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = 0;  // 0: nothing to restore
};

enum class ConvolutionKind : std::uint8_t { forward, backward_data, backward_weights };

/// What oneDNN is asked for: all that its code depends on except the addresses.
struct ConvolutionRequest {
  ConvolutionKind kind;
  ConvolutionExtents extents;
  std::size_t x_sample, w_filter, y_sample;
};

/// x, w and y; which of them is written depends on the kind.
using ConvolutionOperands = std::array<float*, 3>;

/// Computes on the calling thread. Returns false, and does nothing, if oneDNN has no fast code for the request. Code is
/// made once per kind of request and kept.
bool onednn_convolve(const ConvolutionRequest& request, const ConvolutionOperands& operands);

}  // namespace imago::math
