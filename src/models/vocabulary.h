#pragma once

// What a tokenizer is made of, as tokenizer.json or the metadata of a GGUF file state it: data, checked, without the
// algorithms (lm/tokenizer). Both formats are read and written, so that conversion loses nothing.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/hugging_face.h"
#include "imago/data.h"

namespace imago::models {

enum class TokenizerKind : std::uint8_t {
  byte_bpe,      ///< GGUF "gpt2": merges over bytes spelled as letters
  sentence_bpe,  ///< GGUF "llama": SentencePiece BPE by scores, spaces as U+2581
  unigram,       ///< GGUF "t5": SentencePiece unigram
  word_piece,    ///< GGUF "bert"
};

/// The numbers are those of `tokenizer.ggml.token_type`.
enum class TokenType : std::uint8_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

struct Token {
  std::string text;  ///< as the file spells it (byte_bpe: bytes as letters; added tokens: plain text)
  float score = 0;
  TokenType type = TokenType::normal;
  // For tokens that are found in the text before everything else (control and user_defined):
  bool lstrip = false, rstrip = false;  ///< take the white space beside them
  bool single_word = false, normalized = false;
};

struct Vocabulary {
  TokenizerKind kind = TokenizerKind::byte_bpe;
  std::vector<Token> tokens;
  std::vector<std::pair<std::string, std::string>>
      merges;  ///< best first; byte_bpe, and sentence_bpe of tokenizer.json
  /// byte_bpe: name of the pre-tokenizer as GGUF has it ("gpt-2", "llama-bpe", "qwen2"); empty where `pattern` rules.
  std::string pre_tokenizer;
  /// byte_bpe from tokenizer.json whose patterns are none of the named ones: the expressions, applied in order.
  std::vector<std::string> patterns;
  bool ignore_merges = false;  ///< a word that is a token is taken whole
  bool add_space_prefix =
      false;  ///< a space in front of the text; sentence kinds: of the text after a special token too
  bool space_prefix_once = false;          ///< sentence kinds: but in front of the whole text only
  bool space_prefix_unless_there = false;  ///< but not in front of a space
  bool split_words = false;                ///< sentence kinds: no token reaches over a U+2581 into the next word
  bool remove_extra_spaces = false;
  bool byte_fallback = false;                                            ///< unknown characters become <0xNN>
  bool lowercase = false, strip_accents = false, split_chinese = false;  ///< word_piece
  std::string word_prefix;     ///< word_piece: of continuing pieces, "##" in tokenizer.json, U+2581 of starts in GGUF
  std::string normalizer_map;  ///< sentence kinds: the precompiled map, bytes; empty: none
  std::vector<std::string> normal_forms;  ///< Unicode forms to apply, in order: "NFC", "NFKC"

  std::optional<std::int32_t> bos, eos, unknown, padding, separator;
  std::vector<std::int32_t> ends;  ///< all tokens that end a text: eos, and what generation_config or eot/eom keys add
  bool add_bos = false, add_eos = false;
  std::string chat_template;  ///< Jinja; empty: none
};

/// From tokenizer.json, and from tokenizer_config.json and generation_config.json where they exist. Throws FormatError
/// (threats.md 66–70) with the field; UnsupportedError for a kind of model, normalizer or pre-tokenizer that imago does
/// not know, naming it.
Vocabulary read_vocabulary(const files::HuggingFaceFolder& folder);
/// From tokenizer.json alone.
Vocabulary read_vocabulary(const files::JsonFile& tokenizer);
/// As the first, but reads only the JSON files and chat_template.jinja of the folder at `path`. Throws
/// IoError too.
Vocabulary read_vocabulary_folder(const std::string& path);
/// From `tokenizer.ggml.*`. Throws likewise; an unknown pre-tokenizer is answered with the known ones.
Vocabulary read_vocabulary(const GgufFile& file);

/// The `tokenizer.*` keys for a GGUF file.
std::vector<GgufMetadata> gguf_vocabulary(const Vocabulary& vocabulary);
/// tokenizer.json and tokenizer_config.json for a folder.
struct TokenizerFiles {
  std::string tokenizer, tokenizer_config;
};
TokenizerFiles hugging_face_vocabulary(const Vocabulary& vocabulary);

/// The regular expressions of a named pre-tokenizer, applied in order; null if the name is unknown.
const std::vector<std::string>* pre_tokenizer_patterns(std::string_view name) noexcept;
/// Those of a vocabulary: its own, or those of the pre-tokenizer that it names.
const std::vector<std::string>& patterns_of(const Vocabulary& vocabulary) noexcept;
/// All known names, for messages.
std::vector<std::string_view> pre_tokenizer_names();

}  // namespace imago::models
