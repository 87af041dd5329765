#pragma once

// The layers in a file of training: see train_state.cpp for what it holds.

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "imago/error.h"
#include "imago/files.h"
#include "imago/network.h"

namespace imago {

/// All values of a tensor. Throws FormatError if it is absent or of another type.
template <class T>
std::vector<T> read_list(const SafetensorsFile& file, const std::string& name, SafetensorsType type) {
  const SafetensorsTensor& tensor = file.require(name);
  if (tensor.type != type) {
    throw FormatError(file.path(), 8, fmt::format("{} is {}, not {}", name, tensor.dtype, imago::name(type)));
  }
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

/// Empty if there is none.
std::string metadata_of(const SafetensorsFile& file, std::string_view key);

/// The tensor with the scale of a type that a layer does not have now.
std::string other_scale(std::string_view path, DType dtype);

/// The network as a checkpoint without weights, in one line.
std::string settings_text(const Network& network);

/// Gives every layer its weights, scales and type; its settings too, where the file has them. Throws FormatError, and
/// changes nothing, if they belong to another network.
void restore_layers(const SafetensorsFile& file, Network& network);

}  // namespace imago
