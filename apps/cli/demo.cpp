// imago demo: a tour of a minute or two. Every number is computed on the spot.

#include "imago/precision.h"
#include "model_options.h"

namespace imago::cli {

namespace {

// ---- a network learns to read digits and is then converted to every scalar type

/// The network in one type. Accuracies are on unseen digits.
struct DemoRow {
  DType type;
  std::size_t bytes = 0;    ///< of all weights and scales
  double cosine = 0;        ///< mean over the layers, against float32
  double rounded = 0;       ///< accuracy after rounding
  double trained = 0;       ///< accuracy after a little training with rounded weights
  double microseconds = 0;  ///< of a forward pass with one digit
  bool same_bytes = false;  ///< a checkpoint is identical after reading and writing
};

struct DemoNetwork {
  Dataset seen, unseen;
  Network network;
  double seconds = 0;  ///< of the training
  double accuracy = 0;
};

constexpr std::size_t kPixels = 64, kInputs = 65;
constexpr int kWidth = 96, kEpochs = 15, kMoreEpochs = 3;

TrainOptions training(int epochs, float rate) {
  TrainOptions options{.epochs = epochs, .batch = 32};
  options.loss.kind = LossKind::cross_entropy_logits;
  options.optimizer.kind = OptimizerKind::adam;
  options.optimizer.learn_scales = true;
  options.schedule = {.kind = ScheduleKind::cosine, .rate = rate, .warmup_steps = 20};
  options.seed = 1;
  return options;
}

/// While it exists, work runs on one thread: so small a network gains nothing from more.
class OneThread {
 public:
  OneThread() { set_thread_count(1); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() { set_thread_count(before_); }

 private:
  int before_ = thread_count();
};

Network copy_of(const Network& network) { return deserialize_network(serialize_network(network)); }

std::size_t bytes_of(const Network& network, DType type) {
  std::size_t bytes = 0;
  for (const Layer& layer : network.layers()) {
    const auto version = layer.weights->morph(type);
    bytes += version ? version->bytes() : layer.weights->count() * sizeof(float);
  }
  return bytes;
}

/// The median of many runs.
double microseconds_per_forward(Network& network, const Dataset& data) {
  constexpr int kTimes = 101;
  Tensor<float> digit({1, kInputs});
  std::ranges::copy(data.x.values().first(kInputs), digit.values().begin());
  network.forward(digit);  // warm-up
  std::vector<double> times;
  for (int i = 0; i < kTimes; ++i) {
    const auto start = std::chrono::steady_clock::now();
    network.forward(digit);
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + kTimes / 2, times.end());
  return times[kTimes / 2];
}

/// Rounds with the scales of least squared error, as `imago morph` does.
void round_all(Network& network, DType type) {
  Scheme best(type);
  best.calibrator = Calibrator::mse;
  for (Layer& layer : network.layers()) {
    if (!Format(type).has_scales()) break;
    const auto version = layer.weights->morph(best);
    layer.weights->set_scale(type, version->scale(), version->zero_point());
  }
  morph_network(network, type);
}

DemoRow measure_type(const DemoNetwork& demo, DType type) {
  DemoRow row{.type = type};
  Network rounded = copy_of(demo.network);
  round_all(rounded, type);
  row.bytes = bytes_of(rounded, type);
  row.cosine = compare_networks(demo.network, rounded).overall;
  row.rounded = accuracy(rounded, demo.unseen);
  row.microseconds = microseconds_per_forward(rounded, demo.unseen);
  const std::string file = serialize_network(rounded);
  row.same_bytes = serialize_network(deserialize_network(file)) == file;
  train(rounded, demo.seen, training(kMoreEpochs, 0.001f));
  row.trained = accuracy(rounded, demo.unseen);
  return row;
}

/// Trains on `digits` digits and tests on two thirds as many others. REQUIRES: digits >= 30.
DemoNetwork train_demo_network(std::size_t digits, bool quiet) {
  DemoNetwork demo{drawn_digits(digits, 1), drawn_digits(digits * 2 / 3, 2),
                   Network(layer_list(dense(static_cast<int>(kInputs), kWidth, Activation::relu),
                                      dense(kWidth, kWidth, Activation::relu), dense(kWidth, 10)),
                           /*seed=*/1)};
  // He initialization: with the small weights of a new network it would learn more slowly.
  std::uint64_t seed = 1;
  for (Layer& layer : demo.network.layers()) layer.weights->he_randomize(seed++, layer.weights->cols());
  const OneThread alone;
  Progress progress(quiet);
  TrainOptions options = training(kEpochs, 0.003f);
  options.progress = [&](const TrainProgress& now) {
    progress.show(now.step, now.steps, fmt::format("training, loss {:.3f}", now.loss));
    return true;
  };
  demo.seconds = train(demo.network, demo.seen, options).seconds;
  demo.accuracy = accuracy(demo.network, demo.unseen);
  return demo;
}

/// One row for each of the 21 types.
std::vector<DemoRow> measure_demo_types(const DemoNetwork& demo, bool quiet) {
  const OneThread alone;
  std::vector<DemoRow> rows;
  Progress progress(quiet);
  for (const DTypeInfo& type : kDTypes) {
    progress.show(rows.size(), kDTypes.size(), std::string(type.name));
    rows.push_back(measure_type(demo, type.id));
  }
  return rows;
}

/// The first digits side by side, in shaded characters.
std::string draw_digits(const Dataset& data, std::size_t count) {
  constexpr std::size_t kSide = 8;
  constexpr const char* kShades[] = {" ", "░", "▒", "▓", "█"};
  std::vector<std::string> lines(kSide);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t pixel = 0; pixel < kPixels; ++pixel) {
      const float ink = data.x[i * kInputs + pixel];
      const char* const shade = kShades[std::min<std::size_t>(4, static_cast<std::size_t>(ink * 5))];
      lines[pixel / kSide] += std::string(shade) + shade;  // two columns are about as wide as a line is tall
    }
    for (std::string& line : lines) line += "  ";
  }
  return join(lines, "\n") + "\n";
}

// ---- the page

std::string percent(double share) { return fmt::format("{:.1f}", 100 * share); }
std::string percent_of(double share) { return percent(share) + " %"; }
std::string same_or_not(const DemoRow& row) { return row.same_bytes ? "same" : "DIFFERS"; }

CurvePoint point(std::string name, std::uint64_t bytes, std::uint64_t weights, double cost,
                 std::vector<std::string> cells) {
  return {.name = std::move(name),
          .bytes = bytes,
          .bits_per_weight = bits_per_weight(bytes, weights),
          .cost = cost,
          .cells = std::move(cells)};
}

/// Marks the points that no other beats in both size and cost.
void mark_front(std::vector<CurvePoint>& points) {
  for (CurvePoint& point : points) {
    point.on_front = std::ranges::none_of(points, [&](const CurvePoint& other) {
      return other.bytes <= point.bytes && other.cost <= point.cost &&
             (other.bytes < point.bytes || other.cost < point.cost);
    });
  }
}

QualityCurve network_curve(const std::vector<DemoRow>& rows, std::size_t weights) {
  QualityCurve curve{
      .heading = "A network in 21 types",
      .explanation =
          "Each point is the network in one type, after a little training with rounded weights. The table has the "
          "share of digits that it reads correctly before and after that, and whether its file is identical after a "
          "round trip.",
      .cost_name = "share misread",
      .columns = {"cosine", "rounded", "trained", "µs", "file"},
      .points = {}};
  for (const DemoRow& row : rows) {
    curve.points.push_back(point(std::string(name(row.type)), row.bytes, weights, 1 - row.trained,
                                 {fmt::format("{:.5f}", row.cosine), percent_of(row.rounded), percent_of(row.trained),
                                  fmt::format("{:.1f}", row.microseconds), same_or_not(row)}));
  }
  mark_front(curve.points);
  return curve;
}

QualityCurve model_curve(const std::vector<DemoModel>& models) {
  QualityCurve curve{
      .heading = "A language model at several precisions",
      .explanation = fmt::format(
          "How far predictions move from those of the model as stored, and how each continues \"{}\".", kDemoPrompt),
      .cost_name = "mean KL divergence (nats)",
      .columns = {"perplexity", "same first choice", "tokens/s", "it writes"},
      .points = {}};
  for (const DemoModel& model : models) {
    curve.points.push_back(
        point(model.type, model.bytes, model.parameters, model.divergence.mean,
              {fmt::format("{:.1f}", model.divergence.perplexity), percent_of(model.divergence.same_top),
               fmt::format("{:.0f}", model.tokens_per_second), printable(shortened(model.text, 90))}));
  }
  mark_front(curve.points);
  return curve;
}

PrecisionReport demo_report(const DemoNetwork& demo, const std::vector<DemoRow>& rows,
                            const std::vector<DemoModel>& models) {
  PrecisionReport report;
  report.title = "imago demo";
  report.subtitle = fmt::format("imago {}, {}, {} threads", version(), inspect_system().cpu, thread_count());
  const auto smallest = std::ranges::min_element(rows, {}, &DemoRow::bytes);
  report.summary = fmt::format(
      "A network of {} weights learned to read digits and was then converted to every scalar type. Every number on "
      "this page was computed on this machine.",
      format_count(demo.network.parameters()));
  report.facts = {{"float32", percent_of(demo.accuracy),
                   fmt::format("of {} new digits read correctly", format_count(demo.unseen.size()))},
                  {"training", fmt::format("{:.1f} s", demo.seconds),
                   fmt::format("on {} drawn digits", format_count(demo.seen.size()))},
                  {std::string(name(smallest->type)), percent_of(smallest->trained),
                   fmt::format("in {}, trained with rounded weights; {} before", format_bytes(smallest->bytes),
                               percent_of(smallest->rounded))}};
  report.curves.push_back(network_curve(rows, demo.network.parameters()));
  if (!models.empty()) report.curves.push_back(model_curve(models));
  for (std::size_t i = 1; i < models.size(); ++i) report.spreads.push_back({models[i].type, models[i].divergence});
  report.notes = {
      "Times are for one digit with one thread; on so small a network the overhead of a call is a good part of them.",
      "The language model is measured on a page that it wrote itself: enough to see a trend, not to compare small "
      "differences."};
  return report;
}

// ---- on the terminal

struct DemoCommand {
  std::string page = "imago-demo.html";
  std::size_t digits = 3000;
  int threads = 0;
  bool quiet = false;
};

void show_training(const DemoNetwork& demo) {
  print(fmt::format("{}\nIt read {} digits 15 times in {:.1f} s, and now recognizes {} % of {} new ones.\n\n",
                    draw_digits(demo.unseen, 5), format_count(demo.seen.size()), demo.seconds, percent(demo.accuracy),
                    format_count(demo.unseen.size())));
}

void show_types(const std::vector<DemoRow>& rows) {
  using enum Table::Align;
  Table table({{"type"},
               {"bits", right},
               {"bytes", right},
               {"cosine", right},
               {"rounded %", right},
               {"trained %", right},
               {"µs", right},
               {"file"}});
  for (const DemoRow& row : rows) {
    table.add({std::string(name(row.type)), std::to_string(bits(row.type)), format_count(row.bytes),
               fmt::format("{:.5f}", row.cosine), percent(row.rounded), percent(row.trained),
               fmt::format("{:.1f}", row.microseconds), same_or_not(row)});
  }
  print(table.text() + "\n");
  print(
      fmt::format("{} of the {} files are identical after a round trip. Unsigned types hold negative weights below "
                  "their zero point; µs are for one digit with one thread.\n\n",
                  std::ranges::count(rows, true, &DemoRow::same_bytes), rows.size()));
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

void tour(const DemoCommand& options) {
  const auto start = std::chrono::steady_clock::now();
  check_folder(options.page);
  set_thread_count(options.threads);
  int number = 0;
  const auto begin = [&](std::string_view heading, std::string_view meaning) {
    print(fmt::format("{}\n{}\n\n", bold(fmt::format("{}. {}", ++number, heading)), meaning));
  };
  begin("A network learns to read digits",
        "Three layers, trained on digits that are drawn on the spot: nothing is downloaded.");
  const DemoNetwork demo = train_demo_network(options.digits, options.quiet);
  show_training(demo);

  begin("The same network in all 21 scalar types",
        "Fewer bits make it smaller. Rounding costs accuracy below 4 bits, and a little training with rounded "
        "weights recovers most of it.");
  const std::vector<DemoRow> rows = measure_demo_types(demo, options.quiet);
  show_types(rows);

  begin("A language model at several precisions",
        "The same weights, rounded more and more: how far its predictions move from the original, and what it "
        "writes.");
  const std::string path = default_model();
  const std::vector<DemoModel> models =
      path.empty() ? std::vector<DemoModel>() : measure_demo_models(path, options.quiet);
  if (models.empty()) {
    print("No language model was found, so this part is skipped; IMAGO_MODEL=FILE names one.\n\n");
  } else {
    show_models(models);
  }
  write_report_html(demo_report(demo, rows, models), options.page);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  print(fmt::format("That took {:.0f} s with {} threads. The same with charts: {}\n", seconds, thread_count(),
                    options.page));
  if (!models.empty()) {
    print("To talk to the language model in a browser: 'imago serve', then http://127.0.0.1:8080\n");
  }
}

}  // namespace

Command add_demo(CLI::App& program) {
  CLI::App* command = program.add_subcommand("demo", "A tour: train, morph, compare, run");
  const auto options = std::make_shared<DemoCommand>();
  add_file(*command, "-o,--output,--html", options->page, "The page to write (default: imago-demo.html)");
  add_number(*command, "--digits", options->digits, 30, 1000000, "Digits to train on (default: 3000)");
  add_threads(*command, options->threads);
  add_quiet(*command, options->quiet);
  command->footer(
      "Takes a minute or two; every number is computed on the spot. The language model is IMAGO_MODEL, else the "
      "bundled one.\nExamples:\n  imago demo\n  imago demo -o tour.html -t 1");
  return {command, [options] { tour(*options); }};
}

}  // namespace imago::cli
