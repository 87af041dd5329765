// Whether networks learn: small problems in float32 and through the rounding of narrow types, and a decoder on text,
// each against what the project promises. `make bench-learning` runs it; with an argument it runs that part alone.

#include "learning_classes.h"

#include <fmt/format.h>

#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "imago/error.h"
#include "learning_text.h"

namespace {

using namespace imago;

bool run(std::string_view part) {
  const std::string reference = IMAGO_SHARED "/reference/";
  bool good = true;
  if (part.empty() || part == "classes") good = bench::learn_classes(reference + "data/digits.csv.gz");
  if (part.empty() || part == "text") {
    const std::string text = reference + "text/shakespeare.txt";
    if (std::filesystem::exists(text)) {
      good = bench::learn_text(text) && good;
    } else {
      fmt::print("\nText is left out: no {}\n", text);
    }
  }
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> arguments(argv + 1, argv + argc);
  try {
    const std::string_view part = arguments.empty() ? "" : arguments[0];
    if (arguments.size() > 1 || (!part.empty() && part != "classes" && part != "text")) {
      throw UsageError("usage: imago_bench_learning [classes|text]");
    }
    return run(part) ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "imago_bench_learning: {}\n", error.what());
    return 2;
  }
}
