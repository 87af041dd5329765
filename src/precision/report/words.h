#pragma once

// Numbers and verdicts as text for people.

#include <cstdint>
#include <optional>
#include <string>

namespace imago::precision {

/// "11.4 MiB"
std::string bytes_text(std::uint64_t bytes);
/// "1,234,567"
std::string count_text(std::uint64_t count);
/// Four significant digits: "0.03659", "9.550"; "∞" and "–" if it is not finite.
std::string figure_text(double value);
std::string figure_text(const std::optional<double>& value);
/// "90.7 %" of a share from 0 to 1.
std::string share_text(double share);
/// The same with a sign: "+2.0 %".
std::string change_text(double share);
/// For narrow cells: "0.07", "7.4", "123", "<0.01".
std::string short_text(double value);
/// "3.5× smaller", "1.2× larger", "the same size".
std::string size_change_text(std::uint64_t before, std::uint64_t after);

/// What a mean divergence of that many nats means for someone reading the model's output.
std::string divergence_in_words(double mean);

/// The last part of a path.
std::string file_name(const std::string& path);

}  // namespace imago::precision
