// imago_layering MODULES ROOT: exits with 0 if every include and every file length is allowed.

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <fstream>

#include "layering.h"

int main(int argc, char** argv) try {
  if (argc != 3) {
    fmt::print(stderr, "usage: imago_layering MODULES ROOT\n");
    return 2;
  }
  std::ifstream lines(argv[1]);
  const imago::layering::Architecture architecture = imago::layering::read_architecture(lines);
  if (architecture.modules.empty()) {
    fmt::print(stderr, "{} names no modules\n", argv[1]);
    return 1;
  }
  const imago::layering::Findings includes = imago::layering::check_includes(argv[2], architecture);
  const imago::layering::Sizes sizes = imago::layering::check_sizes(argv[2]);

  for (const std::string& finding : includes) fmt::print("{}\n", finding);
  for (const std::string& finding : sizes.too_long) {
    fmt::print("{}: more than {}, split it\n", finding, imago::layering::kLongestFile);
  }
  for (const std::string& note : sizes.long_ones) fmt::print("note: {}: is that one subject?\n", note);
  return includes.empty() && sizes.too_long.empty() ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "imago_layering: {}\n", error.what());
  return 1;
}
