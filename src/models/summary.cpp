#include "models/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <vector>

#include "backend/runner.h"
#include "models/architectures.h"
#include "models/decoder_tensors.h"
#include "models/program.h"
#include "models/tensor_layout.h"

namespace imago::models {

namespace {

using Names = std::set<std::string>;

/// What one token reads of the matrices of some steps.
struct TokenReading {
  double weights = 0, bytes = 0;

  void add(const DecoderTensors& tensors, std::span<const backend::Step> steps) {
    for (const backend::Step& step : steps) {
      const auto* const mixture = std::get_if<backend::Experts>(&step);
      for (const backend::WeightUse& use : backend::weights_of({&step, 1})) {
        using Kind = backend::WeightUse::Kind;
        if (use.kind == Kind::norm || use.kind == Kind::bias) continue;
        for (const backend::WeightKey& key : use.keys) {
          const bool chosen =
              mixture != nullptr && (key.role == Role::gate || key.role == Role::up || key.role == Role::down);
          const double share = chosen ? static_cast<double>(mixture->used) / static_cast<double>(mixture->count) : 1.0;
          const WeightSlice slice = tensors.require(key.role, key.block, key.expert);
          const double own = static_cast<double>(slice.rows) * static_cast<double>(slice.cols);
          weights += share * own;
          bytes += share * own * static_cast<double>(slice.tensor->stored_bytes()) /
                   static_cast<double>(std::max<std::size_t>(1, slice.tensor->shape.elements()));
        }
      }
    }
  }
};

/// A name without the parts that folders put around all of a model, and with "N" for the numbers of blocks and experts.
std::string pattern_of(std::string_view name) {
  for (const std::string_view prefix : {"model.", "transformer.", "language_model.", "bert.", "gpt_neox."}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  std::string pattern;
  while (!name.empty()) {
    const std::size_t end = std::min(name.find('.'), name.size());
    const std::string_view part = name.substr(0, end);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    pattern.append(pattern.empty() ? "" : ".").append(number ? "N" : part);
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return pattern;
}

/// The names that a model of an architecture has: those it must have, and all that it may have.
struct KnownNames {
  Names required, all;
};

KnownNames names_of(Architecture architecture, bool gguf) {
  Traits traits = traits_of(architecture);
  traits.blocks = 2;  // the first block may lack something
  traits.block.assign(traits.blocks, {.feed_forward = 1, .experts = facts(architecture).experts});
  traits.width = traits.heads = traits.kv_heads = traits.head_values = traits.vocabulary = 1;
  if (facts(architecture).experts) traits.experts = traits.experts_used = 1;
  KnownNames names;
  const auto visit = [&](const LayoutTensor& tensor, std::size_t) {
    const std::string pattern = pattern_of(tensor.name);
    names.all.insert(pattern);
    if (!tensor.optional) names.required.insert(pattern);
  };
  Naming naming = usual_naming(traits, gguf);
  for_each_tensor(traits, naming, visit);
  return names;
}

/// "'a', 'b' and 3 more"
std::string listed(const Names& names) {
  constexpr std::size_t kMost = 6;
  std::string text;
  std::size_t count = 0;
  for (const std::string& name : names) {
    if (count++ == kMost) break;
    text += fmt::format("{}'{}'", text.empty() ? "" : ", ", name);
  }
  return names.size() <= kMost ? text : fmt::format("{} and {} more", text, names.size() - kMost);
}

Names without(const Names& names, const Names& others) {
  Names left;
  std::ranges::set_difference(names, others, std::inserter(left, left.end()));
  return left;
}

/// One more than the largest number after which a name goes on: the blocks of a model.
std::size_t count_blocks(const files::TensorFile& file) {
  std::size_t blocks = 0;
  for (const files::StoredTensor& tensor : file.tensors()) {
    const std::string_view name = tensor.name;
    for (std::size_t at = name.find('.'); at != std::string_view::npos; at = name.find('.', at + 1)) {
      std::size_t number = 0;
      const auto [end, error] = std::from_chars(name.data() + at + 1, name.data() + name.size(), number);
      if (error != std::errc() || end == name.data() + name.size() || *end != '.') continue;
      if (number < file.tensors().size()) blocks = std::max(blocks, number + 1);
      break;
    }
  }
  return blocks;
}

}  // namespace

Summary summarize(const files::TensorFile& file) {
  const Traits traits = read_traits(file);
  const DecoderTensors tensors(file, traits);
  const backend::Program program = make_program(traits);
  TokenReading reading;
  for (const backend::Block& block : program.blocks) reading.add(tensors, block.steps);
  reading.add(tensors, program.output);
  std::uint64_t cache = 0;
  for (const kernels::CacheShape& shape :
       backend::page_shapes(program, {0, program.blocks.size()}, kernels::CacheType::f16, 1)) {
    cache += 2 * shape.bytes();
  }
  return {.architecture = std::string(name(traits.architecture)),
          .generates = traits.has_output,
          .blocks = traits.blocks,
          .width = traits.width,
          .vocabulary = traits.vocabulary,
          .context = traits.context,
          .experts = traits.experts,
          .experts_used = traits.experts_used,
          .active_parameters = static_cast<std::uint64_t>(reading.weights),
          .step_bytes = static_cast<std::uint64_t>(reading.bytes),
          .cache_bytes = traits.has_output ? cache : 0};
}

std::string describe_unknown(const files::TensorFile& file, std::string_view type) {
  const bool gguf = file.gguf() != nullptr;
  Names present;
  std::uint64_t parameters = 0;
  for (const files::StoredTensor& tensor : file.tensors()) {
    present.insert(pattern_of(tensor.name));
    parameters += tensor.shape.elements();
  }
  std::string text = fmt::format("models of {} '{}' are not supported", gguf ? "architecture" : "type", type);
  const Architecture* nearest = nullptr;
  KnownNames best;
  double best_share = 0;
  for (const ArchitectureFacts& row : architectures()) {
    KnownNames names = names_of(row.architecture, gguf);
    const Names more = without(present, names.all), less = without(names.required, present);
    const double common = static_cast<double>(present.size() - more.size());
    const double share = common / (common + static_cast<double>(more.size() + less.size()));
    if (!(share > best_share)) continue;
    best_share = share;
    nearest = &row.architecture;
    best = std::move(names);
  }
  if (nearest != nullptr) {
    text += fmt::format(". This one has {} blocks and {:.3g} billion weights", count_blocks(file),
                        1e-9 * static_cast<double>(parameters));
    const Names more = without(present, best.all), less = without(best.required, present);
    text += fmt::format("; the nearest that imago runs is {}", name(*nearest));
    if (more.empty() && less.empty()) text += ", which has tensors of the same names";
    if (!more.empty()) text += fmt::format(", which has no {}", listed(more));
    if (!less.empty()) text += fmt::format("{} needs {}", more.empty() ? ", which" : ", and", listed(less));
  }
  return text + fmt::format("; known are {}", gguf ? known_gguf_architectures() : known_model_types());
}

}  // namespace imago::models
