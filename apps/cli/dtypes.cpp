// imago dtypes: every type a weight can be stored in.

#include "command.h"
#include "imago/format.h"

namespace imago::cli {

namespace {

std::vector<std::string> aliases_of(const DTypeInfo& type) {
  std::vector<std::string> aliases;
  for (const std::string_view alias : type.aliases) {
    if (!alias.empty()) aliases.emplace_back(alias);
  }
  return aliases;
}

/// "max|w| / 127", without the divisor if it is 1.
std::string quotient(std::string_view magnitude, float divisor) {
  return divisor == 1 ? std::string(magnitude) : fmt::format("{} / {:.0f}", magnitude, divisor);
}

std::string scale_rule(const DTypeInfo& type) {
  switch (type.kind) {
    case NumberKind::wide_float: return "none: the value itself";
    case NumberKind::narrow_float:
    case NumberKind::signed_integer: return "code · " + quotient("max|w|", type.scale_divisor);
    case NumberKind::unsigned_integer:
      return "(code - zero point) · " + quotient("(max w - min w)", type.scale_divisor);
    case NumberKind::ternary: return "-1, 0 or 1 · " + quotient("max|w|", type.scale_divisor);
    case NumberKind::binary: break;
  }
  return "-1 or 1 · mean|w|";
}

Json to_json(const DTypeInfo& type) {
  return {{"id", static_cast<int>(type.id)},
          {"name", type.name},
          {"bits", type.bits},
          {"aliases", aliases_of(type)},
          {"kind", "scalar"}};
}

Json to_json(const BlockFormatInfo& block) {
  return {{"name", block.name},
          {"kind", "block"},
          {"block", block.values},
          {"block_bytes", block.bytes},
          {"bits", Format(block.id).bits()}};
}

void print_as_json() {
  Json types = Json::array();
  Json file_types = Json::array();
  for (const DTypeInfo& type : kDTypes) types.push_back(to_json(type));
  for (const BlockFormatInfo& block : kBlockFormats) (block.in_gguf() ? types : file_types).push_back(to_json(block));
  print_json({{"types", types}, {"file_types", file_types}});
}

void print_as_tables() {
  using enum Table::Align;
  Table scalars({{"id", right}, {"name"}, {"bits", right}, {"aliases"}, {"weight = code and scale"}});
  for (const DTypeInfo& type : kDTypes) {
    scalars.add({std::to_string(static_cast<int>(type.id)), std::string(type.name), std::to_string(type.bits),
                 join(aliases_of(type), " "), scale_rule(type)});
  }
  Table blocks({{"name"}, {"bits", right}, {"weights", right}, {"bytes", right}, {"weight = code and scale"}});
  std::string file_only;
  for (const BlockFormatInfo& block : kBlockFormats) {
    blocks.add({std::string(block.name), fmt::format("{}", Format(block.id).bits()), std::to_string(block.values),
                std::to_string(block.bytes), std::string(block.rule)});
    if (!block.in_gguf()) file_only = block.name;
  }
  print(fmt::format(
      "{}\n\n{}\n{}\n\n{}\n{} is only used in .entity files.\n",
      bold("Scalar types: one code per weight, scales stored apart (shown: one derived for a whole tensor)"),
      scalars.text(),
      bold("Block formats: codes and scales together, bits include both (half: a float16 in the block)"), blocks.text(),
      file_only));
}

}  // namespace

Command add_dtypes(CLI::App& program) {
  CLI::App* options = program.add_subcommand("dtypes", "List the types that weights can be stored in");
  const auto json = std::make_shared<bool>(false);
  add_json(*options, *json);
  options->footer("Examples:\n  imago dtypes\n  imago dtypes --json");
  return {options, [json] { *json ? print_as_json() : print_as_tables(); }};
}

}  // namespace imago::cli
