// Divergence against sums in double over the logits of a sequence.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "imago/error.h"
#include "imago/lm.h"
#include "imago/system.h"
#include "lm/byte_letters.h"
#include "testing/on_one_thread.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago {
namespace {

using nlohmann::json;
constexpr std::size_t kWindow = 32;
constexpr const char* kModel = "llama3_rope_scaling_f16";

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// One token per byte: byte b has the id b, turned by `shift`. With BOS, if asked for, 1 in front of a text.
std::string byte_tokenizer(int shift, bool bos) {
  json vocabulary = json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string letter;
    lm::append_utf8(letter, lm::kByteLetters[static_cast<std::size_t>(byte)]);
    vocabulary[letter] = (byte + shift) % 256;
  }
  json tokenizer = {{"version", "1.0"},
                    {"added_tokens", json::array()},
                    {"normalizer", nullptr},
                    {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
                    {"decoder", {{"type", "ByteLevel"}}},
                    {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}};
  if (bos) {
    std::string letter;
    lm::append_utf8(letter, lm::kByteLetters[1]);
    const json special = {{"SpecialToken", {{"id", letter}, {"type_id", 0}}}};
    const json sequence = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
    tokenizer["added_tokens"] = {{{"id", 1},
                                  {"content", letter},
                                  {"special", true},
                                  {"single_word", false},
                                  {"lstrip", false},
                                  {"rstrip", false},
                                  {"normalized", false}}};
    tokenizer["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single", {special, sequence}},
        {"pair", {special, sequence}},
        {"special_tokens", {{letter, {{"id", letter}, {"ids", {1}}, {"tokens", {letter}}}}}}};
  }
  return tokenizer.dump();
}

/// The small model with a tokenizer.
class SmallModel {
 public:
  explicit SmallModel(int shift = 0, bool bos = false) {
    const auto source = testing::find_torch_model(kModel);
    if (!source) throw std::runtime_error(testing::missing_torch_model(kModel));
    for (const char* file : {"config.json", "model.safetensors"}) {
      folder_.write(file, read(std::filesystem::path(*source) / file));
    }
    folder_.write("tokenizer.json", byte_tokenizer(shift, bos));
  }
  LanguageModel load(const LanguageModelOptions& options = {.fast = false}) const {
    return LanguageModel::load(folder_.path(), options);
  }
  /// Takes the last rows of the embedding and of the output away, and the tokenizer.
  void shrink_vocabulary(std::size_t tokens) const {
    const std::string bytes = read(folder_.path() / "model.safetensors");
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
    const json header = json::parse(bytes.substr(8, header_bytes));
    json smaller = json::object();
    std::string data;
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const auto begin = entry.at("data_offsets").at(0).get<std::size_t>();
      std::size_t size = entry.at("data_offsets").at(1).get<std::size_t>() - begin;
      json changed = entry;
      if (entry.at("shape").at(0) == 256 && (name.find("embed") != std::string::npos || name == "lm_head.weight")) {
        changed["shape"][0] = tokens;
        size = size / 256 * tokens;
      }
      changed["data_offsets"] = {data.size(), data.size() + size};
      data += bytes.substr(8 + header_bytes + begin, size);
      smaller[name] = changed;
    }
    std::string text = smaller.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t text_bytes = text.size();
    std::string file(8, '\0');
    std::memcpy(file.data(), &text_bytes, sizeof text_bytes);
    folder_.write("model.safetensors", file + text + data);
    json config = json::parse(read(folder_.path() / "config.json"));
    config["vocab_size"] = tokens;
    folder_.write("config.json", config.dump());
    std::filesystem::remove(folder_.path() / "tokenizer.json");
  }

 private:
  testing::TempDir folder_;
};

std::string some_text(std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += "The fire was out, and so to bed; " + std::to_string(text.size()) + " sheep. ";
  text.resize(bytes);
  return text;
}

std::vector<double> log_softmax(std::span<const float> logits) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  std::vector<double> logs;
  for (const float logit : logits) logs.push_back(static_cast<double>(logit) - std::log(sum));
  return logs;
}

