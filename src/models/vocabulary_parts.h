#pragma once

// What the readers and writers of vocabularies share.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/json.h"
#include "models/vocabulary.h"

namespace imago::models {

/// U+2581, which stands for a space in SentencePiece vocabularies.
inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";

inline constexpr std::size_t kMaxTokenBytes = 65536;
inline constexpr std::size_t kMaxTokens = std::size_t{1} << 24;
inline constexpr std::size_t kMaxMerges = std::size_t{1} << 22;

/// Expressions that take time quadratic in the digits; tokenizers group digits by hand where a vocabulary has them.
/// The first cuts numbers that a word boundary follows into threes from the right, the second all numbers.
inline constexpr std::string_view kDigitGroups = R"re(\d{1,3}(?=(?:\d{3})*\b))re";
inline constexpr std::string_view kDigitGroupStarts = R"re((?=(\d{3})+(?!\d)))re";

/// A row of the table of pre-tokenizers: names of the same expressions and habits.
struct PreTokenizer {
  std::vector<std::string_view> names;
  std::vector<std::string> patterns;
  bool ignore_merges = false;
  bool add_bos = false;  ///< unless the file says otherwise
};
const PreTokenizer* find_pre_tokenizer(std::string_view name) noexcept;
/// The name for GGUF; empty if they are none of the named ones.
std::string_view name_of_patterns(std::span<const std::string> patterns, bool ignore_merges);
/// Whether a named pre-tokenizer uses it, so that its time is known to be linear.
bool is_known_pattern(std::string_view pattern) noexcept;

/// The special tokens that a vocabulary names, and what messages and files call them.
struct SpecialToken {
  std::optional<std::int32_t> Vocabulary::*id;
  std::string_view name, gguf_key, config_key;
};
inline constexpr SpecialToken kSpecialTokens[] = {
    {&Vocabulary::bos, "BOS", "bos_token_id", "bos_token"},
    {&Vocabulary::eos, "EOS", "eos_token_id", "eos_token"},
    {&Vocabulary::unknown, "unknown", "unknown_token_id", "unk_token"},
    {&Vocabulary::padding, "padding", "padding_token_id", "pad_token"},
    {&Vocabulary::separator, "separator", "seperator_token_id", "sep_token"},  // so spelled in GGUF
};

/// How errors name the file and its fields: "'tokenizer.ggml.tokens'".
struct VocabularyPlace {
  std::string file;
  std::string tokens, merges, map;
};

/// Checks all that both forms have in common. Throws FormatError with the field and what is wrong.
void check_vocabulary(const Vocabulary& vocabulary, const VocabularyPlace& place);
/// Adds EOS and control tokens that published models use for the end of a turn. Each end comes once.
void complete_ends(Vocabulary& vocabulary);
/// Whether a text can spell it: not so control, unknown and byte tokens.
bool is_spellable(const Token& token) noexcept;
/// The byte that "<0x4F>" names; -1 if it is not such a name.
int named_byte(std::string_view text) noexcept;
/// The token of type `byte` for each byte; -1 where there is none.
std::array<std::int32_t, 256> byte_tokens(const Vocabulary& vocabulary);

/// How a file with this prefix of continuing pieces spells a token: "##ing" and "word" of tokenizer.json are "ing" and
/// "▁word" in GGUF.
std::string spelled(const Vocabulary& vocabulary, const Token& token, std::string_view word_prefix);
/// The halves of a merge, "a b"; none if it is not a pair of tokens with a space between.
std::optional<std::pair<std::string, std::string>> split_merge(std::string_view text);
/// All ways to make tokens out of two others, best score first: SentencePiece BPE as merges.
std::vector<std::pair<std::string, std::string>> merges_of_scores(const Vocabulary& vocabulary);
/// The other way: the earlier a token is made, the better.
std::vector<float> scores_of_merges(const Vocabulary& vocabulary);

// The parts of tokenizer.json, each read into the Vocabulary it belongs to. All throw FormatError at the value that is
// wrong and UnsupportedError, naming the type, for steps that imago does not take.

inline constexpr std::string_view kGpt2Pattern =
    R"re('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)re";

/// The value of "type". Throws FormatError if there is none.
std::string json_type(const files::JsonValue& object, std::string_view what);
bool json_flag(const files::JsonValue& object, std::string_view key, bool otherwise);

/// `model` and `added_tokens`: kind, tokens, merges, unknown. The kind of BPE is decided by the other parts.
void read_json_model(const files::JsonValue& root, Vocabulary& vocabulary);
/// `normalizer` and `pre_tokenizer`. Decides between the kinds of BPE.
void read_json_steps(const files::JsonValue& root, Vocabulary& vocabulary);
/// `post_processor`: what is put around a text. Returns whether there is one that says so.
bool read_json_post_processor(const files::JsonValue& root, Vocabulary& vocabulary);

/// The id of a token by its text; none if there is no such token.
std::optional<std::int32_t> find_token(const Vocabulary& vocabulary, std::string_view text);

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
