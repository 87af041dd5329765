#pragma once

// What the commands that read files share: loading with errors that name the file, and values that must be numbers.

#include <functional>
#include <string>

#include "imago/files.h"
#include "imago/numeric.h"

namespace imago::cli {

/// Runs `work` and puts the name of the file to blame in front of complaints about shapes and settings. These are then
/// failures of the work, exit code 1, and no mistakes in the command line.
void blame(const std::string& file, const std::function<void()>& work);

/// A network that can run. An architecture will do where no layer needs weights. Throws UnsupportedError that says what
/// to do otherwise.
Network load_runnable(const std::string& path, const LoadOptions& options = {});

/// Whether files of this form hold a network of layers.
bool is_network(FileForm form) noexcept;

/// All bytes of a file. Throws IoError.
std::string read_text(const std::string& path);

/// Says early that there is no folder for a file at `path`. Throws IoError.
void check_folder(const std::string& path);

/// Says early, before hours of work, that a network cannot be saved at `path`. Throws UsageError for an extension that
/// save_network does not know, IoError if there is no such folder.
void check_output(const std::string& path);

/// Tensor `name` of a safetensors file as float32. Throws FormatError for NaN in it.
Tensor<float> read_tensor(const std::string& path, const std::string& name);

}  // namespace imago::cli
