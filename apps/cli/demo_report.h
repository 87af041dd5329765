#pragma once

// What `imago demo` found, as a page.

#include <vector>

#include "demo_language.h"
#include "demo_network.h"
#include "imago/precision.h"

namespace imago::cli {

/// The curve of the network over its types, and that of the language model with its spreads where there is one.
PrecisionReport demo_report(const DemoNetwork& demo, const std::vector<DemoRow>& rows,
                            const std::vector<DemoModel>& models);

}  // namespace imago::cli
