// Byte-level BPE: words by regular expressions, bytes merged inside of them.

#include <array>
#include <unordered_map>

#include "lm/bpe_merger.h"
#include "lm/byte_letters.h"
#include "lm/tokenizer.h"
#include "lm/unicode_text.h"
#include "lm/word_splitter.h"

namespace imago::lm {

namespace {

using models::Vocabulary;

class ByteBpe final : public TextEncoder {
 public:
  explicit ByteBpe(const Vocabulary& vocabulary)
      : splitter_(models::patterns_of(vocabulary)),
        merger_(vocabulary, ids_of(vocabulary, [](const models::Token&) { return true; })),
        normal_forms_(vocabulary.normal_forms),
        unknown_(vocabulary.unknown.value_or(-1)),
        add_space_prefix_(vocabulary.add_space_prefix) {
    bytes_.fill(-1);
    for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
      const models::Token& token = vocabulary.tokens[id];
      if (token.type == models::TokenType::control || token.type == models::TokenType::user_defined) continue;
      std::optional<std::string> bytes = bytes_of_letters(token.text);
      if (!bytes || bytes->empty()) continue;
      if (bytes->size() == 1) bytes_[static_cast<unsigned char>(bytes->front())] = static_cast<TokenId>(id);
      if (vocabulary.ignore_merges) words_.emplace(std::move(*bytes), static_cast<TokenId>(id));
    }
  }

  bool normalizes() const noexcept override { return !normal_forms_.empty(); }
  std::string normalize(std::string_view text) const override {
    std::string out(text);
    for (const std::string& form : normal_forms_) out = normal_form(out, form);
    return out;
  }

  void encode(std::string_view text, Place, std::vector<TokenId>& ids) const override {
    std::string spaced;
    if (add_space_prefix_ && !text.empty() && !is_space(character_at(text, 0).code)) {
      text = spaced.append(" ").append(text);
    }
    BpeMerger::Workspace workspace;
    std::vector<TokenId> symbols;
    WordCache cache(text.size());
    const WordSplitter::Word take = [&](std::string_view word) {
      cache.take(word, ids, [&] { encode_word(word, symbols, workspace, ids); });
    };
    // Expressions see UTF-8 only; each run of other bytes is a word.
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = end_of_valid(text, at);
      splitter_.split(text.substr(at, end - at), take);
      std::size_t valid = end;
      while (valid < text.size() && !character_at(text, valid).valid) ++valid;
      if (valid > end) take(text.substr(end, valid - end));
      at = valid;
    }
  }

 private:
  void encode_word(std::string_view word, std::vector<TokenId>& symbols, BpeMerger::Workspace& workspace,
                   std::vector<TokenId>& ids) const {
    if (!words_.empty()) {
      if (const auto whole = words_.find(std::string(word)); whole != words_.end()) return ids.push_back(whole->second);
    }
    symbols.resize(word.size());
    for (std::size_t i = 0; i < word.size(); ++i) symbols[i] = bytes_[static_cast<unsigned char>(word[i])];
    merger_.merge(symbols, workspace);
    for (const TokenId id : symbols) {
      if (id >= 0) {
        ids.push_back(id);
      } else if (unknown_ >= 0) {
        ids.push_back(unknown_);
      }
    }
  }

  WordSplitter splitter_;
  BpeMerger merger_;
  std::array<TokenId, 256> bytes_;
  std::unordered_map<std::string, TokenId> words_;  // where merges are ignored for these
  std::vector<std::string> normal_forms_;
  TokenId unknown_;
  bool add_space_prefix_;
};

}  // namespace

std::unique_ptr<const TextEncoder> make_byte_bpe(const Vocabulary& vocabulary) {
  return std::make_unique<ByteBpe>(vocabulary);
}

}  // namespace imago::lm
