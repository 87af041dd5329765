#include "files/base64.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstdint>
#include <cstring>

#include "base/parallel.h"
#include "imago/error.h"

namespace imago::files {

namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint32_t kWrong = 0xFF000000;
static_assert(std::endian::native == std::endian::little);

/// For each of the four characters of a quad a table with its bits in place; a quad is the OR of four look-ups, and
/// bits above the 24 of a quad mean that a character was none of the alphabet.
using QuadTables = std::array<std::array<std::uint32_t, 256>, 4>;

constexpr QuadTables make_tables() {
  QuadTables tables{};
  for (std::size_t place = 0; place < 4; ++place) {
    tables[place].fill(kWrong);
    for (std::uint32_t code = 0; code < 64; ++code) {
      const std::uint32_t bits = code << (18 - 6 * place);
      const std::uint32_t swapped = bits >> 16 | (bits & 0xFF00) | (bits & 0xFF) << 16;
      tables[place][static_cast<unsigned char>(kAlphabet[code])] = swapped;
    }
  }
  return tables;
}
constexpr QuadTables kTables = make_tables();

std::uint32_t quad_at(const char* text) {
  const auto code = [&](std::size_t place) { return kTables[place][static_cast<unsigned char>(text[place])]; };
  return code(0) | code(1) | code(2) | code(3);
}

// Quads per part of the pool: 64 KiB of text, some 50 µs.
constexpr std::size_t kGrain = 16384;

/// Quads without padding. Returns the first quad that is wrong, `quads` if none is.
std::size_t decode_quads(const char* text, std::size_t quads, std::byte* out) {
  std::atomic<std::size_t> first_wrong = quads;
  parallel_for(quads, kGrain, [&](std::size_t begin, std::size_t end) {
    // Whether all were right is asked once per run of quads, so that the loop has no exit.
    constexpr std::size_t kRun = 256;
    for (std::size_t run = begin; run < end; run += kRun) {
      const std::size_t stop = end - run < kRun ? end : run + kRun;
      std::uint32_t all = 0;
      for (std::size_t quad = run; quad + 1 < stop; ++quad) {
        const std::uint32_t bits = quad_at(text + 4 * quad);
        all |= bits;
        std::memcpy(out + 3 * quad, &bits, 4);  // one byte too many, which the next quad overwrites
      }
      const std::uint32_t last = quad_at(text + 4 * (stop - 1));
      all |= last;
      std::memcpy(out + 3 * (stop - 1), &last, 3);  // what follows may belong to another thread
      if (all < kWrong) continue;
      while (quad_at(text + 4 * run) < kWrong) ++run;
      std::size_t seen = first_wrong;
      while (run < seen && !first_wrong.compare_exchange_weak(seen, run)) {
      }
      return;
    }
  });
  return first_wrong;
}

std::size_t first_wrong_character(std::string_view text, std::size_t from) {
  const std::size_t found = text.find_first_not_of(kAlphabet, from);
  return found == std::string_view::npos ? text.size() : found;
}

/// REQUIRES: no CR or LF in it.
Base64Result decode_line(std::string_view text) {
  Base64Result result;
  if (text.empty()) return result;
  if (text.size() % 4 != 0) {
    result.wrong = first_wrong_character(text, 0);
    return result;
  }
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  const std::size_t quads = text.size() / 4 - (padding != 0 ? 1 : 0);
  result.bytes.resize(text.size() / 4 * 3 - padding);
  const std::size_t wrong_quad = decode_quads(text.data(), quads, result.bytes.data());
  if (wrong_quad != quads) {
    result.wrong = first_wrong_character(text, 4 * wrong_quad);
  } else if (padding != 0) {
    const std::size_t start = 4 * quads;
    std::array<char, 4> last = {text[start], text[start + 1], padding == 2 ? 'A' : text[start + 2], 'A'};
    const std::uint32_t bits = quad_at(last.data());
    const std::uint32_t unused = padding == 2 ? 0xFFFF00 : 0xFF0000;
    if (bits >= kWrong) {
      result.wrong = first_wrong_character(text, start);
    } else if ((bits & unused) != 0) {
      result.wrong = start + 3 - padding;  // the last character of the payload has bits that no byte takes
    } else {
      std::memcpy(result.bytes.data() + 3 * quads, &bits, 3 - padding);
    }
  }
  return result;
}

}  // namespace

