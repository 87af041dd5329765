// imago demo: a tour in a minute or two. Every number is computed then and there.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bundled_model.h"
#include "commands.h"
#include "demo_language.h"
#include "demo_network.h"
#include "demo_report.h"
#include "imago/precision.h"
#include "imago/system.h"
#include "network_files.h"
#include "output.h"
#include "shared_options.h"

namespace imago::cli {

namespace {

struct Options {
  std::string page = "imago-demo.html";
  std::size_t digits = 3000;
  int threads = 0;
  bool quiet = false;
};

/// A numbered heading, and in a sentence what follows shows.
class Steps {
 public:
  void begin(std::string_view heading, std::string_view meaning) {
    print(fmt::format("{}\n{}\n\n", bold(fmt::format("{}. {}", ++number_, heading)), meaning));
  }

 private:
  int number_ = 0;
};

std::string percent(double share) { return fmt::format("{:.1f}", 100 * share); }

void show_training(const DemoNetwork& demo) {
  std::string picture;
  for (const std::string& line : draw_digits(demo.unseen, 0, 5)) picture += line + "\n";
  print(fmt::format("{}\nIt read {} digits 15 times in {:.1f} s, and now tells {} % of {} new ones.\n\n", picture,
                    format_count(demo.seen.size()), demo.seconds, percent(demo.accuracy),
                    format_count(demo.unseen.size())));
}

void show_types(const std::vector<DemoRow>& rows) {
  using enum Table::Align;
  Table table({{"type"},
               {"bits", right},
               {"bytes", right},
               {"cosine", right},
               {"rounded %", right},
               {"trained on %", right},
               {"µs", right},
               {"file"}});
  for (const DemoRow& row : rows) {
    table.add({std::string(name(row.type)), std::to_string(bits(row.type)), format_count(row.bytes),
               fmt::format("{:.5f}", row.cosine), percent(row.rounded), percent(row.trained),
               fmt::format("{:.1f}", row.microseconds), row.same_bytes ? "same" : "DIFFERS"});
  }
  print(table.text() + "\n");
  const auto same = std::count_if(rows.begin(), rows.end(), [](const DemoRow& row) { return row.same_bytes; });
  print(fmt::format(
      "Of the {} files, {} came back byte for byte. Types without a sign cannot hold negative weights, so that network "
      "has to learn anew; µs are those of one digit with one thread.\n\n",
      rows.size(), same));
}

void show_models(const std::vector<DemoModel>& models) {
  using enum Table::Align;
  Table table({{"type"},
               {"in memory", right},
               {"perplexity", right},
               {"KL", right},
               {"same choice %", right},
               {"tokens/s", right}});
  for (const DemoModel& model : models) {
    const bool stored = &model == &models.front();
    table.add({model.type, format_bytes(model.bytes), fmt::format("{:.1f}", model.divergence.perplexity),
               stored ? "" : fmt::format("{:.4f}", model.divergence.mean), percent(model.divergence.same_top),
               fmt::format("{:.0f}", model.tokens_per_second)});
  }
  print(table.text() + "\n");
  print(fmt::format("{}…\n", kDemoPrompt));
  for (const DemoModel& model : models) {
    print(fmt::format("  {:<10}…{}\n", model.type, printable(shortened(model.text, 84))));
  }
  print("\n");
}

std::string language_model_or_none() {
  const char* const named = std::getenv("IMAGO_MODEL");
  return named != nullptr && *named != '\0' ? named : bundled_model();
}

void tour(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  check_folder(options.page);
  set_thread_count(options.threads);
  Steps steps;
  steps.begin("A network learns to read digits",
              "Built from three layers and trained here, on digits that are drawn as it goes: no data was downloaded.");
  const DemoNetwork demo = train_demo_network(options.digits, options.quiet);
  show_training(demo);

  steps.begin("The same network in all 21 scalar types",
              "Fewer bits make it smaller. Rounding costs accuracy below 4 bits, and a little training through the "
              "rounding wins most of it back.");
  const std::vector<DemoRow> rows = measure_demo_types(demo, options.quiet);
  show_types(rows);

  steps.begin("A language model at several precisions",
              "The same weights, rounded further and further: how much its predictions move away from the original, "
              "and what it writes.");
  const std::string path = language_model_or_none();
  const std::vector<DemoModel> models =
      path.empty() ? std::vector<DemoModel>() : measure_demo_models(path, options.quiet);
  if (models.empty()) {
    print("There is no language model here, so this part is left out; IMAGO_MODEL=FILE names one.\n\n");
  } else {
    show_models(models);
  }
  write_report_html(demo_report(demo, rows, models), options.page);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  print(fmt::format("That took {:.0f} s with {} threads. The same with pictures: {}\n", seconds, thread_count(),
                    options.page));
}

}  // namespace

Command add_demo(CLI::App& program) {
  CLI::App* command = program.add_subcommand("demo", "A tour: train, morph, compare, run");
  const auto options = std::make_shared<Options>();
  command->add_option("-o,--output,--html", options->page, "The page to write (default: imago-demo.html)")
      ->type_name("FILE");
  command->add_option("--digits", options->digits, "Digits that the network learns from (default: 3000)")
      ->type_name("N")
      ->check(CLI::Range(30, 1000000));
  add_threads(*command, options->threads);
  add_quiet(*command, options->quiet);
  command->footer(
      "Takes a minute or two; every number is computed then and there. The language model is the one that IMAGO_MODEL "
      "names, else the bundled one.\nExamples:\n  imago demo\n  imago demo -o tour.html -t 1");
  return {command, [options] { tour(*options); }};
}

}  // namespace imago::cli
