#pragma once

// The weights that go to an accelerator instead of into run forms of the host.

#include <memory>

#include "lm/accelerator.h"
#include "lm/matrix_loader.h"
#include "models/decoder_tensors.h"

namespace imago::lm {

/// The accelerator that the options ask for, still without weights; null if they ask for none. Throws DeviceError if
/// the weights will not fit, saying how many layers would.
std::unique_ptr<Accelerator> plan_accelerator(const models::DecoderTensors& tensors, const models::Traits& traits,
                                              const MatrixLoader& matrices, const LanguageModelOptions& options);

/// Gives it what it has to have: its blocks, the output, and the token embedding where it embeds. Throws as
/// load_decoder, and DeviceError.
void load_accelerator(const models::DecoderTensors& tensors, const models::Traits& traits, MatrixLoader& matrices,
                      Accelerator& accelerator);

}  // namespace imago::lm
