// Uses one function of each kind: a header-only one, one of the library, one that needs its threads, and one that
// brings in all layers, and with them the libraries that they compute with.

#include <cstdio>

#include "imago/format.h"
#include "imago/layer.h"
#include "imago/system.h"

int main() {
  const imago::Format format = imago::parse_format("Q4_K");
  const std::size_t bytes = imago::packed_bytes(format, 256);
  std::printf("imago %.*s, %d threads, a block of q4_k takes %zu bytes\n", static_cast<int>(imago::version().size()),
              imago::version().data(), imago::thread_count(), bytes);
  const std::size_t weights = imago::weight_shape(imago::dense(3, 2).config).count();
  return bytes == 144 && imago::thread_count() > 0 && weights == 6 ? 0 : 1;
}
