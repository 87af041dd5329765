// imago man: the manual page, generated from the commands and a few fixed sections.

#include <sstream>

#include "command.h"
#include "reference.h"

namespace imago::cli {

namespace {

/// Escapes a line for troff: backslashes, hyphens, and a dot or quote at its start.
std::string literal(const std::string& line) {
  const std::string made = escaped(line, {{'\\', "\\e"}, {'-', "\\-"}});
  return made.starts_with('.') || made.starts_with('\'') ? "\\&" + made : made;
}

std::string paragraphs(const std::string& text) {
  std::string made;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) made += ".PP\n" + literal(line) + "\n";
  }
  return made;
}

std::string entry(const OptionReference& option) {
  std::string names;
  for (const std::string& name : option.names) names += (names.empty() ? "" : ", ") + ("\\fB" + literal(name) + "\\fR");
  if (!option.value.empty()) names += " \\fI" + literal(option.value) + "\\fR";
  return fmt::format(".TP\n{}\n{}\n", names, literal(option.about));
}

std::string section(const CommandReference& command) {
  std::string text = fmt::format(".SS {}\n{}.\n.PP\n.B {}\n", literal("imago " + command.name), literal(command.about),
                                 literal(command.usage()));
  for (const OptionReference& argument : command.positionals) text += entry(argument);
  for (const OptionReference& option : command.options) {
    if (option.names.back() != "--help") text += entry(option);
  }
  text += paragraphs(command.notes);
  if (!command.examples.empty()) text += ".PP\nExamples:\n.PP\n.EX\n";
  for (const std::string& example : command.examples) text += literal(example) + "\n";
  return text + (command.examples.empty() ? "" : ".EE\n");
}

constexpr const char* kDescription = R"(.SH DESCRIPTION
imago trains, quantizes and runs neural networks and language models in small numeric types, and measures what that costs.
File formats are detected from the content: GGUF, safetensors, Hugging Face folders, checkpoints of networks, .entity files.
.PP
Results go to standard output, progress and notes to standard error.
Progress bars and colours appear only on a terminal, colours only if NO_COLOR is not set.
Output files appear complete or not at all: a run that fails or is stopped leaves the old file unchanged.
)";

constexpr const char* kClosing = R"(.SH ENVIRONMENT
.TP
.B IMAGO_MODEL
The default language model.
.TP
.B IMAGO_KERNELS
ref, avx2, avx512, amx or neon: the best instruction set that kernels may use.
.TP
.B NO_COLOR
If it is set and not empty, colours are off.
.SH FILES
.TP
.I PREFIX/share/imago/imago\-20m.gguf
The bundled language model with 20.7 million parameters: large enough to try everything, too small to be right.
.SH EXIT STATUS
.TP
.B 0
Success.
.TP
.B 1
The work failed; one line on standard error says why.
.TP
.B 2
The command line is wrong.
.TP
.B 130
Stopped by Ctrl\-C.
.SH NOTES
Options have the names of llama.cpp's options where they mean the same.
)";

std::string manual(const CLI::App& program) {
  const CommandReference about = describe(program);
  std::string text = fmt::format(
      ".TH IMAGO 1 \"\" \"imago {}\" \"User Commands\"\n.SH NAME\nimago \\- train, quantize and run neural networks in "
      "21 numeric types\n.SH SYNOPSIS\n.B imago\n.I COMMAND\n[\\fIOPTIONS\\fR]\n{}.SH COMMANDS\n",
      version(), kDescription);
  for (const CommandReference& command : describe_commands(program)) text += section(command);
  return text + kClosing;
}

}  // namespace

Command add_man(CLI::App& program) {
  CLI::App* command = program.add_subcommand("man", "Print the manual page");
  command->footer(
      "An installed imago has it in place: 'man imago'.\n"
      "Examples:\n  imago man > imago.1\n  imago man | man -l -");
  return {command, [&program] { print(manual(program)); }};
}

}  // namespace imago::cli
