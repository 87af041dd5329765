// Characters out of bytes that arrive in pieces.

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
