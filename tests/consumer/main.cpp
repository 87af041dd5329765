// Uses one function of each kind: a header-only one, one of the library, one that needs its threads, one that brings in
// all layers, and one that brings in language models, and with them the libraries that both compute with.

#include <cstdio>

#include "imago/error.h"
#include "imago/format.h"
#include "imago/layer.h"
#include "imago/lm.h"
#include "imago/system.h"

int main() {
  const imago::Format format = imago::parse_format("Q4_K");
  const std::size_t bytes = imago::packed_bytes(format, 256);
  std::printf("imago %.*s, %d threads, a block of q4_k takes %zu bytes\n", static_cast<int>(imago::version().size()),
              imago::version().data(), imago::thread_count(), bytes);
  const std::size_t weights = imago::weight_shape(imago::dense(3, 2).config).count();
  bool absent = false;
  try {
    imago::LanguageModel::load("/nowhere/model.gguf");
  } catch (const imago::IoError&) {
    absent = true;
  }
  return absent && bytes == 144 && imago::thread_count() > 0 && weights == 6 ? 0 : 1;
}
