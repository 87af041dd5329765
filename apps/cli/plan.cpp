// imago plan: choose a type for each tensor within a budget, by measuring.

#include <unistd.h>

#include <cstdio>

#include "imago/precision.h"
#include "model_options.h"

namespace imago::cli {

namespace {

struct PlanCommand : CommonOptions {
  std::string model, text, data, out;
  PlanOptions request;
  DatasetOptions columns;
};

std::string duration(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  return fmt::format("{:.0f} min", seconds / 60);
}

// ---- the report

bool of_network(const PlanReport& report) { return report.windows == 0; }

Json quality_json(const PlanQuality& quality, bool network) {
  Json json = {{network ? "loss_added" : "kl", quality.added}, {network ? "loss" : "perplexity", quality.level}};
  if (quality.accuracy) json["accuracy"] = *quality.accuracy;
  return json;
}

Json to_json(const PlanReport& report, const PlanCommand& options) {
  const bool network = of_network(report);
  Json tensors = Json::array();
  for (const TensorChoice& tensor : report.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"type", tensor.type.name()},
                       {"weights", tensor.weights},
                       {"bytes", tensor.bytes},
                       {network ? "loss_added" : "kl", tensor.added}});
  }
  Json json = {{"model", options.model},
               {"plan", options.out},
               {"weights", report.weights},
               {"bytes", report.bytes},
               {"budget_bytes", report.budget_bytes},
               {"bits_per_weight", report.bits_per_weight()},
               {"predicted", report.predicted},
               {"original", quality_json(report.original, network)},
               {"measured", quality_json(report.measured, network)},
               {"uniform", nullptr},
               {"kept_uniform", report.kept_uniform},
               {"windows_measured", report.windows},
               {"windows_judged", report.judged_windows},
               {"seconds", report.seconds},
               {"memory_bytes", report.memory_bytes},
               {"tensors", tensors}};
  if (report.uniform_type) {
    json["uniform"] = quality_json(report.uniform, network);
    json["uniform"]["type"] = report.uniform_type->name();
    json["uniform"]["bytes"] = report.uniform_bytes;
  }
  return json;
}

std::string quality_text(const PlanQuality& quality, bool network) {
  std::string text = network ? fmt::format("loss {:.6g} ({:+.3g})", quality.level, quality.added)
                             : fmt::format("KL {:.6f}, perplexity {:.4f}", quality.added, quality.level);
  if (quality.accuracy) text += fmt::format(", accuracy {:.2f} %", 100 * *quality.accuracy);
  return text;
}

std::string tensor_table(const PlanReport& report) {
  using enum Table::Align;
  Table table({{of_network(report) ? "layer" : "tensor"},
               {"type"},
               {"bits", right},
               {"size", right},
               {of_network(report) ? "loss added" : "KL added", right}});
  for (const TensorChoice& tensor : report.tensors) {
    table.add({printable(tensor.name), std::string(tensor.type.name()), fmt::format("{:.3g}", tensor.type.bits()),
               format_bytes(tensor.bytes), fmt::format("{:.2e}", tensor.added)});
  }
  return table.text();
}

/// The commands that convert the model as it was measured.
std::string next_step(const PlanReport& report, const PlanCommand& options) {
  const std::string model = printable(options.model), plan = printable(options.out);
  if (of_network(report) || options.request.plain) return fmt::format("\nimago morph {} OUT --plan {}\n", model, plan);
  std::string text = "\n", calibration = printable(options.request.calibration);
  if (calibration.empty()) {
    calibration = "CALIBRATION.gguf";
    text += fmt::format("imago calibrate {} --text {} {}-o {}\n", model, printable(options.text),
                        report.plan.rounding == Rounding::compensated ? "--products " : "", calibration);
  }
  return text + fmt::format("imago morph {} OUT --plan {} --importance {}\n", model, plan, calibration);
}

std::string to_text(const PlanReport& report, const PlanCommand& options) {
  const bool network = of_network(report);
  std::string text =
      fmt::format("{}\n", bold(fmt::format("{} → {}", printable(options.model), printable(options.out))));
  text += fact("weights", fmt::format("{}, of {} tensors", format_count(report.weights), report.tensors.size()));
  text += fact("size", fmt::format("{} of at most {}", format_bytes(report.bytes), format_bytes(report.budget_bytes)));
  text += fact("bits per weight", fmt::format("{:.4f}", report.bits_per_weight()));
  text += fact("original",
               network ? quality_text(report.original, true) : fmt::format("perplexity {:.4f}", report.original.level));
  text += fact("predicted",
               network ? fmt::format("loss {:+.3g}", report.predicted) : fmt::format("KL {:.6f}", report.predicted));
  text += fact("measured", quality_text(report.measured, network));
  if (report.uniform_type) {
    text += fact(fmt::format("all {}", report.uniform_type->name()),
                 fmt::format("{}, {}", quality_text(report.uniform, network), format_bytes(report.uniform_bytes)));
  }
  text += fact("time", duration(report.seconds));
  text += fact("memory", format_bytes(report.memory_bytes));
  text += fmt::format("\n{}", tensor_table(report));
  if (report.kept_uniform) {
    text += fmt::format("\nnote: no mix was better than {} for all tensors, so that is the plan\n",
                        report.uniform_type->name());
  }
  return text + dim(next_step(report, options));
}

