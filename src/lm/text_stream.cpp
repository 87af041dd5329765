#include "lm/text_stream.h"

#include <algorithm>
#include <utility>

#include "imago/error.h"
#include "imago/lm.h"

namespace imago {

namespace {

/// Bytes of the character that `lead` starts; 1 for what starts none.
std::size_t character_bytes(unsigned char lead) noexcept {
  if (lead >= 0xf0 && lead < 0xf8) return 4;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  if (lead >= 0xc0 && lead < 0xe0) return 2;
  return 1;
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  // Only the last character can be cut: look for its first byte in the last three.
  std::size_t complete = pending_.size();
  for (std::size_t back = 1; back <= 3 && back <= pending_.size(); ++back) {
    const auto byte = static_cast<unsigned char>(pending_[pending_.size() - back]);
    if ((byte & 0xc0) == 0x80) continue;
    if (character_bytes(byte) > back) complete = pending_.size() - back;
    break;
  }
  std::string whole = pending_.substr(0, complete);
  pending_.erase(0, complete);
  return whole;
}

std::string Utf8Stream::finish() {
  const bool cut = !pending_.empty();
  pending_.clear();
  return cut ? "\xef\xbf\xbd" : "";
}

}  // namespace imago

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

/// Bytes of the longest end of the text that starts a stop string.
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
