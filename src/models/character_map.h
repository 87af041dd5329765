#pragma once

// The precompiled normalizer map of SentencePiece: a trie of byte strings with their replacements.
//
// | bytes | what |
// |---|---|
// | 4 | size of the trie in bytes |
// | size | units of 32 bits of a double array |
// | rest | replacements, each ended by a zero byte |
//
// A unit holds a label in bits 0-7, whether a value hangs on it in bit 8, and the offset to its children in bits 10-30,
// times 256 if bit 9 is set; a unit with bit 31 is a value: where its replacement starts.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace imago::models {

class CharacterMap {
 public:
  /// An empty map replaces nothing. Throws FormatError for sizes that leave the bytes and an unended replacement;
  /// `file` and `field` name the map in it.
  static CharacterMap parse(std::string_view bytes, std::string_view file, std::string_view field);

  struct Match {
    std::size_t length = 0;  ///< bytes of the text that it replaces
    std::string_view replacement;
  };
  /// The longest prefix of `text` that the map replaces. Units that point outside the trie match nothing.
  std::optional<Match> longest(std::string_view text) const noexcept;
  bool empty() const noexcept { return units_.empty(); }

 private:
  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace imago::models
