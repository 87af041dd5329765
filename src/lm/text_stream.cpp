#include "lm/text_stream.h"

#include <algorithm>
#include <utility>

#include "imago/error.h"

namespace imago::lm {

TextStream::TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {
  const bool empty = std::any_of(stops_.begin(), stops_.end(), [](const std::string& stop) { return stop.empty(); });
  if (empty) throw UsageError("a stop string is empty; leave it out");
}

std::string TextStream::push(std::string_view bytes) {
  if (stopped_) return {};
  held_ += characters_.push(bytes);
  std::size_t end = std::string::npos, start = 0;
  for (const std::string& stop : stops_) {
    const std::size_t found = held_.find(stop);
    if (found == std::string::npos) continue;
    const std::size_t after = found + stop.size();
    if (after > end || (after == end && found > start)) continue;
    end = after;
    start = found;
  }
  if (end != std::string::npos) {
    stopped_ = true;
    held_.resize(start);
    return std::exchange(held_, {});
  }
  const std::size_t certain = held_.size() - held_bytes();
  std::string out = held_.substr(0, certain);
  held_.erase(0, certain);
  return out;
}

std::string TextStream::finish() {
  if (stopped_) return {};
  return std::exchange(held_, {}) + characters_.finish();
}

/// Of the longest end of the text that starts a stop string.
std::size_t TextStream::held_bytes() const noexcept {
  std::size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t size = std::min(stop.size() - 1, held_.size()); size > longest; --size) {
      if (held_.compare(held_.size() - size, size, stop, 0, size) != 0) continue;
      longest = size;
      break;
    }
  }
  return longest;
}

}  // namespace imago::lm
