// imago calibrate: statistics of the activations of a model, which say which weights matter.

#include "imago/precision.h"
#include "model_options.h"

namespace imago::cli {

namespace {

struct CalibrateCommand : CommonOptions {
  std::string model, text, data, out;
  CalibrateOptions request;
  DatasetOptions columns;
};

CalibrateReport run(const CalibrateCommand& options) {
  const bool network = options.text.empty() && holds_network(options.model);
  if (network ? options.data.empty() : options.text.empty()) {
    throw UsageError(network ? "a network of layers is calibrated on data: give --data FILE, or --text FILE if it is a "
                               "language model"
                             : "a language model is calibrated on a text: give --text FILE");
  }
  CalibrateOptions calibrate = options.request;
  std::unique_ptr<Progress> progress;
  calibrate.progress = [&](std::size_t done, std::size_t total) {
    // The first call includes what an earlier run did.
    if (!progress) progress = std::make_unique<Progress>(options.quiet, done - 1);
    progress->show(done, total, printable(options.out));
  };
  if (network) {
    const Dataset data = load_dataset(options.data, options.columns);
    return blame(options.data,
                 [&] { return calibrate_network(options.model, data, options.data, options.out, calibrate); });
  }
  const std::string text = read_text(options.text);
  return blame(options.text,
               [&] { return calibrate_model(options.model, text, options.text, options.out, calibrate); });
}

void calibrate(const CalibrateCommand& options) {
  set_thread_count(options.threads);
  const auto start = std::chrono::steady_clock::now();
  const CalibrateReport report = run(options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (options.json) {
    print_json({{"model", options.model},
                {"out", options.out},
                {"windows", report.windows},
                {"rows", report.rows},
                {"matrices", report.matrices},
                {"resumed", report.resumed},
                {"products", report.products},
                {"bytes", report.bytes},
                {"seconds", seconds}});
    return;
  }
  print(fmt::format("{}: {} matrices, {} inputs each, {}, {} in {:.1f} s{}\n", printable(options.out), report.matrices,
                    format_count(report.rows), report.products ? "with products" : "squares only",
                    format_bytes(report.bytes), seconds,
                    report.resumed == 0 ? "" : fmt::format(", {} windows from an earlier run", report.resumed)));
}

}  // namespace

Command add_calibrate(CLI::App& program) {
  CLI::App* command =
      program.add_subcommand("calibrate", "Run a text through a model and record the inputs of its weight matrices");
  const auto options = std::make_shared<CalibrateCommand>();
  command->add_option("MODEL", options->model, "A language model, or a network of layers")->required();
  add_file(*command, "--text", options->text, "The text, for language models, also those saved as networks");
  CLI::Option* data =
      add_file(*command, "--data", options->data, "The examples, for networks: safetensors with x and y, CSV, IDX");
  add_data_columns(*command, options->columns, data);
  add_file(*command, "-o,--out", options->out, "The file to write: GGUF, readable as an importance matrix by llama.cpp")
      ->required();
  const auto products = [options](std::int64_t count) { options->request.products = count > 0; };
  command->add_flag_function("--products,!--no-products", products,
                             "Record products of columns too, for 'morph --method gptq', or squares only (default: "
                             "products where half of the free memory is enough)");
  add_number(*command, "--ctx", options->request.context, 1, 1 << 24, "Tokens per window (default: 512)");
  add_common(*command, *options);
  command->footer(
      "An interrupted run continues where it stopped.\n"
      "Examples:\n  imago calibrate model.gguf --text book.txt -o book.calibration.gguf\n"
      "  imago morph model.gguf small.gguf --to q4_k --importance book.calibration.gguf");
  return {command, [options] { calibrate(*options); }};
}

}  // namespace imago::cli
