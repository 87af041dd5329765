// imago inspect: what is in a model file.

#include "command.h"
#include "imago/models.h"

namespace imago::cli {

namespace {

struct InspectCommand {
  std::string model;
  bool json = false;
  bool tensors = false;
};

Json to_json(const ModelSummary& summary) {
  Json metadata = Json::object();
  for (const auto& [key, value] : summary.metadata) metadata[key] = Json::parse(value);
  Json tensors = Json::array();
  for (const TensorSummary& tensor : summary.tensors) {
    tensors.push_back(
        {{"name", tensor.name},
         {"type", tensor.type},
         {"shape", std::vector<std::size_t>(tensor.shape.extents().begin(), tensor.shape.extents().end())},
         {"bytes", tensor.bytes}});
  }
  return {{"format", name(summary.form)},
          {"architecture", summary.architecture.empty() ? Json(nullptr) : Json(summary.architecture)},
          {"parameters", summary.parameters},
          {"bytes", summary.bytes},
          {"file_bytes", summary.file_bytes},
          {"bits_per_weight", summary.bits_per_weight()},
          {"metadata", metadata},
          {"tensors", tensors},
          {"notes", summary.notes}};
}

/// A metadata value in one line of limited length.
std::string short_value(const std::string& json) {
  const Json value = Json::parse(json);
  const std::string text = value.is_string() ? value.get<std::string>() : value.is_structured() ? value.dump() : json;
  return shortened(printable(text), 100);
}

std::string totals_by_type(const ModelSummary& summary) {
  TypeTotals totals;
  for (const TensorSummary& tensor : summary.tensors) totals.add(tensor.type, tensor.shape.elements(), tensor.bytes);
  return totals.table();
}

std::string list_of_tensors(const ModelSummary& summary) {
  using enum Table::Align;
  Table table({{"tensor"}, {"type"}, {"shape", right}, {"size", right}});
  for (const TensorSummary& tensor : summary.tensors) {
    table.add({printable(tensor.name), printable(tensor.type), format_shape(tensor.shape), format_bytes(tensor.bytes)});
  }
  return table.text();
}

std::string to_text(const ModelSummary& summary, const InspectCommand& options) {
  std::string text = fmt::format("{}\n", bold(printable(options.model)));
  text += fact("format", std::string(name(summary.form)));
  if (!summary.architecture.empty()) text += fact("architecture", printable(summary.architecture));
  text += fact("parameters", format_count(summary.parameters));
  text += fact("size", fmt::format("{} of weights in {} of {}", format_bytes(summary.bytes),
                                   summary.form == FileForm::huggingface ? "a folder" : "a file",
                                   format_bytes(summary.file_bytes)));
  if (summary.bytes != 0) text += fact("bits per weight", fmt::format("{:.2f}", summary.bits_per_weight()));
  for (const std::string& note : summary.notes) text += fact("note", printable(note));
  if (!summary.metadata.empty()) {
    text += fmt::format("\n{}\n", bold("Metadata"));
    std::size_t width = 0;
    for (const auto& [key, value] : summary.metadata) width = std::max(width, printable(key).size());
    for (const auto& [key, value] : summary.metadata) {
      text += fmt::format("{:<{}}  {}\n", printable(key), std::min<std::size_t>(width, 40), short_value(value));
    }
  }
  if (!summary.tensors.empty()) {
    text += fmt::format("\n{}\n{}", bold("By type"), totals_by_type(summary));
    if (options.tensors) text += fmt::format("\n{}\n{}", bold("Tensors"), list_of_tensors(summary));
    if (!options.tensors) text += dim("\n--tensors lists them one by one\n");
  }
  return text;
}

void inspect(const InspectCommand& options) {
  const ModelSummary summary = inspect_model(options.model);
  options.json ? print_json(to_json(summary)) : print(to_text(summary, options));
}

}  // namespace

Command add_inspect(CLI::App& program) {
  CLI::App* command = program.add_subcommand("inspect", "Show what is in a model file");
  const auto options = std::make_shared<InspectCommand>();
  command
      ->add_option("MODEL", options->model,
                   "A GGUF, safetensors, checkpoint, architecture or .entity file, or a Hugging Face folder")
      ->required();
  command->add_flag("--tensors", options->tensors, "List every tensor (default: totals by type; always in JSON)");
  add_json(*command, options->json);
  command->footer(
      "Examples:\n  imago inspect model.gguf\n  imago inspect folder --tensors\n  imago inspect net.json --json");
  return {command, [options] { inspect(*options); }};
}

}  // namespace imago::cli
