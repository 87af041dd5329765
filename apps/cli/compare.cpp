// imago compare: compare two models layer by layer and, on a text or on data, by their outputs.

#include "command.h"
#include "imago/precision.h"

namespace imago::cli {

namespace {

struct CompareCommand : CommonOptions {
  std::string a, b, text, html;
  CompareOptions request;
  DataOptions data;
  LoadOptions load;
  bool strict = false;
};

// ---- as JSON

Json number_or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json layers_json(const ModelComparison& comparison) {
  Json layers = Json::array();
  for (const ComparedTensor& tensor : comparison.tensors) {
    Json layer = {{"name", printable(tensor.name)},
                  {"type_a", printable(tensor.type_a)},
                  {"type_b", printable(tensor.type_b)},
                  {"cosine", number_or_null(tensor.cosine)},
                  {"rmse", number_or_null(tensor.rmse)},
                  {"relative_rmse", number_or_null(tensor.relative_rmse)},
                  {"weights", tensor.weights},
                  {"bytes_a", tensor.bytes_a},
                  {"bytes_b", tensor.bytes_b}};
    if (comparison.of_networks) {
      layer["layer_a"] = tensor.layer_a;
      layer["layer_b"] = tensor.layer_b;
    }
    if (!tensor.problem.empty()) layer["problem"] = tensor.problem;
    layers.push_back(std::move(layer));
  }
  return layers;
}

Json shifts_json(const ModelComparison& comparison) {
  Json shifts = Json::array();
  const auto place = [](const Coordinates& at) { return Json{at.z, at.y, at.x, at.l}; };
  for (const ShiftedLayer& shift : comparison.logic_shifts) {
    shifts.push_back({{"source", shift.source},
                      {"target", shift.target},
                      {"overlap", shift.overlap},
                      {"source_at", place(shift.source_at)},
                      {"target_at", place(shift.target_at)}});
  }
  return shifts;
}

Json names_json(const std::vector<std::string>& names) {
  Json list = Json::array();
  for (const std::string& name : names) list.push_back(printable(name));
  return list;
}

void add_score(const ComparedModel& model, const std::string& side, Json& object) {
  if (!model.score) return;
  object["loss_" + side] = model.score->loss;
  if (model.score->accuracy) object["accuracy_" + side] = *model.score->accuracy;
}

Json to_json(const ModelComparison& comparison, const CompareCommand& options) {
  const ComparedModel &a = comparison.a, &b = comparison.b;
  Json object = {{"overall", comparison.overall},
                 {"layers", layers_json(comparison)},
                 {"logic_shifts", shifts_json(comparison)},
                 {"only_a", a.only.size()},
                 {"only_b", b.only.size()},
                 {"names_only_a", names_json(a.only)},
                 {"names_only_b", names_json(b.only)},
                 {"bytes_a", a.bytes},
                 {"bytes_b", b.bytes},
                 {"bits_per_weight_a", a.bits_per_weight()},
                 {"bits_per_weight_b", b.bits_per_weight()}};
  if (const auto& divergence = comparison.divergence) {
    object["perplexity_a"] = divergence->reference_perplexity;
    object["perplexity_b"] = divergence->perplexity;
    object["tokens_scored"] = divergence->tokens_scored;
    object["windows"] = divergence->windows;
    object["arithmetic"] = arithmetic(options.request.fast);
    add_divergence(*divergence, object);
  }
  add_score(a, "a", object);
  add_score(b, "b", object);
  return object;
}

// ---- for people

std::string layer_table(const ModelComparison& comparison) {
  using enum Table::Align;
  std::vector<Table::Column> columns = {{comparison.of_networks ? "layer" : "tensor"}};
  if (comparison.of_networks) columns.push_back({"kind"});
  columns.insert(columns.end(), {{"type in A"}, {"type in B"}, {"cosine", right}, {"rmse", right}, {"error", right}});
  Table table(std::move(columns));
  for (const ComparedTensor& tensor : comparison.tensors) {
    std::vector<std::string> cells = {printable(tensor.name)};
    if (comparison.of_networks) {
      cells.push_back(tensor.layer_a == tensor.layer_b ? tensor.layer_a
                                                       : fmt::format("{} / {}", tensor.layer_a, tensor.layer_b));
    }
    cells.push_back(printable(tensor.type_a));
    cells.push_back(printable(tensor.type_b));
    cells.push_back(tensor.cosine ? fmt::format("{:.6f}", *tensor.cosine) : "–");
    cells.push_back(tensor.rmse ? fmt::format("{:.3g}", *tensor.rmse) : "–");
    cells.push_back(tensor.relative_rmse ? fmt::format("{:.3g} %", 100 * *tensor.relative_rmse) : tensor.problem);
    table.add(std::move(cells));
  }
  return table.text();
}

std::string score_text(const ModelComparison& comparison) {
  std::string text;
  const ComparedModel &a = comparison.a, &b = comparison.b;
  text += fact("size", fmt::format("{} → {}, {:.2f} → {:.2f} bits per weight", format_bytes(a.bytes),
                                   format_bytes(b.bytes), a.bits_per_weight(), b.bits_per_weight()));
  if (const auto& divergence = comparison.divergence) {
    text +=
        fact("perplexity", fmt::format("{:.4f} → {:.4f}", divergence->reference_perplexity, divergence->perplexity));
    text +=
        fact("KL divergence", fmt::format("mean {:.4g}, median {:.4g}, 99 % {:.4g}, largest {:.4g}", divergence->mean,
                                          divergence->median, divergence->percentile_99, divergence->largest));
    text += fact("same top token", fmt::format("{:.2f} % of {} positions", 100 * divergence->same_top,
                                               format_count(divergence->tokens_scored)));
  }
  if (a.score && b.score) {
    text += fact("loss", fmt::format("{:.5g} → {:.5g} ({})", a.score->loss, b.score->loss, name(b.score->loss_kind)));
    if (a.score->accuracy && b.score->accuracy) {
      text += fact("accuracy", fmt::format("{:.2f} % → {:.2f} %", 100 * *a.score->accuracy, 100 * *b.score->accuracy));
    }
  }
  return text;
}

std::string to_text(const ModelComparison& comparison) {
  const std::string_view things = comparison.of_networks ? "layers" : "tensors";
  std::string text = fmt::format("{} {:.6f}\n{}\n{}", bold("Overall"), comparison.overall, score_text(comparison),
                                 layer_table(comparison));
  const auto only = [&](const ComparedModel& model, char which, char other) {
    if (model.only.empty()) return;
    text += fmt::format("\n{} {} of {} have no counterpart in {}: {}\n", model.only.size(), things, which, other,
                        shortened(printable(join(model.only, ", ")), 200));
  };
  only(comparison.a, 'A', 'B');
  only(comparison.b, 'B', 'A');
  if (!comparison.logic_shifts.empty()) text += fmt::format("\n{}\n", bold("Found elsewhere"));
  for (const ShiftedLayer& shift : comparison.logic_shifts) {
    text += fmt::format("{} of A is most like {} of B: {:.6f}\n", shift.source, shift.target, shift.overlap);
  }
  return text;
}

// ---- the work

ModelComparison compare_network_files(const CompareCommand& options) {
  Network a = load_runnable(options.a, options.load), b = load_runnable(options.b, options.load);
  const std::optional<Dataset> data = load_data(options.data);
  ModelComparison comparison = compare_layers(a, b, options.strict);
  comparison.a.path = options.a;
  comparison.b.path = options.b;
  if (data) {
    const auto score = [&](Network& network, ComparedModel& compared) {
      blame(fmt::format("{} on {}", compared.path, options.data.path),
            [&] { compared.score = score_network(network, *data, options.data.loss); });
    };
    score(a, comparison.a);
    score(b, comparison.b);
  }
  return comparison;
}

ModelComparison compare_tensor_files(const CompareCommand& options) {
  if (!options.data.path.empty()) throw UsageError("--data is for networks of layers; language models take --text");
  CompareOptions request = options.request;
  if (!options.text.empty()) request.text = read_text(options.text);
  PhasedProgress progress(options.quiet);
  request.progress = std::ref(progress);
  const auto work = [&] { return compare_models(options.a, options.b, request); };
  return options.text.empty() ? work()
                              : blame(fmt::format("{} and {} on {}", options.a, options.b, options.text), work);
}

ModelComparison compare(const CompareCommand& options) {
  // A network that is a language model is compared as one on a text, and with any other form of it.
  const bool networks = options.text.empty() && holds_network(options.a) && holds_network(options.b);
  return networks ? compare_network_files(options) : compare_tensor_files(options);
}

void run_compare(const CompareCommand& options) {
  set_thread_count(options.threads);
  if (!options.html.empty()) check_folder(options.html);
  const ModelComparison comparison = compare(options);
  if (!options.html.empty()) write_report_html(report_of(comparison), options.html);
  options.json ? print_json(to_json(comparison, options)) : print(to_text(comparison));
}

}  // namespace

Command add_compare(CLI::App& program) {
  CLI::App* command = program.add_subcommand("compare", "Compare two models layer by layer, and by their outputs");
  const auto options = std::make_shared<CompareCommand>();
  command->add_option("A", options->a, "The original: a model in any format")->required();
  command->add_option("B", options->b, "Another version of it")->required();
  add_file(*command, "--text", options->text,
           "For language models, also saved as networks: a text on which predictions are compared");
  add_number(*command, "--ctx", options->request.context, 4, 1 << 24, "Tokens per window of the text (default: 512)");
  add_data(*command, options->data);
  add_file(*command, "--html", options->html, "Write an HTML page with charts (default: none)");
  command->add_flag("--strict", options->strict, "Do not compare layers of different types (default: compare them)");
  add_arithmetic(*command, options->request.fast);
  add_fp4_legacy(*command, options->load);
  add_common(*command, *options);
  command->footer(
      "A is the reference. Tensors of language models are matched by their role, whatever the file format.\n"
      "Examples:\n  imago compare folder small.gguf --text book.txt --html report.html\n"
      "  imago compare float32.json int8.json --data test.csv\n  imago compare a.safetensors b.gguf --json");
  return {command, [options] { run_compare(*options); }};
}

}  // namespace imago::cli
