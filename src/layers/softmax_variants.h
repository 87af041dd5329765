#pragma once

// Maps of one row onto the simplex that the kernels do not have, and the one gradient that fits all of them.

#include <cstddef>
#include <cstdint>
#include <span>

namespace imago::layers {

// In float or double.

/// z[i] += G[first + i], G = -log(-log u) with u uniform, a function of seed and index alone.
template <class T>
void add_gumbel_noise(std::span<T> z, std::uint64_t seed, std::size_t first);

/// The point of the simplex nearest to z: p = max(0, z - tau) with Σ p = 1. A row with NaN, or whose largest value is
/// not finite, becomes NaN. `p` must not be `z`; it holds the sorted row on the way.
template <class T>
void sparsemax(std::span<const T> z, std::span<T> p);

/// p = max(0, (alpha - 1) · z - tau)^(1 / (alpha - 1)) with Σ p = 1, tau to the last bit of a double. Rows with NaN as
/// in sparsemax; `p` may be `z`. REQUIRES: 1 < alpha < 2.
template <class T>
void entmax(std::span<const T> z, double alpha, std::span<T> p);

/// From the gradient of p to that of z, divided by `temperature`: grad_z = s · (g - Σ s·g / Σ s) with s = p^(2 - alpha)
/// where p > 0, else 0. alpha 1 is softmax, alpha 2 sparsemax. `grad_z` may be `grad_p`.
void simplex_backward(std::span<const float> p, double alpha, float temperature, std::span<const float> grad_p,
                      std::span<float> grad_z);

}  // namespace imago::layers
