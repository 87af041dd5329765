#include "lm/morph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <regex>
#include <string>

#include "backend/memory.h"
#include "base/pattern.h"
#include "imago/error.h"
#include "models/tensor_layout.h"

namespace imago::lm {

namespace {

using backend::WeightKey;
using models::Role;

/// Names of matrices as in GGUF files, each made once: those of experts are many.
class Names {
 public:
  explicit Names(const models::Traits& traits) : traits_(traits) {}

  const std::string& operator()(const WeightKey& key) {
    std::string& name = names_[{key.role, key.block}];
    if (name.empty()) name = models::matrix_name(traits_, key.role, key.block);
    return name;
  }

 private:
  const models::Traits& traits_;
  std::map<std::pair<Role, std::size_t>, std::string> names_;
};

struct RoleSet {
  std::string_view name;
  std::vector<Role> roles;
};

/// Which matrices a pattern means.
class Pattern {
 public:
  explicit Pattern(std::string_view text) : text_(text) {
    static const std::array kSets = {
        RoleSet{"attention", {Role::query, Role::key, Role::value, Role::attention_output}},
        RoleSet{"ffn", {Role::gate, Role::up, Role::down}},
        RoleSet{"embedding", {Role::token_embedding}},
    };
    for (const RoleSet& set : kSets) {
      if (set.name == text) roles_ = set.roles;
    }
    for (std::size_t i = 0; i < backend::kRoles; ++i) {
      if (backend::name(static_cast<Role>(i)) == text) roles_ = {static_cast<Role>(i)};
    }
    if (!roles_.empty()) return;
    const bool is_block =
        text.size() > 4 && text.starts_with("blk.") && text.find_first_not_of("0123456789", 4) == text.npos;
    expression_ = compile_pattern(is_block ? fmt::format("^{}\\.", text) : text_);
  }

  /// `tied`: the embedding is the output too.
  bool matches(const WeightKey& key, const std::string& name, bool tied) const {
    if (roles_.empty()) return std::regex_search(name, expression_);
    const auto has = [&](Role role) { return std::ranges::find(roles_, role) != roles_.end(); };
    return has(key.role) || (tied && has(Role::output));
  }

  UsageError nothing(const DecoderWeights& weights) const {
    return UsageError(
        fmt::format("no matrix matches '{}'; a pattern is a role (ffn, attention, query, key, value, attention_output, "
                    "gate, up, down, embedding, output), a block (blk.0 to blk.{}) or a regular expression over names "
                    "such as {}; norms and routers keep their types",
                    text_, weights.traits.blocks - 1, models::matrix_name(weights.traits, Role::down, 0)));
  }

 private:
  std::string text_;
  std::vector<Role> roles_;
  std::regex expression_;
};

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (std::ranges::find(names, name) == names.end()) names.push_back(name);
}

}  // namespace

std::vector<ModelMatrix> list_matrices(const DecoderWeights& weights) {
  std::vector<ModelMatrix> list;
  std::map<std::pair<Role, std::size_t>, std::size_t> places;  // experts are one matrix in the list
  Names names(weights.traits);
  for (const MatrixGroup& group : weights.groups) {
    for (std::size_t i = 0; i < group.keys.size(); ++i) {
      const WeightKey& key = group.keys[i];
      const auto [place, is_new] = places.try_emplace({key.role, key.block}, list.size());
      if (is_new) {
        const bool outside = key.role == Role::token_embedding || key.role == Role::output;
        list.push_back({.name = names(key),
                        .role = std::string(backend::name(key.role)),
                        .block = outside ? std::nullopt : std::optional(key.block),
                        .type = group.formats[i]});
      }
      const models::RoleExtent extent = models::extent_of(weights.traits, key.role, key.block);
      list[place->second].weights += std::uint64_t{extent.rows} * extent.cols;
      list[place->second].bytes += weights.runners[group.runner]->bytes(key);
    }
  }
  return list;
}

