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

/// How a language model would run on this machine.
struct Outlook {
  std::uint64_t needed_bytes = 0, available_bytes = 0;
  std::size_t tokens = 0;        ///< length of a text, whose cache counts
  double tokens_per_second = 0;  ///< at most: each token reads all weights that it is multiplied with, and the cache

  bool fits() const noexcept { return needed_bytes <= available_bytes; }
};

Outlook outlook_of(const ModelSummary& summary) {
  constexpr std::size_t kTokens = 4096;
  const LanguageSummary& language = *summary.language;
  Outlook made{.available_bytes = inspect_system().available_bytes};
  made.tokens = std::min(kTokens, language.context);
  const std::uint64_t cache = language.cache_bytes * made.tokens;
  made.needed_bytes = summary.bytes + cache;
  // Half of the text has been written on average.
  const double read = static_cast<double>(language.step_bytes) + 0.5 * static_cast<double>(cache);
  if (language.generates && read > 0) made.tokens_per_second = measure_read_bandwidth() / read;
  return made;
}

Json language_json(const ModelSummary& summary) {
  if (!summary.language) return nullptr;
  const LanguageSummary& language = *summary.language;
  if (!language.problem.empty()) return {{"runs", false}, {"problem", language.problem}};
  const Outlook outlook = outlook_of(summary);
  return {
      {"runs", true},
      {"architecture", language.architecture},
      {"generates", language.generates},
      {"blocks", language.blocks},
      {"width", language.width},
      {"vocabulary", language.vocabulary},
      {"context", language.context},
      {"experts", language.experts},
      {"experts_used", language.experts_used},
      {"active_parameters", language.active_parameters},
      {"step_bytes", language.step_bytes},
      {"cache_bytes_per_token", language.cache_bytes},
      {"needed_bytes", outlook.needed_bytes},
      {"available_bytes", outlook.available_bytes},
      {"fits", outlook.fits()},
      {"tokens_per_second_at_most", outlook.tokens_per_second == 0 ? Json(nullptr) : Json(outlook.tokens_per_second)}};
}

std::string language_text(const ModelSummary& summary) {
  const LanguageSummary& language = *summary.language;
  if (!language.problem.empty()) return fact("does not run", printable(language.problem));
  std::string text = fact("model", fmt::format("{} blocks of width {}, {} tokens in the vocabulary", language.blocks,
                                               language.width, format_count(language.vocabulary)));
  text += fact("each token uses",
               fmt::format("{} parameters{}", format_count(language.active_parameters),
                           language.experts == 0 ? std::string()
                                                 : fmt::format(", {} of {} experts in a block", language.experts_used,
                                                               language.experts)));
  text += fact("context", fmt::format("{} tokens", format_count(language.context)));
  if (language.cache_bytes != 0) text += fact("cache", fmt::format("{} per token", format_bytes(language.cache_bytes)));
  const Outlook outlook = outlook_of(summary);
  const std::string sizes =
      fmt::format("{}{}, of {} that are free", format_bytes(outlook.needed_bytes),
                  language.cache_bytes == 0 ? "" : fmt::format(" with {} tokens", format_count(outlook.tokens)),
                  format_bytes(outlook.available_bytes));
  if (!outlook.fits()) return text + fact("this machine", fmt::format("does not have the memory: it takes {}", sizes));
  text += fact("this machine",
               fmt::format("{}: it takes {}", language.generates ? "runs it" : "makes embeddings with it", sizes));
  if (outlook.tokens_per_second == 0) return text;
  return text +
         fact("speed", fmt::format("at most {:.3g} tokens/s, as fast as memory is read", outlook.tokens_per_second));
}

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
          {"language_model", language_json(summary)},
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
  if (summary.language) text += language_text(summary);
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