/// What measure_divergence promises, from the logits of whole windows.
DivergenceReport computed(const LanguageModel& reference, const LanguageModel& other, std::vector<TokenId> ids,
                          bool bos) {
  DivergenceReport report;
  std::vector<double> divergences;
  double reference_surprise = 0, surprise = 0;
  const std::size_t vocabulary = reference.vocabulary();
  for (std::size_t begin = 0; begin + kWindow <= ids.size(); begin += kWindow, ++report.windows) {
    if (bos) ids[begin] = 1;
    const std::span<const TokenId> window = std::span(ids).subspan(begin, kWindow);
    std::vector<float> p_logits(kWindow * vocabulary), q_logits(kWindow * vocabulary);
    Sequence p_sequence(reference, {.context = kWindow, .cache = CacheKind::float32});
    Sequence q_sequence(other, {.context = kWindow, .cache = CacheKind::float32});
    p_sequence.append(window, p_logits);
    q_sequence.append(window, q_logits);
    for (std::size_t i = kWindow / 2; i + 1 < kWindow; ++i) {
      const std::vector<double> p = log_softmax(std::span(p_logits).subspan(i * vocabulary, vocabulary));
      const std::vector<double> q = log_softmax(std::span(q_logits).subspan(i * vocabulary, vocabulary));
      double sum = 0;
      for (std::size_t token = 0; token < vocabulary; ++token) sum += std::exp(p[token]) * (p[token] - q[token]);
      divergences.push_back(sum);
      reference_surprise -= p[static_cast<std::size_t>(window[i + 1])];
      surprise -= q[static_cast<std::size_t>(window[i + 1])];
      report.same_top +=
          std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin();
    }
  }
  std::sort(divergences.begin(), divergences.end());
  report.tokens_scored = divergences.size();
  const auto count = static_cast<double>(divergences.size());
  for (const double one : divergences) report.mean += one / count;
  // An odd number of positions: the one in the middle.
  EXPECT_EQ(divergences.size() % 2, 1u);
  report.median = divergences[divergences.size() / 2];
  report.largest = divergences.back();
  report.reference_perplexity = std::exp(reference_surprise / count);
  report.perplexity = std::exp(surprise / count);
  report.same_top /= count;
  for (std::size_t bin = 0; bin < kDivergenceBins; ++bin) {
    const double begin = divergence_bin_start(bin);
    const double end = bin + 1 == kDivergenceBins ? HUGE_VAL : divergence_bin_start(bin + 1);
    report.histogram.push_back(static_cast<std::uint64_t>(
        std::count_if(divergences.begin(), divergences.end(), [&](double one) { return one >= begin && one < end; })));
  }
  return report;
}

void expect_same(const DivergenceReport& report, const DivergenceReport& wanted) {
  EXPECT_EQ(report.windows, wanted.windows);
  EXPECT_EQ(report.tokens_scored, wanted.tokens_scored);
  EXPECT_NEAR(report.mean, wanted.mean, 1e-5 * wanted.mean);
  EXPECT_NEAR(report.median, wanted.median, 1e-4 * wanted.median);
  EXPECT_NEAR(report.largest, wanted.largest, 1e-4 * wanted.largest);
  EXPECT_GE(report.percentile_99, report.median);
  EXPECT_LE(report.percentile_99, report.largest);
  EXPECT_NEAR(report.reference_perplexity, wanted.reference_perplexity, 1e-6 * wanted.reference_perplexity);
  EXPECT_NEAR(report.perplexity, wanted.perplexity, 1e-6 * wanted.perplexity);
  EXPECT_DOUBLE_EQ(report.same_top, wanted.same_top);
  // A value at the edge of a bin may fall to either side.
  ASSERT_EQ(report.histogram.size(), kDivergenceBins);
  std::uint64_t counted = 0, moved = 0;
  for (std::size_t bin = 0; bin < kDivergenceBins; ++bin) {
    counted += report.histogram[bin];
    moved +=
        std::max(report.histogram[bin], wanted.histogram[bin]) - std::min(report.histogram[bin], wanted.histogram[bin]);
  }
  EXPECT_EQ(counted, report.tokens_scored);
  EXPECT_LE(moved, 2u);
}

