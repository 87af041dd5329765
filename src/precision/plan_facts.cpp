#include "precision/plan_facts.h"

#include <cmath>

#include "files/json_writer.h"

namespace imago::precision {

namespace {

class FactWriter {
 public:
  explicit FactWriter(files::JsonWriter& writer) : writer_(writer) {}

  template <class T>
  void fact(std::string_view name, const T& value) {
    writer_.key(name);
    writer_.value(value);
  }
  void number(std::string_view name, double value) {
    writer_.key(name);
    std::isfinite(value) ? writer_.value(value) : writer_.raw("null");
  }
  void quality(std::string_view name, const PlanQuality& quality, bool network) {
    writer_.key(name);
    writer_.begin_object();
    number(network ? "loss_added" : "kl", quality.added);
    number(network ? "loss" : "perplexity", quality.level);
    if (quality.accuracy) number("accuracy", *quality.accuracy);
    writer_.end_object();
  }

 private:
  files::JsonWriter& writer_;
};

}  // namespace

std::string plan_facts(const PlanReport& report, const std::string& model, const std::string& measured_on,
                       const PlanOptions& options) {
  const bool network = report.windows == 0;
  files::StringSink sink;
  files::JsonWriter writer(sink, files::JsonStyle::compact);
  FactWriter facts(writer);
  writer.begin_object();
  facts.fact("model", std::string_view(model));
  facts.fact(network ? "data" : "text", std::string_view(measured_on));
  if (!network) {
    facts.fact("calibration", std::string_view(options.plain                 ? "none"
                                               : options.calibration.empty() ? "the text"
                                                                             : options.calibration));
    facts.fact("context", std::uint64_t{options.context});
    facts.fact("windows_measured", std::uint64_t{report.windows});
    facts.fact("windows_judged", std::uint64_t{report.judged_windows});
  }
  facts.fact("weights", report.weights);
  facts.fact("budget_bytes", report.budget_bytes);
  facts.fact("bytes", report.bytes);
  facts.number("bits_per_weight", report.bits_per_weight());
  facts.number("predicted", report.predicted);
  facts.quality("original", report.original, network);
  facts.quality("measured", report.measured, network);
  if (report.uniform_type) {
    facts.fact("uniform_type", report.uniform_type->name());
    facts.fact("uniform_bytes", report.uniform_bytes);
    facts.quality("uniform", report.uniform, network);
    facts.fact("kept_uniform", report.kept_uniform);
  }
  writer.key("added_by_tensor");
  writer.begin_object();
  for (const TensorChoice& tensor : report.tensors) facts.number(tensor.name, tensor.added);
  writer.end_object();
  writer.end_object();
  return std::move(sink.text());
}

}  // namespace imago::precision
