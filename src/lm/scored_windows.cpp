#include "lm/scored_windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "base/parallel.h"
#include "imago/error.h"
#include "imago/lm.h"
#include "kernels/ops.h"
#include "lm/forward.h"
#include "lm/language_model_state.h"

namespace imago::lm {

namespace {

/// Values of logits that are held at a time: 16 MiB, but no fewer rows than fill the tiles of a product.
constexpr std::size_t kLogits = std::size_t{4} << 20;
constexpr std::size_t kFewestRows = 48;

/// Runs windows through one model.
class WindowRun {
 public:
  WindowRun(const LoadedModel& model, CacheKind cache, std::size_t context, std::size_t rows)
      : model_(model),
        cache_(*model.weights.program, cache, context, model.weights.runners),
        logits_(rows * model.weights.traits.vocabulary) {}

  void run(std::span<const TokenId> window) {
    const Segment segment{.cache = &cache_, .tokens = window.size()};
    run_model(model_, {&segment, 1}, window.size(), {.ids = window, .segments = {}, .work = work_, .all_rows = true});
  }
  /// At these positions of the window that ran last.
  std::span<float> logits(std::size_t first, std::size_t rows) {
    const std::span<float> some = std::span(logits_).first(rows * model_.weights.traits.vocabulary);
    model_.weights.runners.back()->compute_logits(work_, first, rows, some);
    return some;
  }

 private:
  const LoadedModel& model_;
  KvCache cache_;
  backend::Workspace work_;
  std::vector<float> logits_;
};

}  // namespace

std::vector<TokenId> window_tokens(std::string_view text, const Tokenizer& tokenizer, std::size_t context) {
  std::vector<TokenId> ids = tokenizer.encode(text);
  const bool with_bos = tokenizer.adds_bos() && tokenizer.bos().has_value();
  const TokenId bos = tokenizer.bos().value_or(0);
  if (with_bos) ids.insert(ids.begin(), bos);
  if (ids.size() < context) {
    throw UsageError(
        fmt::format("the text has {} tokens, fewer than one window of {}; take a longer text or a smaller window",
                    ids.size(), context));
  }
  ids.resize(ids.size() / context * context);
  for (std::size_t i = 0; with_bos && i < ids.size(); i += context) ids[i] = bos;
  return ids;
}

void for_each_scored_piece(std::span<const LanguageModel* const> models, std::string_view text, std::size_t context,
                           CacheKind cache, const std::function<void(const ScoredPiece&)>& on_piece,
                           const std::function<void(std::size_t done, std::size_t total)>& on_window) {
  std::vector<const LoadedModel*> loaded;
  for (const LanguageModel* model : models) loaded.push_back(&LanguageModelAccess::loaded(*model));
  const Tokenizer& tokenizer = models.front()->require_tokenizer();
  for (const LoadedModel* model : loaded) {
    model->require_logits();
    // Half a window is scored, without the first of that half: from 4 tokens on there is one.
    if (context < 4 || context > model->max_positions()) {
      throw UsageError(fmt::format("windows of {} tokens; they can have 4 to {}", context, model->max_positions()));
    }
  }
  const std::vector<TokenId> ids = window_tokens(text, tokenizer, context);
  loaded.front()->check_ids(ids);

  const std::size_t first = context / 2, scored = context - 1 - first;
  const std::size_t held = kLogits / models.front()->vocabulary() / models.size();
  const std::size_t piece = std::min(scored, std::max(kFewestRows, held));
  std::vector<std::unique_ptr<WindowRun>> runners;
  for (const LoadedModel* model : loaded) {
    runners.push_back(std::make_unique<WindowRun>(*model, cache, context, piece));
  }
  std::vector<std::span<float>> logits(models.size());
  const std::size_t windows = ids.size() / context;
  for (std::size_t window = 0; window < windows; ++window) {
    const std::span<const TokenId> tokens = std::span(ids).subspan(window * context, context);
    for (const auto& runner : runners) runner->run(tokens);
    for (std::size_t row = first; row < context - 1; row += piece) {
      const std::size_t count = std::min(piece, context - 1 - row);
      for (std::size_t i = 0; i < runners.size(); ++i) logits[i] = runners[i]->logits(row, count);
      on_piece({logits, tokens.subspan(row + 1, count)});
    }
    on_window(window + 1, windows);
  }
}

}  // namespace imago::lm

namespace imago {

namespace {

/// -log softmax(logits)[target] of each row, summed. The softmax of the largest logit is one over the sum of all
/// exponentials, so one pass of the fast kernel gives everything.
double surprise(std::span<float> logits, std::size_t vocabulary, std::span<const TokenId> targets,
                std::vector<double>& rows) {
  rows.assign(targets.size(), 0);
  parallel_for_dynamic(targets.size(), 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const std::span<float> row = logits.subspan(i * vocabulary, vocabulary);
      const auto largest = std::max_element(row.begin(), row.end());
      const double below =
          static_cast<double>(*largest) - static_cast<double>(row[static_cast<std::size_t>(targets[i])]);
      kernels::softmax(row, vocabulary);
      rows[i] = below - std::log(static_cast<double>(*largest));
    }
  });
  double sum = 0;
  for (const double row : rows) sum += row;
  return sum;
}

}  // namespace

PerplexityReport measure_perplexity(const LanguageModel& model, std::string_view text,
                                    const PerplexityOptions& options) {
  const LanguageModel* const models[] = {&model};
  std::vector<double> rows;
  PerplexityReport report;
  double sum = 0;
  lm::for_each_scored_piece(
      models, text, options.context, options.cache,
      [&](const lm::ScoredPiece& piece) {
        sum += surprise(piece.logits[0], model.vocabulary(), piece.targets, rows);
        report.tokens_scored += piece.targets.size();
      },
      [&](std::size_t done, std::size_t total) {
        report.windows = done;
        report.perplexity = std::exp(sum / static_cast<double>(report.tokens_scored));
        if (options.progress) options.progress(done, total, report.perplexity);
      });
  return report;
}

}  // namespace imago
