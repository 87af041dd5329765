// The stub for a build without language models (IMAGO_LM=OFF).

#include "imago/error.h"
#include "imago/precision.h"
#include "precision/compare_text.h"

namespace imago {

namespace {

[[noreturn]] void refuse_language_models() {
  throw UnsupportedError("this build of imago has no language models; build it with IMAGO_LM=ON");
}

}  // namespace

DivergenceReport precision::compare_on_text(const std::string&, const std::string&, const CompareOptions&) {
  refuse_language_models();
}

SweepReport sweep_model(const std::string&, const std::optional<std::string>&, const SweepOptions&) {
  refuse_language_models();
}

}  // namespace imago
