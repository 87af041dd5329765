// imago sweep: measure a model in many types.

#include "command.h"
#include "imago/precision.h"

namespace imago::cli {

namespace {

struct SweepCommand : CommonOptions {
  std::string model, text, html;
  SweepOptions request;
  DataOptions data;
  LoadOptions load;
};

// ---- the report

Json to_json(const SweepReport& report) {
  Json points = Json::array();
  for (const SweepPoint& point : report.points) {
    Json entry = {{"type", printable(point.name)},
                  {"plan", point.is_plan},
                  {"bytes", point.bytes},
                  {"bits_per_weight", point.bits_per_weight},
                  {"relative_rmse", point.relative_rmse ? Json(*point.relative_rmse) : Json(nullptr)},
                  {"front", point.on_front}};
    if (const auto& divergence = point.divergence) {
      entry["perplexity"] = divergence->perplexity;
      add_divergence(*divergence, entry);
    }
    if (point.score) entry["loss"] = point.score->loss;
    if (point.score && point.score->accuracy) entry["accuracy"] = *point.score->accuracy;
    points.push_back(std::move(entry));
  }
  Json object = {{"model", report.model},
                 {"architecture", report.architecture},
                 {"type", report.type},
                 {"parameters", report.parameters},
                 {"bytes", report.bytes}};
  if (report.perplexity) object["perplexity"] = *report.perplexity;
  if (report.score) object["loss"] = report.score->loss;
  if (report.score && report.score->accuracy) object["accuracy"] = *report.score->accuracy;
  object["points"] = std::move(points);
  return object;
}

std::string to_text(const SweepReport& report) {
  using enum Table::Align;
  const bool text = report.perplexity.has_value(), data = report.score.has_value();
  std::vector<Table::Column> columns = {{""}, {"type"}, {"size", right}, {"bits", right}};
  if (text)
    columns.insert(columns.end(), {{"KL mean", right}, {"KL 99 %", right}, {"perplexity", right}, {"same top", right}});
  if (data) columns.insert(columns.end(), {{"loss", right}, {"accuracy", right}});
  columns.push_back({"weight error", right});
  Table table(std::move(columns));
  for (const SweepPoint& point : report.points) {
    std::vector<std::string> cells = {point.on_front ? "*" : "", printable(point.name), format_bytes(point.bytes),
                                      fmt::format("{:.2f}", point.bits_per_weight)};
    if (text) {
      const DivergenceReport divergence = point.divergence.value_or(DivergenceReport());
      cells.push_back(fmt::format("{:.6f}", divergence.mean));
      cells.push_back(fmt::format("{:.4g}", divergence.percentile_99));
      cells.push_back(fmt::format("{:.4f}", divergence.perplexity));
      cells.push_back(fmt::format("{:.2f} %", 100 * divergence.same_top));
    }
    if (data) {
      const NetworkScore score = point.score.value_or(NetworkScore());
      cells.push_back(fmt::format("{:.5g}", score.loss));
      cells.push_back(score.accuracy ? fmt::format("{:.2f} %", 100 * *score.accuracy) : "–");
    }
    cells.push_back(point.relative_rmse ? fmt::format("{:.3g} %", 100 * *point.relative_rmse) : "–");
    table.add(std::move(cells));
  }
  std::string what = fmt::format("{} weights, {}, {}", format_count(report.parameters), printable(report.type),
                                 format_bytes(report.bytes));
  if (text) what += fmt::format(", perplexity {:.4f}", *report.perplexity);
  if (data) what += fmt::format(", loss {:.5g}", report.score->loss);
  return fmt::format("{}\n{}\n\n{}\n{}", bold(printable(report.model)), what, table.text(),
                     dim("* no other point is both smaller and better\n"));
}

// ---- the work

SweepReport sweep_network_file(const SweepCommand& options, SweepOptions request) {
  if (!options.text.empty()) {
    throw UsageError("--text is for language models; networks of layers are judged on --data");
  }
  Network network = load_runnable(options.model, options.load);
  const std::optional<Dataset> data = load_data(options.data);
  Progress progress(options.quiet);
  request.progress = std::ref(progress);
  const std::string where = data ? fmt::format("{} on {}", options.model, options.data.path) : options.model;
  SweepReport report =
      blame(where, [&] { return sweep_network(network, data ? &*data : nullptr, options.data.loss, request); });
  report.model = options.model;
  return report;
}

SweepReport sweep_language_model(const SweepCommand& options, SweepOptions request) {
  if (!options.data.path.empty()) throw UsageError("--data is for networks of layers; language models take --text");
  std::optional<std::string> text;
  if (!options.text.empty()) text = read_text(options.text);
  Progress progress(options.quiet);
  std::string expected;
  request.estimate = [&](const SweepEstimate& estimate) {
    const int seconds = static_cast<int>(estimate.seconds + 0.5);
    expected = fmt::format("{} models in {} rounds, about {}:{:02} and {} of memory", estimate.models, estimate.rounds,
                           seconds / 60, seconds % 60, format_bytes(estimate.memory_bytes));
  };
  request.progress = [&](std::string_view what, std::size_t done, std::size_t total) {
    progress.show(done, total, fmt::format("{} ({})", printable(what), expected));
  };
  return blame(text ? fmt::format("{} on {}", options.model, options.text) : options.model,
               [&] { return sweep_model(options.model, text, request); });
}

void run_sweep(const SweepCommand& options) {
  set_thread_count(options.threads);
  if (!options.html.empty()) check_folder(options.html);
  const SweepReport report = options.text.empty() && holds_network(options.model)
                                 ? sweep_network_file(options, options.request)
                                 : sweep_language_model(options, options.request);
  if (!options.html.empty()) write_report_html(report_of(report), options.html);
  options.json ? print_json(to_json(report)) : print(to_text(report));
}

}  // namespace

Command add_sweep(CLI::App& program) {
  CLI::App* command = program.add_subcommand("sweep", "Try a model in many types: size, quality, and what is best");
  const auto options = std::make_shared<SweepCommand>();
  command->add_option("MODEL", options->model, "A GGUF file, a Hugging Face folder, a checkpoint or an .entity file")
      ->required();
  SweepOptions& request = options->request;
  add_parsed(*command, "--types", request.types, parse_format, "TYPE,TYPE",
             "Types to try, for example q4_k,q6_k (default: the usual ones; for networks the 21 dtypes)")
      ->delimiter(',');
  add_file(*command, "--plan", request.plans, "A plan to try as well; repeatable")->allow_extra_args(false);
  add_file(*command, "--text", options->text,
           "For language models: a text to judge by (default: errors of the weights)");
  add_number(*command, "--ctx", request.context, 4, 1 << 24, "Tokens per window of the text (default: 512)");
  add_data(*command, options->data);
  add_file(*command, "--importance", request.calibration, "A file of 'imago calibrate' (default: round without it)");
  command->add_flag("--mix", request.mix,
                    "The usual mix of each type (default: every matrix takes it, as with --pure)");
  add_granularity(*command, request.granularity, "Dtypes have one scale per tensor, row or block (default: tensor)");
  command->add_option("--group", request.group, "Weights per scale with --granularity block (default: 32)")
      ->check(CLI::IsMember({32, 64, 128}));
  add_file(*command, "--html", options->html, "Write an HTML page with charts (default: none)");
  add_arithmetic(*command, request.fast);
  add_fp4_legacy(*command, options->load);
  add_common(*command, *options);
  command->footer(
      "Only the page is written. Sizes are those of the tensors that 'imago morph --pure' would write.\n"
      "Examples:\n  imago sweep folder --text book.txt --html sweep.html\n"
      "  imago sweep model.gguf --types q4_k,q5_k,q6_k --text book.txt\n"
      "  imago sweep net.json --data test.csv");
  return {command, [options] { run_sweep(*options); }};
}

}  // namespace imago::cli
