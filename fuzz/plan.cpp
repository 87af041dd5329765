// A plan that is accepted is written as a plan that says the same.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "imago/error.h"
#include "imago/precision.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace imago;
  TypePlan plan;
  try {
    plan = parse_plan({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const FormatError&) {
    return 0;
  }
  const std::string text = format_plan(plan);
  const TypePlan again = parse_plan(text, "written");
  if (again.tensors != plan.tensors || again.rounding != plan.rounding) std::abort();
  if (format_plan(again) != text) std::abort();
  return 0;
}
