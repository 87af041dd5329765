// imago bench: how fast this machine computes, compared with the limits of its memory and arithmetic.

#include <filesystem>

#include "model_options.h"

namespace imago::cli {

namespace {

struct BenchCommand : CommonOptions {
  std::string what;
  KernelBenchOptions kernels;
  std::size_t mebibytes = 0;
  ModelBench model;
};

Json to_json(const KernelBench& bench) {
  Json kernels = Json::array();
  for (const KernelSpeed& speed : bench.kernels) {
    kernels.push_back({{"name", speed.name},
                       {"format", speed.format},
                       {"op", speed.operation},
                       {"rows", speed.rows},
                       {"cols", speed.cols},
                       {"batch", speed.batch},
                       {"activation", speed.activation},
                       {"bytes", speed.matrix_bytes},
                       {"gb_per_s", speed.gb_per_s},
                       {"gflops", speed.gflops},
                       {"read_gb_per_s", speed.read_gb_per_s},
                       {"fraction_of_read", speed.fraction_of_read},
                       {"fraction_of_peak", speed.fraction_of_peak},
                       {"spread", speed.spread}});
  }
  return {{"version", version()},
          {"cpu", inspect_system().cpu},
          {"threads", thread_count()},
          {"read_gb_per_s", bench.read_gb_per_s},
          {"float32_peak_gflops", bench.float32_peak_gflops},
          {"int8_peak_gops", bench.int8_peak_gops},
          {"bfloat16_peak_gflops", bench.bfloat16_peak_gflops},
          {"kernels", kernels}};
}

/// The rows with these activations. One token is limited by memory, several by arithmetic.
std::string table_of(const KernelBench& bench, bool single, std::string_view activation) {
  using enum Table::Align;
  Table table({{"kernel"},
               {"rows × columns", right},
               {single ? "of read" : "of peak", right},
               {"spread", right},
               {"GB/s", right},
               {"Gop/s", right}});
  for (const KernelSpeed& speed : bench.kernels) {
    if (speed.activation != activation) continue;
    table.add({speed.name, fmt::format("{} × {}", speed.rows, speed.cols),
               fmt::format("{:.2f}", single ? speed.fraction_of_read : speed.fraction_of_peak),
               fmt::format("{:.0f} %", speed.spread * 100), fmt::format("{:.1f}", speed.gb_per_s),
               fmt::format("{:.0f}", speed.gflops)});
  }
  return table.text();
}

std::string to_text(const KernelBench& bench, std::size_t batch) {
  std::string text = fmt::format(
      "{}, {}, imago {}\n"
      "memory reads {:.1f} GB/s; peak of multiply-adds, 2 operations each: float32 {:.0f}, int8 {:.0f}{} Gop/s\n",
      inspect_system().cpu, counted(thread_count(), "thread"), version(), bench.read_gb_per_s,
      bench.float32_peak_gflops, bench.int8_peak_gops,
      bench.bfloat16_peak_gflops == 0 ? "" : fmt::format(", tiles of bfloat16 {:.0f}", bench.bfloat16_peak_gflops));
  const auto section = [&](std::string_view title, std::string_view activation) {
    if (std::ranges::count(bench.kernels, activation, &KernelSpeed::activation) == 0) return;
    const std::string tokens = batch == 1 ? "one token" : fmt::format("{} tokens", batch);
    text += fmt::format("\n{}\n{}", bold(fmt::format("{} activations, {}", title, tokens)),
                        table_of(bench, batch == 1, activation));
  };
  section("Exact: float32", "f32");
  section("Fast: int8", "int8");
  section("Fast: bfloat16", "bf16");
  return text;
}

void bench_matrix_kernels(const BenchCommand& options) {
  if (!options.model.model.device.empty() && options.model.model.device != "cpu") {
    throw UsageError("'imago bench kernels' measures the CPU; bench/gpu measures a GPU");
  }
  KernelBenchOptions request = options.kernels;
  request.matrix_bytes = options.mebibytes << 20;
  set_thread_count(options.threads);
  KernelBench bench;
  {
    Progress progress(options.quiet);
    request.progress = std::ref(progress);
    bench = bench_kernels(request);
  }
  options.json ? print_json(to_json(bench)) : print(to_text(bench, request.batch));
}

void bench_model_at(const std::string& path, const BenchCommand& options) {
  set_thread_count(options.threads);
  ModelBench model = options.model;
  model.model.path = path;
  model.model.quiet = options.quiet;
  bench_language_model(model, options.json);
}

void bench(const BenchCommand& options) {
  if (options.what == "kernels") return bench_matrix_kernels(options);
  if (options.what.empty()) return bench_model_at(model_path(""), options);
  std::error_code ignored;
  const bool looks_like_a_file = options.what.find_first_of("./") != std::string::npos;
  if (!looks_like_a_file && !std::filesystem::exists(options.what, ignored)) {
    throw UsageError(
        fmt::format("there is no file '{}'; 'imago bench kernels' measures matrix products, 'imago bench MODEL' a "
                    "language model",
                    options.what));
  }
  bench_model_at(options.what, options);
}

}  // namespace

Command add_bench(CLI::App& program) {
  CLI::App* command = program.add_subcommand("bench", "Measure how fast this machine computes");
  const auto options = std::make_shared<BenchCommand>();
  add_file(*command, "-m,--model,WHAT", options->what,
           "'kernels': products of packed matrices, for every type; or a language model: a GGUF file or a Hugging Face "
           "folder (default: IMAGO_MODEL, else the bundled model)");
  add_model_bench(*command, options->model);
  add_number(*command, "--batch", options->kernels.batch, 1, 65536, "Kernels: tokens per product (default: 1)");
  add_parsed(*command, "--format", options->kernels.formats, parse_format, "TYPE",
             "Kernels: only this type; may be repeated (default: all)")
      ->expected(1)
      ->take_all();
  add_number(*command, "--mib", options->mebibytes, 0, 65536,
             "Kernels: size of a matrix (default: 0, four times the last-level cache, at least 256)", "MIB");
  add_number(*command, "--seconds", options->kernels.seconds, 0.0, 3600.0, "Kernels: time for each (default: 1)", "S");
  add_common(*command, *options);
  command->footer(
      "Examples:\n  imago bench\n  imago bench kernels\n  imago bench kernels --batch 512 --json\n"
      "  imago bench kernels --format q4_0 --format int8 -t 1\n"
      "  imago bench model.gguf -p 512 -n 128");
  return {command, [options] { bench(*options); }};
}

}  // namespace imago::cli
