#include "precision/compare_text.h"

#include "imago/lm.h"

namespace imago::precision {

DivergenceReport compare_on_text(const std::string& a, const std::string& b, const CompareOptions& options) {
  LanguageModelOptions load{.fast = options.fast};
  if (options.progress) {
    load.progress = [&](std::uint64_t done, std::uint64_t total) { options.progress("loading", done, total); };
  }
  const LanguageModel reference = LanguageModel::load(a, load), other = LanguageModel::load(b, load);
  reference.require_tokenizer();
  DivergenceOptions measure{.context = options.context};
  if (options.progress) {
    measure.progress = [&](std::size_t done, std::size_t total) { options.progress("windows", done, total); };
  }
  return measure_divergence(reference, other, *options.text, measure);
}

}  // namespace imago::precision