void encode_base64(std::span<const std::byte> bytes, std::span<char> text) {
  assert(text.size() == base64_length(bytes.size()));
  const std::size_t quads = bytes.size() / 3;
  parallel_for(quads, kGrain, [&](std::size_t begin, std::size_t end) {
    const std::byte* in = bytes.data() + 3 * begin;
    char* out = text.data() + 4 * begin;
    for (std::size_t quad = begin; quad < end; ++quad, in += 3, out += 4) {
      const std::uint32_t bits = std::to_integer<std::uint32_t>(in[0]) << 16 |
                                 std::to_integer<std::uint32_t>(in[1]) << 8 | std::to_integer<std::uint32_t>(in[2]);
      out[0] = kAlphabet[bits >> 18];
      out[1] = kAlphabet[bits >> 12 & 63];
      out[2] = kAlphabet[bits >> 6 & 63];
      out[3] = kAlphabet[bits & 63];
    }
  });
  const std::size_t rest = bytes.size() % 3;
  if (rest == 0) return;
  const std::byte* in = bytes.data() + 3 * quads;
  const std::uint32_t bits =
      std::to_integer<std::uint32_t>(in[0]) << 16 | (rest == 2 ? std::to_integer<std::uint32_t>(in[1]) << 8 : 0);
  char* out = text.data() + 4 * quads;
  out[0] = kAlphabet[bits >> 18];
  out[1] = kAlphabet[bits >> 12 & 63];
  out[2] = rest == 2 ? kAlphabet[bits >> 6 & 63] : '=';
  out[3] = '=';
}

Base64Result decode_base64(std::string_view text) {
  // Two searches that run at the speed of memory; one for either character would not.
  if (text.find('\r') == text.npos && text.find('\n') == text.npos) return decode_line(text);
  std::string joined(text);
  std::erase_if(joined, [](char c) { return c == '\r' || c == '\n'; });
  Base64Result result = decode_line(joined);
  if (result.wrong != std::string_view::npos) {
    std::size_t left = result.wrong;  // characters of `joined` in front of the wrong one
    std::size_t at = 0;
    while (at < text.size() && (text[at] == '\r' || text[at] == '\n' || left-- > 0)) ++at;
    result.wrong = at;
  }
  return result;
}

std::vector<std::byte> decode_base64(const JsonValue& value, std::string_view what) {
  const std::string_view text = value.raw_string(what);
  // Line breaks come as escapes in JSON; other escapes are wrong characters wherever they lead.
  const bool escaped = text.find('\\') != std::string_view::npos;
  Base64Result result = escaped ? decode_base64(value.string(what)) : decode_base64(text);
  if (result.wrong != std::string_view::npos) {
    value.fail(fmt::format("{} is not base64: wrong at character {} of {}", what, result.wrong, text.size()));
  }
  return std::move(result.bytes);
}

std::size_t measure_base64(const JsonValue& value, std::string_view what) {
  const std::string_view text = value.raw_string(what);
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  const std::size_t quads = text.size() / 4 - (padding != 0 ? 1 : 0);
  std::atomic<bool> plain = text.size() % 4 == 0;
  if (plain) {
    parallel_for(quads, kGrain, [&](std::size_t begin, std::size_t end) {
      std::uint32_t all = 0;
      for (std::size_t quad = begin; quad < end; ++quad) all |= quad_at(text.data() + 4 * quad);
      if (all >= kWrong) plain = false;
    });
  }
  // The last quad, line breaks and complaints are the decoder's.
  if (!plain) return decode_base64(value, what).size();
  const Base64Result last = decode_base64(text.substr(4 * quads));
  return last.wrong == std::string_view::npos ? 3 * quads + last.bytes.size() : decode_base64(value, what).size();
}

}  // namespace imago::files
