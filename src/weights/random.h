#pragma once

// Random weights. Each one is a function of the seed and its index alone, computed with exactly rounded operations only
// (no libm), so the same seed gives the same bits on every machine and for every number of threads.

#include <cstdint>
#include <span>

namespace imago {

/// A seed of its own for part `index` of what is made from `seed`: layers of a network, matrices of a layer.
std::uint64_t derive_seed(std::uint64_t seed, std::uint64_t index) noexcept;

/// Uniform in [-range, range].
void fill_uniform(std::span<float> weights, std::uint64_t seed, float range);

/// Normal with mean 0 and standard deviation `deviation`.
void fill_normal(std::span<float> weights, std::uint64_t seed, double deviation);

}  // namespace imago
