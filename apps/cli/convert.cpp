// imago convert and imago morph: convert any model file to any other, and to other types.

#include <charconv>

#include "command.h"
#include "imago/models.h"

namespace imago::cli {

namespace {

struct ConvertCommand : CommonOptions {
  std::string in, out, method = "auto";
  ConvertOptions request;
  bool morph = false;
};

// ---- from the command line

std::pair<std::string, Format> tensor_type(const std::string& text) {
  const std::size_t at = text.rfind('=');  // types have none, patterns may
  if (at == std::string::npos || at == 0) {
    throw UsageError(fmt::format("--tensor-type {}: give a pattern and a type, as in 'ffn_down=q6_k'", text));
  }
  return {text.substr(0, at), parse_format(text.substr(at + 1))};
}

std::pair<std::size_t, LayerType> hint(const std::string& text) {
  const std::size_t at = text.find('=');
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + std::min(at, text.size()), index);
  if (error != std::errc() || at == std::string::npos || end != text.data() + at) {
    throw UsageError(fmt::format("--hint {}: give the place of a tensor and a layer type, as in '0=LSTM'", text));
  }
  return {index, parse_layer_type(text.substr(at + 1))};
}

/// By name; none: the library finds the best.
Choices<std::optional<Calibrator>> calibrators() {
  return {{"auto", std::nullopt},
          {"absmax", Calibrator::absmax},
          {"percentile", Calibrator::percentile},
          {"mse", Calibrator::mse},
          {"absmean", Calibrator::absmean}};
}

std::string calibrator_name(const ConvertReport& report) {
  const auto all = calibrators();
  return std::ranges::find(all, report.calibrator, &std::pair<std::string, std::optional<Calibrator>>::second)->first;
}

/// None for `auto`: the library chooses.
std::optional<Rounding> rounding_of(const ConvertCommand& options) {
  if (options.method == "auto") return std::nullopt;
  const auto rounding = one_of<Rounding>("--method", options.method,
                                         {{"nearest", Rounding::nearest},
                                          {"gptq", Rounding::compensated},
                                          {"awq", Rounding::scaled},
                                          {"plain", Rounding::nearest},
                                          {"compensated", Rounding::compensated},
                                          {"scaled", Rounding::scaled}});
  if (rounding != Rounding::nearest && options.request.calibration.empty()) {
    throw UsageError(fmt::format("--method {} needs --importance FILE: 'imago calibrate' makes one", options.method));
  }
  return rounding;
}

ConvertOptions to_library(const ConvertCommand& options) {
  ConvertOptions request = options.request;
  request.rounding = rounding_of(options);
  request.measure_error = options.morph || options.json;
  return request;
}

// ---- the report

TypeTotals totals_by_type(const ConvertReport& report) {
  TypeTotals totals;
  for (const ConvertedTensor& tensor : report.tensors) {
    totals.add(tensor.to_type, tensor.shape.elements(), tensor.to_bytes);
  }
  return totals;
}

Json to_json(const ConvertReport& report, const ConvertCommand& options, double seconds) {
  Json tensors = Json::array();
  for (const ConvertedTensor& tensor : report.tensors) {
    tensors.push_back(
        {{"name", tensor.name},
         {"shape", std::vector<std::size_t>(tensor.shape.extents().begin(), tensor.shape.extents().end())},
         {"from_type", tensor.from_type},
         {"type", tensor.to_type},
         {"from_bytes", tensor.from_bytes},
         {"bytes", tensor.to_bytes},
         {"error", tensor.relative_rmse ? Json(*tensor.relative_rmse) : Json(nullptr)},
         {"reason", tensor.reason}});
  }
  return {{"in", options.in},
          {"out", options.out},
          {"from", name(report.from)},
          {"to", name(report.to)},
          {"dry_run", options.request.dry_run},
          {"parameters", report.parameters},
          {"bytes_before", report.from_bytes},
          {"bytes_after", report.to_bytes},
          {"bits_per_weight_before", bits_per_weight(report.from_bytes, report.parameters)},
          {"bits_per_weight", bits_per_weight(report.to_bytes, report.parameters)},
          {"error", report.relative_rmse ? Json(*report.relative_rmse) : Json(nullptr)},
          {"calibrator", report.calibrator ? Json(calibrator_name(report)) : Json(nullptr)},
          {"seconds", seconds},
          {"types", totals_by_type(report).json()},
          {"tensors", tensors},
          {"notes", report.notes}};
}

std::string plan_table(const ConvertReport& report) {
  using enum Table::Align;
  Table table({{"tensor"}, {"shape", right}, {"from"}, {"to"}, {"size", right}, {"why"}});
  for (const ConvertedTensor& tensor : report.tensors) {
    table.add({printable(tensor.name), format_shape(tensor.shape), printable(tensor.from_type),
               printable(tensor.to_type), format_bytes(tensor.to_bytes), printable(tensor.reason)});
  }
  return table.text();
}

std::string to_text(const ConvertReport& report, const ConvertCommand& options, double seconds) {
  std::string text = fmt::format("{}\n", bold(fmt::format("{} → {}", printable(options.in), printable(options.out))));
  text += fact("format", fmt::format("{} → {}", name(report.from), name(report.to)));
  text += fact("parameters", format_count(report.parameters));
  text += fact("weights", fmt::format("{} → {}", format_bytes(report.from_bytes), format_bytes(report.to_bytes)));
  text += fact("bits per weight", fmt::format("{:.2f} → {:.2f}", bits_per_weight(report.from_bytes, report.parameters),
                                              bits_per_weight(report.to_bytes, report.parameters)));
  if (report.calibrator) text += fact("scales", calibrator_name(report));
  if (report.relative_rmse)
    text += fact("relative error", fmt::format("{:.4g}, where the type changed", *report.relative_rmse));
  if (!options.request.dry_run) {
    text += fact("time", fmt::format("{:.2f} s, {}/s", seconds,
                                     format_bytes(static_cast<std::uint64_t>(static_cast<double>(report.from_bytes) /
                                                                             std::max(seconds, 1e-6)))));
  }
  text += fmt::format("\n{}\n{}", bold("By type"), totals_by_type(report).table());
  if (options.request.dry_run) text += fmt::format("\n{}\n{}", bold("Plan"), plan_table(report));
  for (const std::string& note : report.notes) text += fmt::format("\nnote: {}\n", printable(note));
  if (options.request.dry_run) text += dim("\nnothing was written: this was a dry run\n");
  return text;
}

void convert(const ConvertCommand& options) {
  if (options.morph && !options.request.type && options.request.plan.empty()) {
    throw UsageError("--to is required: give a type, or a plan with --plan; see 'imago morph --help'");
  }
  ConvertOptions request = to_library(options);
  set_thread_count(options.threads);
  const auto start = std::chrono::steady_clock::now();
  ConvertReport report;
  {
    Progress progress(options.quiet || request.dry_run);
    request.progress = [&](std::uint64_t done, std::uint64_t total) {
      progress.show(done, total, printable(options.out), Progress::Unit::bytes);
    };
    report = convert_model(options.in, options.out, request);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  options.json ? print_json(to_json(report, options, seconds)) : print(to_text(report, options, seconds));
}

constexpr const char* kFormats =
    "The extension of OUT decides its format: .gguf .safetensors .json .entity; without one, a Hugging Face folder.\n";

Command add(CLI::App& program, const char* name, const char* about, bool morph, const char* examples) {
  CLI::App* command = program.add_subcommand(name, about);
  const auto options = std::make_shared<ConvertCommand>();
  options->morph = morph;
  command->add_option("IN", options->in, "A model in any format, recognized by its content")->required();
  command->add_option("OUT", options->out, "The file or folder to write; may be IN")->required();
  ConvertOptions& request = options->request;
  add_parsed(*command, "--to", request.type, parse_format, "TYPE",
             morph ? "The type that weights take ('imago dtypes' lists them)"
                   : "The type that weights take (default: each keeps its own where OUT can hold it)");
  if (morph) {
    add_value(*command, "--plan", request.plan, "PLAN.json",
              "Types from a file of 'imago plan'; --to is for what it does not name");
  }
  add_parsed(*command, "--tensor-type", request.tensor_types, tensor_type, "REGEX=TYPE",
             "Tensors whose name matches REGEX take TYPE, before every other rule; repeatable")
      ->allow_extra_args(false);
  command->add_flag("--pure", request.pure,
                    "No usual mix: every matrix whose rows fit the block takes TYPE (default: mix)");
  add_choice(
      *command, "--calibrate", request.calibrator, calibrators(),
      "How scales are found; auto: the least squared error, absmax for 8 bits and more with --granularity row or "
      "block (default: auto)");
  add_value(*command, "--percentile", request.percentile, "P", "With --calibrate percentile (default: 0.999)");
  add_granularity(*command, request.granularity, "One scale per tensor, row or block (default: tensor)");
  add_value(*command, "--group", request.group, "N",
            "Weights per scale with --granularity block: 32, 64 or 128 (default: 32)");
  command->add_flag("!--no-zero-points", request.zero_points,
                    "Unsigned types as the original engine has them: negative weights become 0 (default: zero points)");
  if (morph) {
    add_file(*command, "--importance", request.calibration,
             "A file of 'imago calibrate' or llama-imatrix (default: all weights matter alike)");
    add_value(*command, "--method", options->method, "METHOD",
              "nearest, gptq (later columns compensate for the errors of earlier ones) or awq (important columns "
              "are scaled up) (default: gptq if the file has products, else nearest)");
  }
  command->add_flag("--dry-run", request.dry_run, "Print the plan and sizes, write nothing (default: write)");
  command->add_flag("--allow-nonfinite", request.allow_nonfinite,
                    "Accept weights that are NaN or infinite (default: refuse)");
  command->add_flag("--eager", request.load.eager,
                    "Read IN to memory first (default: mapped; network disks always so)");
  add_number(*command, "--heads", request.import.heads, 1, 1 << 20,
             "Where tensors become layers: heads of attention that is found by its shapes (default: 1)");
  add_parsed(*command, "--hint", request.import.hints, hint, "INDEX=TYPE",
             "Where tensors become layers: the tensor at that place, counted from 0 in the order of names, begins a "
             "layer of TYPE, as in 0=LSTM; repeatable")
      ->allow_extra_args(false);
  add_fp4_legacy(*command, request.load);
  add_common(*command, *options);
  command->footer(std::string(kFormats) + examples);
  return {command, [options] { convert(*options); }};
}

}  // namespace

Command add_convert(CLI::App& program) {
  return add(program, "convert", "Rewrite a model in another file format, and in another type with --to", false,
             "Examples:\n  imago convert hf-folder model.gguf\n  imago convert model.gguf small.gguf --to q4_k\n"
             "  imago convert model.gguf folder/");
}

Command add_morph(CLI::App& program) {
  return add(program, "morph", "Quantize a model, and report what it cost", true,
             "Examples:\n  imago morph model.gguf small.gguf --to q4_k --tensor-type 'ffn_down=q6_k'\n"
             "  imago morph net.json net8.json --to int8 --granularity row --calibrate mse\n"
             "  imago morph model.gguf small.gguf --to q4_k --importance book.calibration.gguf\n"
             "  imago morph model.gguf small.gguf --to q4_k --dry-run\n"
             "  imago morph model/ small.gguf --plan plan.json");
}

}  // namespace imago::cli
