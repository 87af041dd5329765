// imago man: the manual page, made of the commands as they are and of what they do not say themselves.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <sstream>
#include <string>

#include "commands.h"
#include "imago/system.h"
#include "output.h"
#include "reference.h"

namespace imago::cli {

namespace {

/// Text that troff takes literally: backslashes, hyphens that are to stay hyphens, and dots that start a line.
std::string literal(const std::string& text) {
  std::string made;
  for (const char c : text) {
    if (c == '\\') {
      made += "\\e";
    } else if (c == '-') {
      made += "\\-";
    } else if ((c == '.' || c == '\'') && (made.empty() || made.back() == '\n')) {
      made += std::string("\\&") + c;
    } else {
      made += c;
    }
  }
  return made;
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
imago trains, quantizes and runs neural networks and language models in small numeric types, and says what that costs.
Files are told by their content: GGUF, safetensors, Hugging Face folders, checkpoints of networks, .entity files.
.PP
Results go to standard output, progress and notes to standard error.
A bar is drawn only on a terminal, and colours only there and only unless NO_COLOR is set.
Output files appear whole or not at all: a run that fails or is stopped leaves what was there before.
)";

constexpr const char* kClosing = R"(.SH ENVIRONMENT
.TP
.B IMAGO_MODEL
The language model of commands that are given none.
.TP
.B IMAGO_KERNELS
ref, avx2, avx512, amx or neon: the most that kernels may use of the processor.
.TP
.B NO_COLOR
If it is set and not empty, nothing is coloured.
.SH FILES
.TP
.I PREFIX/share/imago/imago\-20m.gguf
The bundled language model, of 20.7 million parameters: large enough to try everything with, too small to be right.
.SH EXIT STATUS
.TP
.B 0
Done.
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
Options have the names of llama.cpp's programs where they mean the same.
)";

std::string manual(const CLI::App& program) {
  const CommandReference about = describe(program);
  std::string text = fmt::format(
      ".TH IMAGO 1 \"\" \"imago {}\" \"User Commands\"\n.SH NAME\nimago \\- train, quantize and run neural networks in "
      "21 "
      "numeric types\n.SH SYNOPSIS\n.B imago\n.I COMMAND\n[\\fIOPTIONS\\fR]\n{}.SH COMMANDS\n",
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
