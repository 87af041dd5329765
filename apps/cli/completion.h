#pragma once

// Scripts that complete imago's command line, one form per shell. They name every command and option, what each wants,
// and the types; nothing is asked of the program while a user types.

#include <string>
#include <vector>

#include "reference.h"

namespace imago::cli {

std::string bash_completion(const std::vector<CommandReference>& commands);
std::string zsh_completion(const std::vector<CommandReference>& commands);
std::string fish_completion(const std::vector<CommandReference>& commands);

/// Words that can follow an option: its choices, or the types; none if it takes a file or anything else.
std::vector<std::string> words_after(const OptionReference& option);

}  // namespace imago::cli