MorphedMatrices Metamorphosis::morph(DecoderWeights& weights, std::string_view pattern, Format type,
                                     const Progress& progress) {
  const Pattern wanted(pattern);
  const std::shared_ptr<MatrixSource> source = weights.open_source();
  Names names(weights.traits);
  std::vector<Change> changes;
  std::vector<std::string> misfits;
  bool found = false;
  for (std::size_t index = 0; index < weights.groups.size(); ++index) {
    const MatrixGroup& group = weights.groups[index];
    std::vector<Format> formats = group.formats;
    for (std::size_t i = 0; i < formats.size(); ++i) {
      const WeightKey& key = group.keys[i];
      if (!wanted.matches(key, names(key), group.looked_up && group.multiplied)) continue;
      found = true;
      formats[i] = source->format_for(source->tensors().require(key.role, key.block, key.expert), type);
      if (formats[i] != type) add_once(misfits, names(key));
    }
    if (formats != group.formats) changes.emplace_back(index, std::move(formats));
  }
  if (!found) throw wanted.nothing(weights);
  MorphedMatrices result = apply(weights, changes, progress);
  result.misfits = std::move(misfits);
  return result;
}

MorphedMatrices Metamorphosis::undo(DecoderWeights& weights, const Progress& progress) {
  if (history_.empty()) throw UsageError("there is nothing to undo: every matrix has the type it was loaded in");
  // The other way round: versions replaced last are those most likely to be kept.
  const std::vector<Change> changes(history_.back().rbegin(), history_.back().rend());
  MorphedMatrices result = apply(weights, changes, progress);
  history_.resize(history_.size() - 2);  // what was undone, and the change back
  return result;
}

MorphedMatrices Metamorphosis::apply(DecoderWeights& weights, const std::vector<Change>& changes,
                                     const Progress& progress) {
  MorphedMatrices result{.bytes_before = weights.run_bytes};
  Names names(weights.traits);
  for (const auto& [index, formats] : changes) {
    const MatrixGroup& group = weights.groups[index];
    for (std::size_t i = 0; i < formats.size(); ++i) {
      if (formats[i] != group.formats[i]) add_once(result.changed, names(group.keys[i]));
    }
  }
  std::vector<Change> done;
  try {
    exchange(weights, changes, done, progress, result.encoded);
  } catch (...) {
    std::ranges::reverse(done);
    std::vector<Change> ignored;
    std::size_t again = 0;
    exchange(weights, done, ignored, {}, again);
    weights.count_bytes();
    throw;
  }
  weights.count_bytes();
  if (!changes.empty()) history_.push_back(std::move(done));
  result.bytes_after = weights.run_bytes;
  return result;
}

void Metamorphosis::exchange(DecoderWeights& weights, const std::vector<Change>& changes, std::vector<Change>& done,
                             const Progress& progress, std::size_t& encoded) {
  if (changes.empty()) return;
  done.reserve(changes.size());
  std::vector<std::uint64_t> most;
  for (std::size_t i = 0; i < weights.runners.size(); ++i) {
    const std::uint64_t free = backend::free_memory(weights.runners[i]->device()->name());
    most.push_back(most_kept_.value_or(free / 2 + kept_bytes_[i] / 2));
  }
  std::shared_ptr<MatrixSource> source;  // opened for the first version that was not kept
  for (const Change& change : changes) {
    MatrixGroup& group = weights.groups[change.first];
    Version version{.change = change, .laid = {}};
    const auto found = std::ranges::find(kept_, change, &Version::change);
    if (found != kept_.end()) {
      version = std::move(*found);
      kept_.erase(found);
      kept_bytes_[group.runner] -= version.laid.bytes();
    } else {
      if (source == nullptr) source = weights.open_source();
      std::vector<PreparedMatrix> prepared;
      std::vector<models::WeightSlice> slices;
      for (std::size_t i = 0; i < group.keys.size(); ++i) {
        const WeightKey& key = group.keys[i];
        slices.push_back(source->tensors().require(key.role, key.block, key.expert));
        prepared.push_back(source->prepare(slices.back(), change.second[i]));
      }
      version.laid = weights.lay_out(group, std::move(prepared));
      for (const models::WeightSlice& slice : slices) release(slice);
      ++encoded;
    }
    weights.exchange(group, version.laid);
    version.change.second = std::exchange(group.formats, change.second);
    done.push_back(version.change);
    kept_bytes_[group.runner] += version.laid.bytes();
    kept_.push_back(std::move(version));
    for (auto oldest = kept_.begin(); kept_bytes_[group.runner] > most[group.runner];) {
      const bool here = weights.groups[oldest->change.first].runner == group.runner;
      if (here) kept_bytes_[group.runner] -= oldest->laid.bytes();
      oldest = here ? kept_.erase(oldest) : oldest + 1;
    }
    if (progress) progress(done.size(), changes.size());
  }
}

}  // namespace imago::lm
