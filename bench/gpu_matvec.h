#pragma once

#include <memory>
#include <string_view>

#include "imago/device.h"

namespace imago::bench {

/// Prints how fast packed weights are streamed past one to eight tokens, beside what the memory delivers. `only`:
/// formats whose names begin so. Returns how many targets were missed.
int gpu_matvec_table(const std::shared_ptr<Device>& device, std::string_view only);

}  // namespace imago::bench
