#pragma once

// The weights of a runner by key. A key is turned into an index by arithmetic, so that steps can look their weights up
// each time they run.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/runner.h"
#include "imago/error.h"

namespace imago::backend {

/// Matrices by key, and the rows of the token embedding where the runner reads them on their own. `Matrix` has bytes().
template <class Matrix>
struct StoredMatrices final : LaidOut {
  std::vector<std::pair<WeightKey, std::optional<Matrix>>> matrices;
  std::optional<RowTable> table;
  WeightKey table_key = {};

  std::uint64_t bytes() const noexcept override {
    std::uint64_t sum = table ? table->bytes() : 0;
    for (const auto& [key, matrix] : matrices) sum += matrix ? matrix->bytes() : 0;
    return sum;
  }
};

/// `Matrix` has bytes().
template <class Matrix, class Vector>
class WeightStore {
 public:
  /// `copies`: Sizes::copies of the whole program.
  WeightStore(std::size_t blocks, std::size_t copies)
      : copies_(copies), matrices_(std::max<std::size_t>(1, blocks) * block_weights()), vectors_(matrices_.size()) {}

  /// Null if it was not given.
  const Matrix* matrix(const WeightKey& key) const {
    const std::optional<Matrix>& found = matrices_.at(index(key));
    return found ? &*found : nullptr;
  }
  const Vector* vector(const WeightKey& key) const {
    const std::optional<Vector>& found = vectors_.at(index(key));
    return found ? &*found : nullptr;
  }
  const Vector* vector(const std::optional<WeightKey>& key) const { return key ? vector(*key) : nullptr; }

  void exchange(StoredMatrices<Matrix>& others) {
    for (auto& [key, matrix] : others.matrices) std::swap(matrices_.at(index(key)), matrix);
  }
  void put(const WeightKey& key, Vector vector) { vectors_.at(index(key)).emplace(std::move(vector)); }

  /// Throws UsageError if a weight of these steps is missing.
  void require(std::span<const Step> steps) const {
    for (const WeightUse& use : weights_of(steps)) {
      for (const WeightKey& key : use.keys) {
        const bool there = use.kind == WeightUse::Kind::bias   ? true
                           : use.kind == WeightUse::Kind::norm ? vector(key) != nullptr
                                                               : matrix(key) != nullptr;
        if (!there) throw UsageError("the weight '" + std::string(name(key.role)) + "' of a decoder was not given");
      }
    }
  }

  std::uint64_t bytes() const noexcept {
    std::uint64_t sum = 0;
    for (const std::optional<Matrix>& one : matrices_) sum += one ? one->bytes() : 0;
    return sum;
  }

  /// All but routers.
  template <class Visit>
  void for_each_matrix(Visit visit) const {
    for (std::size_t i = 0; i < matrices_.size(); ++i) {
      const std::size_t within = i % block_weights();
      const bool is_router =
          within < kRoles && std::ranges::find(kRouters, static_cast<Role>(within)) != kRouters.end();
      if (matrices_[i] && !is_router) visit(*matrices_[i]);
    }
  }

  /// What these steps read of the matrices for one token: of experts as many as it uses.
  std::uint64_t step_bytes(std::span<const Step> steps) const {
    std::uint64_t sum = 0;
    const auto add = [&](const WeightKey& key, std::uint64_t& to) {
      if (const Matrix* const found = matrix(key)) to += found->bytes();
    };
    for (const Step& step : steps) {
      std::uint64_t experts = 0;
      for (const WeightUse& use : weights_of({&step, 1})) {
        if (use.kind == WeightUse::Kind::norm || use.kind == WeightUse::Kind::bias) continue;
        for (const WeightKey& key : use.keys) {
          add(key, std::holds_alternative<Experts>(step) && has_copies(key.role) ? experts : sum);
        }
      }
      if (const auto* const mixture = std::get_if<Experts>(&step)) sum += experts * mixture->used / mixture->count;
    }
    return sum;
  }

 private:
  /// Weights that each expert, or each head, has of its own.
  static constexpr std::array kCopied = {
      Role::gate,      Role::up,     Role::down,     Role::gate_bias,         Role::up_bias,
      Role::down_bias, Role::key_up, Role::value_up, Role::stream_projection, Role::stream_merge};
  static constexpr std::array kRouters = {Role::router, Role::shared_router, Role::stream_router};
  /// kCopied.size() for others.
  static std::size_t copied(Role role) noexcept {
    return static_cast<std::size_t>(std::ranges::find(kCopied, role) - kCopied.begin());
  }
  static bool has_copies(Role role) noexcept { return copied(role) != kCopied.size(); }
  std::size_t block_weights() const noexcept { return kRoles + kCopied.size() * copies_; }
  std::size_t index(const WeightKey& key) const noexcept {
    const std::size_t within =
        has_copies(key.role) ? kRoles + copied(key.role) * copies_ + key.expert : static_cast<std::size_t>(key.role);
    return key.block * block_weights() + within;
  }

  std::size_t copies_;
  // For each block by role, then for each role in kCopied by expert.
  std::vector<std::optional<Matrix>> matrices_;
  std::vector<std::optional<Vector>> vectors_;
};

}  // namespace imago::backend
