// Plan files: the type of each weight matrix, in JSON that people can read and edit.

#include <fmt/format.h>

#include <algorithm>

#include "base/atomic_file.h"
#include "base/file.h"
#include "files/json.h"
#include "files/json_writer.h"
#include "imago/error.h"
#include "imago/models.h"

namespace imago {

namespace {

using files::JsonValue;

constexpr std::int64_t kPlanVersion = 1;
/// A plan names each matrix once: room for a model of many thousand blocks.
constexpr std::size_t kMostPlanBytes = std::size_t{64} << 20;

constexpr std::pair<std::string_view, Rounding> kRoundings[] = {
    {"nearest", Rounding::nearest}, {"compensated", Rounding::compensated}, {"scaled", Rounding::scaled}};

Rounding parse_rounding(const JsonValue& value) {
  const std::string text = value.string("rounding");
  for (const auto& [word, rounding] : kRoundings) {
    if (word == text) return rounding;
  }
  value.fail(fmt::format("'{}' is not a rounding; use nearest, compensated or scaled", text));
}

Format parse_type(const JsonValue& value, const std::string& tensor) {
  const std::string text = value.string(tensor);
  try {
    return parse_format(text);
  } catch (const UsageError& error) {
    value.fail(fmt::format("tensor '{}': {}", tensor, error.what()));
  }
}

}  // namespace

TypePlan parse_plan(std::string_view json, std::string_view file) {
  if (json.size() > kMostPlanBytes) {
    throw FormatError(file, 0,
                      fmt::format("{} bytes are too many for a plan, which takes a few kilobytes", json.size()));
  }
  const files::JsonDocument document = files::JsonDocument::parse(json, file);
  const JsonValue root = document.root();
  if (root.kind() != files::JsonKind::object) root.fail("a plan is an object with 'imago_plan' and 'tensors'");
  const auto version = root.find("imago_plan");
  if (!version) root.fail("this is not a plan: it has no 'imago_plan'; 'imago plan' writes one");
  version->integer("imago_plan", kPlanVersion, kPlanVersion);
  TypePlan plan;
  bool has_tensors = false;
  for (const auto& [key, value] : root.members("a plan")) {
    if (key == "tensors") {
      has_tensors = true;
      for (const auto& [name, type] : value.members("tensors")) plan.tensors.emplace_back(name, parse_type(type, name));
    } else if (key == "rounding") {
      plan.rounding = parse_rounding(value);
    } else if (key == "facts") {
      value.members("facts");
      plan.facts = std::string(value.source());
    } else if (key != "imago_plan") {
      value.fail(fmt::format("'{}' is not a key of a plan; its keys are 'tensors', 'rounding' and 'facts'", key));
    }
  }
  if (!has_tensors || plan.tensors.empty()) root.fail("the plan names no tensors");
  return plan;
}

std::string format_plan(const TypePlan& plan) {
  files::StringSink sink;
  files::JsonWriter writer(sink, files::JsonStyle::indented);
  writer.begin_object();
  writer.key("imago_plan");
  writer.value(kPlanVersion);
  writer.key("rounding");
  writer.value(std::ranges::find(kRoundings, plan.rounding, &std::pair<std::string_view, Rounding>::second)->first);
  writer.key("tensors");
  writer.begin_object();
  for (const auto& [name, type] : plan.tensors) {
    writer.key(name);
    writer.value(type.name());
  }
  writer.end_object();
  if (!plan.facts.empty()) {
    writer.key("facts");
    writer.raw(plan.facts);
  }
  writer.end_object();
  sink.write("\n");
  return std::move(sink.text());
}

TypePlan read_plan(const std::string& path) {
  const MappedFile file = MappedFile::open(path, Reading::eager);
  return parse_plan(file.text(), path);
}

void write_plan(const TypePlan& plan, const std::string& path) {
  AtomicFile file(path);
  file.write(format_plan(plan));
  file.commit();
}

}  // namespace imago
