#pragma once

// Figures and judgements as people read them.

#include <cstdint>
#include <optional>
#include <string>

namespace imago::precision {

/// "11.4 MiB"
std::string bytes_text(std::uint64_t bytes);
/// "1,234,567"
std::string count_text(std::uint64_t count);
/// Four significant digits: "0.03659", "9.55"; "∞" and "–" for what is no number.
std::string figure_text(double value);
std::string figure_text(const std::optional<double>& value);
/// "90.7 %" of a share from 0 to 1.
std::string share_text(double share);
/// The same with a sign: "+2.0 %".
std::string change_text(double share);
/// At most two significant digits, for narrow cells: "7.4", "12", "<0.01".
std::string short_text(double value);
/// "3.5× smaller", "1.2× larger", "the same size".
std::string size_change_text(std::uint64_t before, std::uint64_t after);

/// What a mean divergence of that many nats means for a reader of the model's texts.
std::string divergence_in_words(double mean);

/// The last part of a path.
std::string file_name(const std::string& path);

}  // namespace imago::precision
