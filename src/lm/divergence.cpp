// How far a model's predictions are from those of another.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "imago/error.h"
#include "imago/lm.h"
#include "lm/scored_windows.h"

namespace imago {

namespace {

/// Positions that a thread takes at a time: each costs two exponentials per token of the vocabulary.
constexpr std::size_t kGrain = 4;

/// What is known of one model's predictions.
struct Tally {
  std::vector<double> divergences;  ///< of all positions so far; empty for the reference
  std::vector<double> surprises;    ///< of the positions of a piece
  std::vector<std::uint8_t> same;   ///< of the positions of a piece: whether the top token is the reference's
  double surprise_sum = 0;
  std::size_t same_count = 0;

  void add_piece() {
    for (const double surprise : surprises) surprise_sum += surprise;
    for (const std::uint8_t one : same) same_count += one;
  }
};

struct Row {
  std::span<const float> logits;
  std::size_t top = 0;
  double log_sum = 0;  ///< log of the sum of the exponentials of all logits
  double log_probability(std::size_t token) const { return static_cast<double>(logits[token]) - log_sum; }
};

/// `exponentials`, where given, takes exp(logit - largest logit).
Row measure_row(std::span<const float> logits, std::span<double> exponentials = {}) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  const double top = static_cast<double>(*largest);
  double sum = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double exponential = std::exp(static_cast<double>(logits[i]) - top);
    if (!exponentials.empty()) exponentials[i] = exponential;
    sum += exponential;
  }
  return {logits, static_cast<std::size_t>(largest - logits.begin()), top + std::log(sum)};
}

/// KL(reference || other). `probabilities` are the reference's.
double divergence(const Row& reference, const Row& other, std::span<const double> probabilities) {
  double sum = 0;
  for (std::size_t i = 0; i < probabilities.size(); ++i) {
    // Tokens that the reference rules out count nothing, whatever the other says: not 0 · infinity.
    if (probabilities[i] == 0) continue;
    sum += probabilities[i] * (reference.log_probability(i) - other.log_probability(i));
  }
  if (std::isnan(sum)) return std::numeric_limits<double>::infinity();
  return sum < 0 ? 0 : sum;  // rounding of what is zero
}

/// Compares the models at each position of a piece. tallies[0] is the reference's.
void compare(const lm::ScoredPiece& piece, std::size_t vocabulary, std::span<Tally> tallies) {
  const std::size_t rows = piece.targets.size();
  const std::size_t before = tallies.size() > 1 ? tallies[1].divergences.size() : 0;
  for (Tally& tally : tallies) {
    tally.surprises.assign(rows, 0);
    tally.same.assign(rows, 0);
    if (&tally != &tallies.front()) tally.divergences.resize(before + rows);
  }
  parallel_for_dynamic(rows, kGrain, [&](std::size_t begin, std::size_t end) {
    std::vector<double> probabilities(vocabulary);
    for (std::size_t i = begin; i < end; ++i) {
      const auto target = static_cast<std::size_t>(piece.targets[i]);
      const auto logits = [&](std::size_t model) { return piece.logits[model].subspan(i * vocabulary, vocabulary); };
      const Row reference = measure_row(logits(0), probabilities);
      const double scale = std::exp(reference.log_probability(reference.top));
      for (double& probability : probabilities) probability *= scale;
      tallies[0].surprises[i] = -reference.log_probability(target);
      for (std::size_t model = 1; model < tallies.size(); ++model) {
        Tally& tally = tallies[model];
        const Row row = measure_row(logits(model));
        tally.surprises[i] = -row.log_probability(target);
        tally.same[i] = row.top == reference.top;
        tally.divergences[before + i] = divergence(reference, row, probabilities);
      }
    }
  });
  for (Tally& tally : tallies) tally.add_piece();
}

/// Between two neighbours where the place is between them. REQUIRES: sorted, not empty.
double quantile(std::span<const double> sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const double part = place - static_cast<double>(below);
  if (part == 0) return sorted[below];
  return (1 - part) * sorted[below] + part * sorted[below + 1];
}

/// REQUIRES: sorted, and no NaN.
std::vector<std::uint64_t> counts_by_bin(std::span<const double> sorted) {
  std::vector<std::uint64_t> counts(kDivergenceBins);
  auto begin = sorted.begin();
  for (std::size_t bin = 0; bin < kDivergenceBins; ++bin) {
    const bool last = bin + 1 == kDivergenceBins;
    const auto end = last ? sorted.end() : std::lower_bound(begin, sorted.end(), divergence_bin_start(bin + 1));
    counts[bin] = static_cast<std::uint64_t>(end - begin);
    begin = end;
  }
  return counts;
}

DivergenceReport report_of(Tally& tally, double reference_perplexity, std::size_t windows) {
  DivergenceReport report;
  std::vector<double>& values = tally.divergences;
  const auto count = static_cast<double>(values.size());
  for (const double value : values) report.mean += value;
  report.mean /= count;
  std::sort(values.begin(), values.end());
  report.median = quantile(values, 0.5);
  report.percentile_99 = quantile(values, 0.99);
  report.largest = values.back();
  report.reference_perplexity = reference_perplexity;
  report.perplexity = std::exp(tally.surprise_sum / count);
  report.same_top = static_cast<double>(tally.same_count) / count;
  report.tokens_scored = values.size();
  report.windows = windows;
  report.histogram = counts_by_bin(values);
  return report;
}

void check_vocabularies(const LanguageModel& reference, const LanguageModel& other, std::string_view text) {
  if (reference.vocabulary() != other.vocabulary()) {
    throw UsageError(fmt::format("the vocabularies differ: {} tokens in the reference, {} in the other model",
                                 reference.vocabulary(), other.vocabulary()));
  }
  if (other.tokenizer() == nullptr) return;
  const std::vector<TokenId> wanted = reference.require_tokenizer().encode(text), ids = other.tokenizer()->encode(text);
  if (wanted == ids) return;
  const auto at = static_cast<std::size_t>(std::mismatch(wanted.begin(), wanted.end(), ids.begin(), ids.end()).first -
                                           wanted.begin());
  throw UsageError(
      fmt::format("the tokenizers of the two models read the text differently, first at token {}; compare models of "
                  "one vocabulary",
                  at));
}

}  // namespace

DivergenceReport measure_divergence(const LanguageModel& reference, const LanguageModel& other, std::string_view text,
                                    const DivergenceOptions& options) {
  const LanguageModel* const others[] = {&other};
  return measure_divergence(reference, others, text, options).front();
}

std::vector<DivergenceReport> measure_divergence(const LanguageModel& reference,
                                                 std::span<const LanguageModel* const> others, std::string_view text,
                                                 const DivergenceOptions& options) {
  std::vector<const LanguageModel*> models = {&reference};
  for (const LanguageModel* other : others) {
    check_vocabularies(reference, *other, text);
    models.push_back(other);
  }
  std::vector<Tally> tallies(models.size());
  std::size_t windows = 0, positions = 0;
  lm::for_each_scored_piece(
      models, text, options.context, options.cache,
      [&](const lm::ScoredPiece& piece) {
        compare(piece, reference.vocabulary(), tallies);
        positions += piece.targets.size();
      },
      [&](std::size_t done, std::size_t total) {
        windows = done;
        if (options.progress) options.progress(done, total);
      });
  const double reference_perplexity = std::exp(tallies[0].surprise_sum / static_cast<double>(positions));
  std::vector<DivergenceReport> reports;
  for (std::size_t i = 1; i < tallies.size(); ++i) {
    reports.push_back(report_of(tallies[i], reference_perplexity, windows));
  }
  return reports;
}

}  // namespace imago
