#pragma once

// Reading and checking files, with errors that name the file, and finding the default language model.

#include <string>

#include "imago/error.h"
#include "imago/files.h"
#include "imago/numeric.h"

namespace imago::cli {

/// Rethrows the exception that is being handled, an error about shapes or settings with the name of the file. It then
/// counts as a failure of the work (exit code 1), not as a mistake in the command line.
[[noreturn]] void rethrow_for(const std::string& file, const Error& error);

/// The result of `work`; its errors name the file.
template <class Work>
auto blame(const std::string& file, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    rethrow_for(file, error);
  }
}

/// Loads a network that can run: a checkpoint, or an architecture without layers that need weights. Throws
/// UnsupportedError that says what to do otherwise.
Network load_runnable(const std::string& path, const LoadOptions& options = {});

/// All bytes of a file. Throws IoError.
std::string read_text(const std::string& path);

/// Throws IoError if the folder of `path` does not exist.
void check_folder(const std::string& path);

/// Checks before hours of work that a network can be saved at `path`. Throws UsageError for an extension that
/// save_network does not know, IoError if the folder does not exist.
void check_network_output(const std::string& path);

/// IMAGO_MODEL, else the bundled model; empty if there is none.
std::string default_model();

/// `given`, else the default model. Throws UsageError that lists the places it looked at if there is none.
std::string model_path(const std::string& given);

/// The bundled model: in the source tree for a program in its build folder, in share/imago for an installed one. Empty
/// if there is none. Ignores IMAGO_MODEL.
std::string bundled_model();

}  // namespace imago::cli
