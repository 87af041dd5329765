#include "math/onednn_threads.h"

#include <dlfcn.h>

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

}  // namespace imago::math
