#pragma once

// The program under test.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "testing/process.h"

namespace imago::testing {

inline ProcessResult imago_run(std::vector<std::string> arguments, const ProcessOptions& options = {}) {
  arguments.insert(arguments.begin(), IMAGO_PROGRAM);
  return run_process(arguments, options);
}

/// Expects exit code `code`, nothing on standard output, and exactly one line "imago: error: …" with `words` in it.
inline void expect_error(const ProcessResult& result, int code, const std::string& words) {
  EXPECT_EQ(result.exit_code, code) << result.err;
  EXPECT_EQ(result.signal, 0);
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(result.err.starts_with("imago: error: ")) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_TRUE(result.err.ends_with("\n")) << result.err;
  EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
}

/// Expects that 'imago COMMAND --help' states defaults and examples.
inline void expect_help(const std::string& command) {
  const ProcessResult result = imago_run({command, "--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_NE(result.out.find("imago " + command + " [OPTIONS]"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("(default: "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("Examples:\n  imago " + command), std::string::npos) << result.out;
}

/// The one JSON object on standard output.
inline nlohmann::json expect_json(const ProcessResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  nlohmann::json object = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_TRUE(object.is_object()) << result.out;
  return object;
}

}  // namespace imago::testing
