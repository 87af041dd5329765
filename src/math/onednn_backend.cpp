#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>

#include <new>

#include "imago/error.h"
#include "math/onednn.h"

namespace imago::math {

namespace {

/// The OpenMP that oneDNN was loaded with. Looked up by name, as the loader did for oneDNN itself: linking one would
/// put a second into programs whose compiler brings another (libomp of clang, libgomp of GCC). Nulls where oneDNN was
/// built without OpenMP.
struct OpenMp {
  int (*max_threads)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  void (*set_threads)(int) = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
};

const OpenMp& open_mp() noexcept {
  static const OpenMp found;
  return found;
}

}  // namespace

OneThread::OneThread() noexcept {
  const OpenMp& omp = open_mp();
  if (omp.max_threads == nullptr || omp.set_threads == nullptr) return;
  const int threads = omp.max_threads();
  if (threads == 1) return;
  before_ = threads;
  omp.set_threads(1);
}

OneThread::~OneThread() {
  if (before_ != 0) open_mp().set_threads(before_);
}

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

/// Computes it if oneDNN has fast code for it; returns whether it has.
template <class X, class W, class Y>
bool convolve_part(ConvolutionKind kind, const ConvolutionArgs<X, W, Y>& args) {
  // oneDNN takes pointers without const, also for operands that it only reads.
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
