#include "lm/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "files/detect.h"
#include "imago/data.h"
#include "imago/error.h"
#include "lm/byte_letters.h"
#include "lm/token_finder.h"
#include "models/open_model.h"
#include "models/vocabulary_parts.h"

namespace imago {

namespace {

using lm::TextEncoder;
using lm::TokenFinder;
using models::kSpaceMark;
using models::Token;
using models::TokenizerKind;
using models::TokenType;
using models::Vocabulary;

std::unique_ptr<const TextEncoder> make_encoder(const Vocabulary& vocabulary) {
  switch (vocabulary.kind) {
    case TokenizerKind::byte_bpe: return lm::make_byte_bpe(vocabulary);
    case TokenizerKind::sentence_bpe: return lm::make_sentence_bpe(vocabulary);
    case TokenizerKind::unigram: return lm::make_unigram(vocabulary);
    case TokenizerKind::word_piece: return lm::make_word_piece(vocabulary);
  }
  return nullptr;
}

bool is_special(TokenType type) noexcept { return type == TokenType::control || type == TokenType::unknown; }

/// What a token adds to a text. A word of WordPiece adds the space before it.
std::string piece_of(const Vocabulary& vocabulary, const Token& token) {
  if (is_special(token.type) || token.type == TokenType::user_defined) return token.text;
  switch (vocabulary.kind) {
    case TokenizerKind::byte_bpe: return lm::bytes_of_letters(token.text).value_or(token.text);
    case TokenizerKind::sentence_bpe:
    case TokenizerKind::unigram:
      if (const int byte = token.type == TokenType::byte ? models::named_byte(token.text) : -1; byte >= 0) {
        return std::string(1, static_cast<char>(byte));
      }
      return lm::replaced(token.text, kSpaceMark, " ");
    case TokenizerKind::word_piece: {
      const std::string& prefix = vocabulary.word_prefix;
      const bool prefixed = !prefix.empty() && token.text.starts_with(prefix);
      const std::string text = prefixed ? token.text.substr(prefix.size()) : token.text;
      return prefixed == (prefix == kSpaceMark) ? " " + text : text;
    }
  }
  return {};
}

/// Takes back the spaces that WordPiece puts before punctuation and endings.
std::string tidied(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kPairs[] = {
      {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
      {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kPairs) text = lm::replaced(text, from, to);
  return text;
}

}  // namespace

struct Tokenizer::State {
  explicit State(Vocabulary from) : vocabulary(std::move(from)), encoder(make_encoder(vocabulary)) {
    pieces.reserve(vocabulary.tokens.size());
    for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
      const Token& token = vocabulary.tokens[i];
      const auto id = static_cast<TokenId>(i);
      pieces.push_back(piece_of(vocabulary, token));
      if (!is_special(token.type) && token.type != TokenType::user_defined) continue;
      const bool normalized = token.normalized && encoder->normalizes();
      const std::string text = normalized ? encoder->normalize(token.text) : token.text;
      Finders& finders = normalized ? in_normalized : in_text;
      finders.all.add(text, id, token);
      if (token.type == TokenType::user_defined) finders.plain.add(text, id, token);
    }
  }

  /// For texts with special tokens, and for plain ones.
  struct Finders {
    TokenFinder all, plain;
    const TokenFinder& of(bool special) const noexcept { return special ? all : plain; }
  };

  const Token& at(TokenId id) const {
    if (id < 0 || static_cast<std::size_t>(id) >= vocabulary.tokens.size()) {
      throw UsageError(fmt::format("{} is not a token: ids go from 0 to {}", id,
                                   static_cast<std::int64_t>(vocabulary.tokens.size()) - 1));
    }
    return vocabulary.tokens[static_cast<std::size_t>(id)];
  }

  /// Calls `plain` for what lies between tokens that `finder` finds, and appends those.
  template <class Plain>
  static void part(std::string_view text, const TokenFinder& finder, std::vector<TokenId>& ids, Plain&& plain) {
    std::size_t done = 0;
    while (done < text.size()) {
      const auto found = finder.empty() ? std::nullopt : finder.find(text, done);
      if (!found) break;
      if (found->begin > done) plain(text.substr(done, found->begin - done));
      ids.push_back(found->id);
      done = found->end;
    }
    if (done < text.size()) plain(text.substr(done));
  }

  void encode(std::string_view text, bool special, std::vector<TokenId>& ids) const {
    const std::size_t start = ids.size();
    const auto place = [&] {
      return ids.size() == start ? TextEncoder::Place::start : TextEncoder::Place::after_special;
    };
    part(text, in_text.of(special), ids, [&](std::string_view plain) {
      if (!encoder->normalizes()) return encoder->encode(plain, place(), ids);
      const std::string normal = encoder->normalize(plain);
      part(normal, in_normalized.of(special), ids, [&](std::string_view rest) { encoder->encode(rest, place(), ids); });
    });
  }

  Vocabulary vocabulary;
  std::unique_ptr<const TextEncoder> encoder;
  Finders in_text, in_normalized;
  std::vector<std::string> pieces;
};

Tokenizer::Tokenizer(std::unique_ptr<const State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer TokenizerMaker::make(Vocabulary vocabulary) {
  return Tokenizer(std::make_unique<const Tokenizer::State>(std::move(vocabulary)));
}

Tokenizer Tokenizer::load(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return TokenizerMaker::make(models::read_vocabulary_folder(path));
  const files::FormByStart start = files::detect_by_start(MappedFile::open(path).bytes(), path);
  if (start.json) {
    const files::JsonFile json = files::JsonFile::open(path, files::kMaxTokenizerBytes);
    if (!json.root().find("layers")) return TokenizerMaker::make(models::read_vocabulary(json));
  }
  if (const auto folder = models::stored_tokenizer(path)) return TokenizerMaker::make(models::read_vocabulary(*folder));
  if (start.form == FileForm::gguf) return TokenizerMaker::make(models::read_vocabulary(GgufFile::open(path)));
  throw UnsupportedError(
      fmt::format("{}: a safetensors file has no tokenizer; name its folder or the tokenizer.json in it", path));
}

std::size_t Tokenizer::size() const noexcept { return state_->vocabulary.tokens.size(); }

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool special) const {
  std::vector<TokenId> ids;
  const Vocabulary& vocabulary = state_->vocabulary;
  if (special && vocabulary.add_bos) ids.push_back(*vocabulary.bos);
  state_->encode(text, special, ids);
  if (special && vocabulary.add_eos) ids.push_back(*vocabulary.eos);
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool special) const {
  const Vocabulary& vocabulary = state_->vocabulary;
  const bool words = vocabulary.kind == TokenizerKind::word_piece;
  const bool spaced = words || (vocabulary.kind != TokenizerKind::byte_bpe && vocabulary.add_space_prefix);
  std::string text;
  bool drops_space = spaced;  // the one that encoding added
  for (const TokenId id : ids) {
    const Token& token = state_->at(id);
    const std::string_view piece = state_->pieces[static_cast<std::size_t>(id)];
    const bool found = is_special(token.type) || token.type == TokenType::user_defined;
    if (is_special(token.type) && !special) {
      drops_space = drops_space || (spaced && !vocabulary.space_prefix_once);
      continue;
    }
    text += piece.substr(drops_space && !found && piece.starts_with(' ') ? 1 : 0);
    drops_space = found && spaced && !words && !vocabulary.space_prefix_once;
  }
  return words ? tidied(std::move(text)) : text;
}

std::string Tokenizer::piece(TokenId id, bool special) const {
  const Token& token = state_->at(id);
  if (is_special(token.type) && !special) return {};
  return state_->pieces[static_cast<std::size_t>(id)];
}

std::string_view Tokenizer::spelling(TokenId id) const { return state_->at(id).text; }

std::optional<TokenId> Tokenizer::bos() const noexcept { return state_->vocabulary.bos; }
std::optional<TokenId> Tokenizer::eos() const noexcept { return state_->vocabulary.eos; }
bool Tokenizer::adds_bos() const noexcept { return state_->vocabulary.add_bos; }

bool Tokenizer::is_end(TokenId id) const noexcept {
  return std::ranges::find(state_->vocabulary.ends, id) != state_->vocabulary.ends.end();
}

bool Tokenizer::is_control(TokenId id) const noexcept {
  const std::vector<Token>& tokens = state_->vocabulary.tokens;
  return id >= 0 && static_cast<std::size_t>(id) < tokens.size() &&
         tokens[static_cast<std::size_t>(id)].type == TokenType::control;
}

const std::string& Tokenizer::chat_template() const noexcept { return state_->vocabulary.chat_template; }

}  // namespace imago
