// imago rerank: which documents answer a query, by a cross-encoder.

#include <numeric>

#include "model_options.h"

namespace imago::cli {

namespace {

struct RerankCommand {
  ModelOptions model;
  CommonOptions common;
  std::string query, documents;
  std::size_t top = 0;
};

/// The lines of a file that are not empty.
std::vector<std::string> lines_of(const std::string& path) {
  const std::string text = read_text(path);
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) lines.push_back(std::move(line));
    at = end + 1;
  }
  if (lines.empty()) throw UsageError(fmt::format("{} has no documents: it needs one on each line", printable(path)));
  return lines;
}

void rerank(const RerankCommand& options) {
  const std::vector<std::string> documents = lines_of(options.documents);
  set_thread_count(options.common.threads);
  const auto model = std::make_shared<LanguageModel>(load_model(options.model));
  const Tokenizer& tokenizer = model->require_tokenizer();
  std::vector<TextPair> pairs;
  std::size_t longest = 0, tokens = 0;
  for (const std::string& document : documents) {
    pairs.push_back(encode_pair(tokenizer, options.query, document));
    longest = std::max(longest, pairs.back().ids.size());
    tokens += pairs.back().ids.size();
  }
  Engine engine(model, {.context = std::min(longest, model->max_positions()), .parallel = 1});
  Progress progress(options.common.quiet);
  const std::vector<float> scores = engine.score(
      pairs, {.progress = [&](std::size_t done, std::size_t all) { progress.show(done, all, "documents"); }});
  std::vector<std::size_t> order(documents.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return scores[i]; });
  if (options.top != 0 && options.top < order.size()) order.resize(options.top);
  if (options.common.json) {
    Json results = Json::array();
    for (const std::size_t i : order) {
      results.push_back({{"index", i}, {"relevance_score", scores[i]}, {"document", documents[i]}});
    }
    return print_json({{"results", results}, {"tokens", tokens}});
  }
  for (const std::size_t i : order) print(fmt::format("{:9.4f}  {}\n", scores[i], printable(documents[i])));
}

}  // namespace

Command add_rerank(CLI::App& program) {
  CLI::App* command = program.add_subcommand("rerank", "Sort documents by how well they answer a query");
  const auto options = std::make_shared<RerankCommand>();
  options->model.fast = false;  // scores are compared with those of other programs
  add_model(*command, options->model);
  add_value(*command, "--query", options->query, "TEXT", "What is asked for")->required();
  add_file(*command, "--documents", options->documents, "A file with one document on each line")->required();
  add_number(*command, "--top", options->top, 1, 1 << 30, "How many documents to show (default: all)");
  add_common(*command, options->common);
  command->footer(
      "The model must be a cross-encoder: a classifier with one score for two texts.\n\n"
      "Examples:\n  imago rerank folder --query 'What is a panda?' --documents pages.txt --top 3");
  return {command, [options] {
            options->model.quiet = options->common.quiet;
            rerank(*options);
          }};
}

}  // namespace imago::cli