// ---- the work

PlanReport make_plan(const PlanCommand& options, const PlanOptions& request) {
  const FileForm form = detect_form(options.model);
  if (form == FileForm::architecture) {
    throw UsageError(fmt::format("{}: an architecture without weights; there is nothing to plan for", options.model));
  }
  if (options.text.empty() && holds_network(options.model)) {
    if (options.data.empty()) {
      throw UsageError(
          fmt::format("{} is a network of layers: give --data FILE to judge it on, or --text FILE if it is "
                      "a language model",
                      options.model));
    }
    const Dataset data = load_dataset(options.data, options.columns);
    return plan_network(options.model, data, options.data, request);
  }
  if (!options.data.empty()) {
    throw UsageError(fmt::format("{} is a language model: it is judged on --text FILE, not on --data", options.model));
  }
  if (options.text.empty()) {
    throw UsageError(fmt::format("{} is a language model: give --text FILE to judge it on", options.model));
  }
  return plan_model(options.model, read_text(options.text), options.text, request);
}

void plan(const PlanCommand& options) {
  PlanOptions request = options.request;
  set_thread_count(options.threads);
  PlanReport report;
  {
    Progress progress(options.quiet);
    request.on_estimate = [&](const PlanEstimate& estimate) {
      if (options.quiet || !is_terminal(STDERR_FILENO)) return;  // only for someone watching, like the progress bar
      fmt::print(stderr, "{} measurements: about {} and {} of memory\n", format_count(estimate.measurements),
                 duration(estimate.seconds), format_bytes(estimate.memory_bytes));
    };
    request.progress = std::ref(progress);
    report = make_plan(options, request);
  }
  write_plan(report.plan, options.out);
  options.json ? print_json(to_json(report, options)) : print(to_text(report, options));
}

}  // namespace

Command add_plan(CLI::App& program) {
  CLI::App* command = program.add_subcommand("plan", "Choose a type for each tensor within a budget, by measuring");
  const auto options = std::make_shared<PlanCommand>();
  command->add_option("MODEL", options->model, "A GGUF file, a Hugging Face folder, a checkpoint or .entity file")
      ->required();
  PlanOptions& request = options->request;
  CLI::Option* bits = add_value(*command, "--bits", request.bits, "X", "The budget: bits per weight of the matrices");
  add_value(*command, "--size", request.size, "BYTES", "The budget: bytes of all tensors")->excludes(bits);
  add_file(*command, "--text", options->text,
           "Text that a language model, also one saved as a network, is measured on");
  CLI::Option* data = add_file(*command, "--data", options->data, "Dataset that a network of layers is measured on");
  add_data_columns(*command, options->columns, data);
  add_parsed(*command, "--types", request.types, parse_format, "A,B,…",
             "Types to choose from (default: q2_k q3_k iq4_xs q4_k iq4_nl q5_k q6_k q8_0 float16; for networks all "
             "dtypes)")
      ->delimiter(',');
  command->add_option("--importance", request.calibration,
                      "A file of 'imago calibrate' (default: collected from the text)");
  command->add_flag("--plain", request.plain, "Round without importance (default: with)");
  const auto rounding = [](const std::string& text) {
    return one_of<Rounding>(
        "--method", text,
        {{"nearest", Rounding::nearest}, {"gptq", Rounding::compensated}, {"compensated", Rounding::compensated}});
  };
  add_parsed(*command, "--method", request.rounding, rounding, "METHOD",
             "nearest, or gptq: later columns compensate for the errors of earlier ones (default: gptq if the "
             "calibration allows it)");
  add_number(*command, "--ctx", request.context, 4, 1 << 20, "Tokens per window (default: 512)");
  add_number(*command, "--windows", request.windows, 1, 1 << 20,
             "Windows to measure on; twice as many others judge the plan (default: 8)");
  add_value(*command, "-o,--output", options->out, "PLAN.json", "The plan file to write (JSON)")->required();
  add_common(*command, *options);
  command->footer(
      "The plan is JSON that can be edited; 'imago morph IN OUT --plan PLAN.json' follows it.\n"
      "Examples:\n  imago plan model/ --bits 4.5 --text book.txt -o plan.json\n"
      "  imago plan net.json --bits 5 --data test.csv -o plan.json");
  return {command, [options] { plan(*options); }};
}

}  // namespace imago::cli
