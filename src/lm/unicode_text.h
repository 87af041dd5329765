#pragma once

// Unicode as tokenizers need it: classes of characters and normal forms.

#include <string>
#include <string_view>
#include <vector>

namespace imago::lm {

bool is_space(char32_t code) noexcept;
/// Letters, marks, numbers and connectors such as '_'.
bool is_word(char32_t code) noexcept;
bool is_digit(char32_t code) noexcept;  ///< of any script: category Nd
bool is_punctuation(char32_t code) noexcept;
bool is_accent(char32_t code) noexcept;   ///< category Mn
bool is_control(char32_t code) noexcept;  ///< categories Cc, Cf, Cn and Co; no white space
bool is_chinese(char32_t code) noexcept;  ///< ideographs, as BERT counts them

/// The lower-case form, one or more characters.
void append_lower(std::u32string& out, char32_t code);

/// `text` in a normal form: "NFC", "NFD", "NFKC" or "NFKD". Bytes that are no UTF-8 stay as they are. Time is linear
/// but for a logarithm, however many marks follow each other.
std::string normal_form(std::string_view text, std::string_view form);
/// Canonical decomposition in place of each character, marks in order.
std::u32string decomposed(std::u32string_view text, bool compatible);

/// Whether `name` is a form that normal_form knows.
bool is_normal_form(std::string_view name) noexcept;

}  // namespace imago::lm
