// Plans as text: what is written comes back, and what people mistype is told with its place.

#include <gtest/gtest.h>

#include "imago/error.h"
#include "imago/models.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

std::string problem_of(const std::string& json) {
  try {
    parse_plan(json, "plan.json");
  } catch (const FormatError& error) {
    return error.what();
  }
  return "no FormatError";
}

void expect_problem(const std::string& json, const std::string& part) {
  EXPECT_NE(problem_of(json).find(part), std::string::npos) << json << "\n" << problem_of(json);
}

TEST(PlanFile, ComesBackAsItWas) {
  TypePlan plan;
  plan.tensors = {{"token_embd.weight", BlockFormat::q6_k},
                  {"blk.0.attn_q.weight", BlockFormat::iq4_xs},
                  {"layers.0.\"odd\" \xC3\xA4", DType::float16}};
  plan.rounding = Rounding::compensated;
  plan.facts = R"({"model":"m","kl":0.25})";
  const testing::TempDir folder;
  const std::string path = folder.path() / "plan.json";
  write_plan(plan, path);
  const TypePlan back = read_plan(path);
  EXPECT_EQ(back.tensors, plan.tensors) << "in their order";
  EXPECT_EQ(back.rounding, plan.rounding);
  EXPECT_EQ(parse_plan(format_plan(back), "again").facts, back.facts);
  EXPECT_NE(back.facts.find("0.25"), std::string::npos);
}

TEST(PlanFile, PeopleMayWriteLittle) {
  const TypePlan plan = parse_plan(R"({"tensors": {"blk.0.ffn_up.weight": "Q4_K"}, "imago_plan": 1})", "plan.json");
  ASSERT_EQ(plan.tensors.size(), 1u);
  EXPECT_EQ(plan.tensors[0].second, Format(BlockFormat::q4_k)) << "types in any case";
  EXPECT_EQ(plan.rounding, Rounding::nearest);
  EXPECT_EQ(plan.facts, "");
}

TEST(PlanFile, MistakesAreTold) {
  expect_problem("[]", "a plan is an object");
  expect_problem("{}", "this is not a plan: it has no 'imago_plan'");
  expect_problem(R"({"imago_plan": 2, "tensors": {"a": "q4_k"}})", "imago_plan");
  expect_problem(R"({"imago_plan": 1})", "names no tensors");
  expect_problem(R"({"imago_plan": 1, "tensors": {}})", "names no tensors");
  expect_problem(R"({"imago_plan": 1, "tensors": {"a": 4}})", "a");
  expect_problem(R"({"imago_plan": 1, "tensors": {"a": "q4_kk"}})", "tensor 'a'");
  expect_problem(R"({"imago_plan": 1, "tensors": {"a": "q4_k", "a": "q5_k"}})", "a");
  expect_problem(R"({"imago_plan": 1, "tensor": {"a": "q4_k"}})", "'tensor' is not a key of a plan");
  expect_problem(R"({"imago_plan": 1, "tensors": {"a": "q4_k"}, "rounding": "up"})", "'up' is not a rounding");
  expect_problem(R"({"imago_plan": 1, "tensors": {"a": "q4_k"}, "facts": 3})", "facts");
  expect_problem(R"({"imago_plan": 1, "tensors": )", "plan.json");
}

}  // namespace
}  // namespace imago
