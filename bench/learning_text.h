#pragma once

#include <string>

namespace imago::bench {

/// Trains a decoder of about a million parameters on the characters of `path`, printing how it goes. True if it gets
/// below the promised loss on the last tenth of the text, which it never trains on, in the promised time.
bool learn_text(const std::string& path);

}  // namespace imago::bench
