#include "precision/report/words.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>

namespace imago::precision {

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, kUnits[unit]);
}

std::string count_text(std::uint64_t count) {
  std::string text = std::to_string(count);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

std::string figure_text(double value) {
  if (std::isnan(value)) return "–";
  if (std::isinf(value)) return value > 0 ? "∞" : "−∞";
  return fmt::format("{:.4g}", value == 0 ? 0.0 : value);
}

std::string figure_text(const std::optional<double>& value) { return value ? figure_text(*value) : "–"; }

std::string share_text(double share) {
  if (!std::isfinite(share)) return "–";
  // 99.997 % is not 100 %.
  const int decimals = share > 0.999 && share < 1 ? 3 : 1;
  return fmt::format("{:.{}f} %", 100 * share, decimals);
}

std::string change_text(double share) {
  if (!std::isfinite(share)) return "–";
  const double percent = 100 * share;
  const int decimals = std::abs(percent) < 1 ? 2 : std::abs(percent) < 100 ? 1 : 0;
  return fmt::format("{}{:.{}f} %", percent < 0 ? "−" : "+", std::abs(percent), decimals);
}

std::string short_text(double value) {
  if (!std::isfinite(value)) return "–";
  if (value == 0) return "0";
  if (value < 0.01) return "<0.01";
  if (value < 1) return fmt::format("{:.2f}", value);
  return value < 10 ? fmt::format("{:.1f}", value) : fmt::format("{:.0f}", value);
}

std::string size_change_text(std::uint64_t before, std::uint64_t after) {
  if (before == 0 || after == 0) return "–";
  const double ratio = static_cast<double>(before) / static_cast<double>(after);
  if (std::abs(ratio - 1) < 0.005) return "the same size";
  return ratio > 1 ? fmt::format("{:.3g}× smaller", ratio) : fmt::format("{:.3g}× larger", 1 / ratio);
}

std::string divergence_in_words(double mean) {
  if (!(mean >= 0)) return "its predictions are not numbers";
  if (mean == 0) return "it predicts exactly what the original does";
  if (mean < 0.001) return "it is the same model for all practical purposes";
  if (mean < 0.01) return "the difference is hard to notice";
  if (mean < 0.05) return "the difference is small, and shows in careful tests";
  if (mean < 0.2) return "the difference is noticeable";
  if (mean < 1) return "the difference is large";
  return "little is left of the original";
}

std::string file_name(const std::string& path) {
  const std::size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path;
  const std::size_t slash = path.find_last_of('/', end);
  const std::size_t begin = slash == std::string::npos ? 0 : slash + 1;
  return path.substr(begin, end + 1 - begin);
}

}  // namespace imago::precision
