// How well a model predicts a text.

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "imago/lm.h"
#include "kernels/ops.h"
#include "lm/scored_windows.h"

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