TEST(Divergence, IsTheSumOverLogSoftmax) {
  const std::string text = some_text(7 * kWindow + 5);
  for (const bool bos : {false, true}) {
    const SmallModel files(0, bos);
    // Exact: how activations are rounded may depend on how many tokens go together, which is not what this is about.
    const LanguageModel reference = files.load();
    const LanguageModel coarse = files.load({.type = BlockFormat::q4_0, .fast = false});
    std::vector<TokenId> ids(text.begin(), text.end());
    if (bos) ids.insert(ids.begin(), 1);
    const DivergenceReport wanted = computed(reference, coarse, ids, bos);
    ASSERT_EQ(wanted.tokens_scored, 7 * (kWindow / 2 - 1));
    EXPECT_GT(wanted.mean, 1e-6);
    std::size_t seen = 0;
    const DivergenceReport report = measure_divergence(
        reference, coarse, text, {.context = kWindow, .progress = [&](std::size_t done, std::size_t total) {
                                    EXPECT_EQ(done, ++seen);
                                    EXPECT_EQ(total, 7u);
                                  }});
    expect_same(report, wanted);
    EXPECT_EQ(seen, 7u);
    const PerplexityReport perplexity = measure_perplexity(coarse, text, {.context = kWindow});
    EXPECT_NEAR(perplexity.perplexity, report.perplexity, 1e-5 * report.perplexity);
    EXPECT_EQ(perplexity.tokens_scored, report.tokens_scored);
  }
}

TEST(Divergence, OfAModelFromItselfIsZero) {
  const SmallModel files;
  const LanguageModel model = files.load(), coarse = files.load({.type = BlockFormat::q8_0});
  const LanguageModel* const others[] = {&coarse, &model};
  const std::string text = some_text(200);
  const std::vector<DivergenceReport> reports = measure_divergence(model, others, text, {.context = kWindow});
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[1].mean, 0);
  EXPECT_EQ(reports[1].largest, 0);
  EXPECT_EQ(reports[1].same_top, 1);
  EXPECT_EQ(reports[1].histogram[0], reports[1].tokens_scored) << "zeros are in the first bin";
  EXPECT_EQ(reports[1].perplexity, reports[1].reference_perplexity);
  EXPECT_GT(reports[0].mean, 0) << "each report belongs to its model";
}

TEST(Divergence, DoesNotDependOnThreads) {
  const SmallModel files;
  const LanguageModel model = files.load(), coarse = files.load({.type = BlockFormat::q4_0});
  const std::string text = some_text(300);
  const DivergenceReport one = measure_divergence(model, coarse, text, {.context = kWindow});
  set_thread_count(2);
  const DivergenceReport two = measure_divergence(model, coarse, text, {.context = kWindow});
  set_thread_count(1);
  EXPECT_EQ(one.mean, two.mean);
  EXPECT_EQ(one.perplexity, two.perplexity);
  EXPECT_EQ(one.percentile_99, two.percentile_99);
}

TEST(Divergence, NeedsOneVocabulary) {
  const SmallModel files, turned(1), fewer;
  fewer.shrink_vocabulary(200);
  const LanguageModel model = files.load();
  const auto refused = [&](const LanguageModel& other, std::string_view text) -> std::string {
    try {
      measure_divergence(model, other, text, {.context = kWindow});
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no UsageError";
  };
  EXPECT_EQ(refused(fewer.load(), some_text(100)),
            "the vocabularies differ: 256 tokens in the reference, 200 in the other model");
  EXPECT_NE(refused(turned.load(), some_text(100)).find("first at token 0"), std::string::npos);
  EXPECT_NE(refused(model, "few words").find("fewer than one window of 32"), std::string::npos);
}

}  // namespace
}  // namespace imago
