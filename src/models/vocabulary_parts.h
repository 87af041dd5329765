#pragma once

// What the readers and writers of vocabularies share.

#include <span>
#include <string>
#include <string_view>
#include <vector>

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

/// A text that stands where it should be: "the vocabulary", "'tokenizer.ggml.tokens'".
struct VocabularyPlace {
  std::string file;
  std::string tokens, merges, map;  ///< how errors name these fields
};

/// Checks all that both forms have in common. Throws FormatError with the field and what is wrong.
void check_vocabulary(const Vocabulary& vocabulary, const VocabularyPlace& place);
/// Adds EOS and control tokens that published models use for the end of a turn. Each end comes once.
void complete_ends(Vocabulary& vocabulary);
/// The byte that "<0x4F>" names; -1 if it is no such name.
int named_byte(std::string_view text) noexcept;
/// Whether all 256 bytes have a token of type `byte`.
bool has_all_bytes(const Vocabulary& vocabulary);

/// All ways to make tokens out of two others, best score first: SentencePiece BPE as merges.
std::vector<std::pair<std::string, std::string>> merges_of_scores(const Vocabulary& vocabulary);
/// The other way: the earlier a token is made, the better.
std::vector<float> scores_of_merges(const Vocabulary& vocabulary);

}  // namespace imago::models
