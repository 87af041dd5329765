#pragma once

// The parts of tokenizer.json, each read into the Vocabulary it belongs to. All throw FormatError at the value that is
// wrong and UnsupportedError, naming the type, for steps that imago does not take.

#include <string_view>

#include "files/json.h"
#include "models/vocabulary.h"

namespace imago::models {

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

}  // namespace imago::models
