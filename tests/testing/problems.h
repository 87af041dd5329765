#pragma once

// What a call that must fail says.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>

#include "imago/error.h"

namespace imago::testing {

/// The text of the error that `call` throws; "no error" if it throws none.
inline std::string problem_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

inline void expect_found(std::string_view text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string_view::npos) << text;
}

inline void expect_problem(const std::function<void()>& call, std::string_view text) {
  EXPECT_NE(problem_of(call).find(text), std::string::npos) << problem_of(call);
}

}  // namespace imago::testing
