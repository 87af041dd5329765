#include "base/names.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace imago {

namespace {

/// Letters to insert, delete or replace (Levenshtein).
std::size_t letters_between(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, diagonal + 1, replaced});
    }
  }
  return row.back();
}

/// Longer texts are not misspelled names, and comparing them takes the square of their length.
constexpr std::size_t kLongestName = 256;

constexpr char lower(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

bool same_but_for_case(std::string_view a, std::string_view b) noexcept {
  return std::ranges::equal(a, b, {}, lower, lower);
}

std::vector<std::string> near_names(std::string_view text, std::span<const std::string> candidates, std::size_t count) {
  if (text.size() > kLongestName) return {};
  std::vector<std::pair<std::size_t, const std::string*>> found;
  for (const std::string& candidate : candidates) {
    if (candidate.size() <= kLongestName) found.emplace_back(letters_between(text, candidate), &candidate);
  }
  std::ranges::stable_sort(found, {}, &std::pair<std::size_t, const std::string*>::first);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(count, found.size()); ++i) names.push_back(*found[i].second);
  return names;
}

}  // namespace imago
