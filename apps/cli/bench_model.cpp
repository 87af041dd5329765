// imago bench MODEL.

#include "model_options.h"

namespace imago::cli {

namespace {

Json to_json(const ModelBench& options, const LanguageModel& model, const std::vector<ModelBenchResult>& results) {
  Json list = Json::array();
  for (const ModelBenchResult& result : results) {
    list.push_back({{"test", result.test},
                    {"tokens_per_second", result.tokens_per_second},
                    {"stddev", result.stddev},
                    {"gb_per_s", result.gb_per_s}});
  }
  return {{"model", options.model.path},
          {"architecture", model.architecture()},
          {"type", model.type()},
          {"parameters", model.parameters()},
          {"bytes", model.bytes()},
          {"threads", thread_count()},
          {"arithmetic", arithmetic(options.model.fast)},
          {"notes", model.notes()},
          {"device", options.model.device.empty() ? "cpu" : options.model.device},
          {"results", list}};
}

std::string to_text(const ModelBench& options, const LanguageModel& model,
                    const std::vector<ModelBenchResult>& results) {
  using enum Table::Align;
  const std::optional<std::size_t> layers = options.model.gpu_layers;
  const bool splits = layers && *layers != std::numeric_limits<std::size_t>::max();
  std::string device;
  if (!options.model.device.empty()) {
    device = fmt::format(", {}on {}", splits ? fmt::format("{} layers ", *layers) : "", options.model.device);
  }
  Table table({{"test"}, {"tokens/s", right}, {"±", right}, {"GB/s", right}});
  for (const ModelBenchResult& result : results) {
    table.add({result.test, fmt::format("{:.2f}", result.tokens_per_second), fmt::format("{:.2f}", result.stddev),
               result.gb_per_s == 0 ? "" : fmt::format("{:.1f}", result.gb_per_s)});
  }
  return fmt::format("{}: {}, {}, {} parameters, {} in memory, {} arithmetic, {}{}\n{}", options.model.path,
                     model.architecture(), model.type(), format_count(model.parameters()), format_bytes(model.bytes()),
                     arithmetic(options.model.fast), counted(thread_count(), "thread"), device, table.text());
}

}  // namespace

void add_model_bench(CLI::App& command, ModelBench& options) {
  add_number(command, "-p,--prompt,--n-prompt", options.bench.prompt, 0, 1 << 24,
             "Models: tokens of a prompt (default: 512)");
  add_number(command, "-n,--generate,--n-gen", options.bench.generate, 0, 1 << 24,
             "Models: tokens to generate (default: 128)");
  add_number(command, "-r,--repeats,--repetitions", options.bench.repeats, 1, 1000, "Models: repetitions (default: 3)");
  add_model_settings(command, options.model);
}

void bench_language_model(const ModelBench& options, bool json) {
  const LanguageModel model = load_model(options.model);
  std::vector<ModelBenchResult> results;
  {
    Progress progress(options.model.quiet);
    ModelBenchOptions bench = options.bench;
    bench.progress = std::ref(progress);
    results = bench_model(model, bench);
  }
  json ? print_json(to_json(options, model, results)) : print(to_text(options, model, results));
}

}  // namespace imago::cli
