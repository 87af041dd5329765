// Calibrates a language model: runs a text through it and writes statistics of the inputs of its matrices.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>

#include "files/tensor_file.h"
#include "guided/sketch.h"
#include "imago/error.h"
#include "imago/precision.h"
#include "lm/fingerprint.h"
#include "lm/scored_windows.h"
#include "precision/collect.h"

namespace imago {

namespace {

using guided::Calibration;

/// Windows between two checkpoints of a run. Sums are rounded to float32 at each, so that the result does not depend on
/// where a run was interrupted.
constexpr std::size_t kChunkWindows = 8;
constexpr std::chrono::seconds kSaveEvery{30};

std::string partial_path(const std::string& out) { return out + ".partial"; }

/// The checkpoint of an earlier run with the same model, text and options.
std::optional<Calibration> find_partial(const std::string& path, const Calibration& wanted, bool products) {
  if (!std::filesystem::is_regular_file(path)) return std::nullopt;
  try {
    Calibration found = Calibration::read(path);
    const bool same = found.text_hash == wanted.text_hash && found.context == wanted.context &&
                      found.sketch == wanted.sketch && found.windows % kChunkWindows == 0 &&
                      found.matrices.begin()->second->products.empty() != products;
    if (same) return found;
  } catch (const Error&) {
    // A damaged file counts as none.
  }
  return std::nullopt;
}

CalibrateReport report_of(const Calibration& calibration, std::size_t resumed, const std::string& out) {
  CalibrateReport report;
  report.windows = calibration.windows;
  report.rows = calibration.windows * calibration.context;
  report.matrices = calibration.matrices.size();
  report.resumed = resumed;
  report.bytes = std::filesystem::file_size(out);
  return report;
}

}  // namespace

CalibrateReport calibrate_model(const std::string& model, std::string_view text, const std::string& text_name,
                                const std::string& out, const CalibrateOptions& options) {
  Calibration calibration;
  calibration.sketch = guided::sketch_model(files::TensorFile::open(model));
  const LanguageModel loaded = LanguageModel::load(model);
  const std::vector<TokenId> ids = lm::window_tokens(text, loaded.require_tokenizer(), options.context);
  const std::size_t windows = ids.size() / options.context;
  lm::Fingerprint hash;
  hash.add(text);
  calibration.text_hash = hash.value();
  calibration.context = options.context;
  calibration.texts = {text_name};

  const std::string partial = partial_path(out);
  std::size_t resumed = 0;
  if (auto found = find_partial(partial, calibration, options.products)) {
    resumed = found->windows;
    calibration = std::move(*found);
  }
  auto saved = std::chrono::steady_clock::now();
  try {
    for (std::size_t window = resumed; window < windows; window += kChunkWindows) {
      const std::size_t count = std::min(kChunkWindows, windows - window);
      precision::CollectOptions collect{.context = options.context, .products = options.products};
      collect.progress = [&](std::size_t done, std::size_t) {
        if (options.progress) options.progress(window + done, windows);
      };
      precision::collect(loaded, std::span(ids).subspan(window * options.context, count * options.context), collect,
                         calibration);
      const bool last = window + count == windows;
      if (!last && std::chrono::steady_clock::now() - saved >= kSaveEvery) {
        calibration.write(partial);
        saved = std::chrono::steady_clock::now();
      }
    }
  } catch (const FormatError&) {
    throw;  // the model is at fault: a resumed run would fail again
  } catch (...) {
    if (calibration.windows > resumed) calibration.write(partial);
    throw;
  }
  calibration.write(out);
  std::error_code ignored;
  std::filesystem::remove(partial, ignored);
  return report_of(calibration, resumed, out);
}

}  // namespace imago
