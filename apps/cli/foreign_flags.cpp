#include "foreign_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

namespace imago::cli {

namespace {

struct Foreign {
  std::initializer_list<std::string_view> flags;
  std::string_view answer;
};

// The names are those of llama.cpp's programs. Those that imago has too are options of its commands and not listed
// here.
const Foreign kForeign[] = {
    {{"-ngl", "--n-gpu-layers"},
     "here a GPU is asked for with --device cuda, and a part of the layers with --gpu-layers"},
    {{"-dev", "-mg", "--main-gpu"}, "a GPU is chosen with --device cuda:N here"},
    {{"-sm", "--split-mode", "-ts", "--tensor-split"},
     "a model runs on one GPU, and the rest on the CPU: --gpu-layers"},
    {{"-nkvo", "--no-kv-offload"}, "keys and values lie where their layer is computed; leave it out"},
    {{"-i", "--interactive", "-if", "--interactive-first", "-cnv", "--conversation"},
     "a conversation is a command of its own here: imago chat"},
    {{"-no-cnv", "--no-conversation", "-st", "--single-turn"}, "'imago run' never waits for an answer; leave it out"},
    {{"--no-display-prompt"}, "the prompt is never repeated; leave it out"},
    {{"-sys", "-sysf", "--system-prompt-file"}, "imago chat takes the system message itself, with --system"},
    {{"-ctk", "--cache-type-k", "-ctv", "--cache-type-v"}, "keys and values have one type here: --cache-type"},
    {{"-ub", "--ubatch-size"}, "there is one batch size here: -b"},
    {{"-fa", "--flash-attn"}, "attention is computed in one way only; leave it out"},
    {{"--mmap", "--no-mmap", "--mlock"},
     "weights are repacked for this CPU while they are loaded, and then lie in plain memory; leave it out"},
    {{"-hf", "-hfr", "--hf-repo", "-mu", "--model-url"},
     "imago downloads nothing; fetch the model, then name its file or folder"},
    {{"--color", "-co"}, "terminals get colours by themselves, and NO_COLOR=1 turns them off; leave it out"},
    {{"--imatrix"}, "--importance takes such files here, and 'imago calibrate' makes them"},
    {{"--log-disable", "-lv", "--verbosity"}, "--quiet is what there is to say less"},
};

}  // namespace

std::optional<std::string> explain_foreign_flag(std::string_view flag) {
  const std::string_view name = flag.substr(0, flag.find('='));
  for (const Foreign& foreign : kForeign) {
    if (std::find(foreign.flags.begin(), foreign.flags.end(), name) == foreign.flags.end()) continue;
    return fmt::format("'{}' is a flag of llama.cpp: {}", name, foreign.answer);
  }
  return std::nullopt;
}

}  // namespace imago::cli
