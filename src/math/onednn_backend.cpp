#include <oneapi/dnnl/dnnl.h>

#include <new>

#include "imago/error.h"
#include "math/backend.h"
#include "math/onednn_convolution.h"
#include "math/onednn_threads.h"
#include "math/plain.h"

namespace imago::math {

namespace {

void gemm_part(const GemmArgs& g) {
  const OneThread one_thread;
  const auto letter = [](Transpose transpose) { return transpose == Transpose::yes ? 'T' : 'N'; };
  const auto extent = [](std::size_t value) { return static_cast<dnnl_dim_t>(value); };
  const dnnl_status_t status = dnnl_sgemm(letter(g.transpose_a), letter(g.transpose_b), extent(g.m), extent(g.n),
                                          extent(g.k), 1.0f, g.a, extent(g.a_stride), g.b, extent(g.b_stride),
                                          g.write == Write::add ? 1.0f : 0.0f, g.c, extent(g.c_stride));
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  if (status != dnnl_success) throw UnsupportedError("oneDNN refuses this product");
}

/// Whether oneDNN has good code for it, and then it is done.
template <class X, class W, class Y>
bool convolve_part(ConvolutionKind kind, const ConvolutionArgs<X, W, Y>& args) {
  // oneDNN's handles know no const; the operands that it only reads stay as they are.
  const auto address = [](const float* values) { return const_cast<float*>(values); };
  return onednn_convolve({kind, args.extents, args.x_sample, args.w_filter, args.y_sample},
                         {address(args.x), address(args.w), address(args.y)});
}

void forward_part(const ForwardArgs& args) {
  if (!convolve_part(ConvolutionKind::forward, args)) columns_convolve(args, gemm_part);
}

void backward_data_part(const BackwardDataArgs& args) {
  if (!convolve_part(ConvolutionKind::backward_data, args)) columns_backward_data(args, gemm_part);
}

void backward_weights_part(const BackwardWeightsArgs& args) {
  if (!convolve_part(ConvolutionKind::backward_weights, args)) columns_backward_weights(args, gemm_part);
}

}  // namespace

const Backend* onednn_backend() noexcept {
  static constexpr Backend kBackend{.name = "oneDNN",
                                    .gemm = gemm_part,
                                    .convolve = forward_part,
                                    .convolve_backward_data = backward_data_part,
                                    .convolve_backward_weights = backward_weights_part};
  return &kBackend;
}

}  // namespace imago::math
