// tokenizer.json and tokenizer_config.json.

#include <initializer_list>
#include <variant>

#include "files/json_writer.h"
#include "models/vocabulary_parts.h"

namespace imago::models {

namespace {

/// {"String": " "} or {"Regex": " {2,}"}
struct Pattern {
  std::string_view kind, text;
};

using Value = std::variant<std::nullptr_t, bool, int, float, std::string_view, Pattern>;
using Fields = std::initializer_list<std::pair<std::string_view, Value>>;

/// Writes values in place. `fill` writes what an object or array holds.
class Out {
 public:
  /// The key of the next value.
  Out& at(std::string_view key) {
    json_.key(key);
    return *this;
  }
  void value(const Value& value) {
    std::visit([&](const auto& one) { put(one); }, value);
  }
  void base64(std::string_view bytes) { json_.base64(std::as_bytes(std::span(bytes))); }

  template <class Fill>
  void object(Fields fields, Fill&& fill) {
    json_.begin_object();
    for (const auto& [key, one] : fields) at(key).value(one);
    fill();
    json_.end_object();
  }
  void object(Fields fields) {
    object(fields, [] {});
  }
  template <class Fill>
  void array(Fill&& fill) {
    json_.begin_array();
    fill();
    json_.end_array();
  }
  /// A Sequence with its steps under `list`.
  template <class Fill>
  void sequence(std::string_view list, Fill&& steps) {
    object({{"type", "Sequence"}}, [&] { at(list).array(steps); });
  }
  std::string take() { return std::move(sink_.text()) + "\n"; }

 private:
  void put(std::nullptr_t) { json_.raw("null"); }
  void put(const Pattern& pattern) { object({{pattern.kind, pattern.text}}); }
  template <class T>
  void put(const T& value) {
    json_.value(value);
  }

  files::StringSink sink_;
  files::JsonWriter json_{sink_, files::JsonStyle::indented};
};

std::string_view text_of(const Vocabulary& vocabulary, std::int32_t id) {
  return vocabulary.tokens[static_cast<std::size_t>(id)].text;
}

bool is_sentence(const Vocabulary& vocabulary) {
  return vocabulary.kind == TokenizerKind::sentence_bpe || vocabulary.kind == TokenizerKind::unigram;
}

bool needs_metaspace(const Vocabulary& vocabulary) {
  return vocabulary.kind == TokenizerKind::unigram || vocabulary.space_prefix_once ||
         vocabulary.space_prefix_unless_there || vocabulary.split_words;
}

/// How tokenizer.json marks continuing pieces of words.
std::string_view word_prefix(const Vocabulary& vocabulary) {
  return vocabulary.word_prefix == kSpaceMark ? "##" : std::string_view(vocabulary.word_prefix);
}

void write_added(const Vocabulary& vocabulary, Out& out) {
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const Token& token = vocabulary.tokens[id];
    const bool special = token.type == TokenType::control || token.type == TokenType::unknown;
    if (!special && token.type != TokenType::user_defined) continue;
    out.object({{"id", static_cast<int>(id)},
                {"content", token.text},
                {"single_word", token.single_word},
                {"lstrip", token.lstrip},
                {"rstrip", token.rstrip},
                {"normalized", token.normalized},
                {"special", special}});
  }
}

void write_normalizer(const Vocabulary& vocabulary, Out& out) {
  if (vocabulary.kind == TokenizerKind::word_piece) {
    return out.object({{"type", "BertNormalizer"},
                       {"clean_text", true},
                       {"handle_chinese_chars", vocabulary.split_chinese},
                       {"strip_accents", vocabulary.strip_accents},
                       {"lowercase", vocabulary.lowercase}});
  }
  out.sequence("normalizers", [&] {
    for (const std::string& form : vocabulary.normal_forms) out.object({{"type", form}});
    if (!vocabulary.normalizer_map.empty()) {
      out.object({{"type", "Precompiled"}}, [&] { out.at("precompiled_charsmap").base64(vocabulary.normalizer_map); });
    }
    if (is_sentence(vocabulary) && vocabulary.remove_extra_spaces) {
      out.object({{"type", "Replace"}, {"pattern", Pattern{"Regex", " {2,}"}}, {"content", " "}});
    }
    if (is_sentence(vocabulary) && !needs_metaspace(vocabulary)) {
      if (vocabulary.add_space_prefix) out.object({{"type", "Prepend"}, {"prepend", kSpaceMark}});
      out.object({{"type", "Replace"}, {"pattern", Pattern{"String", " "}}, {"content", kSpaceMark}});
    }
  });
}

void write_byte_level(const Vocabulary& vocabulary, Out& out) {
  out.object({{"type", "ByteLevel"},
              {"add_prefix_space", vocabulary.add_space_prefix},
              {"trim_offsets", true},
              {"use_regex", false}});
}

void write_pre_tokenizer(const Vocabulary& vocabulary, Out& out) {
  if (is_sentence(vocabulary)) {
    if (!needs_metaspace(vocabulary)) return out.value(nullptr);
    const std::string_view scheme = vocabulary.space_prefix_once ? "first" : "always";
    return out.object({{"type", "Metaspace"},
                       {"replacement", kSpaceMark},
                       {"prepend_scheme", vocabulary.add_space_prefix ? scheme : "never"},
                       {"split", vocabulary.split_words}});
  }
  if (vocabulary.kind == TokenizerKind::word_piece) return out.object({{"type", "BertPreTokenizer"}});
  out.sequence("pretokenizers", [&] {
    for (const std::string& pattern : patterns_of(vocabulary)) {
      out.object(
          {{"type", "Split"}, {"pattern", Pattern{"Regex", pattern}}, {"behavior", "Isolated"}, {"invert", false}});
    }
    write_byte_level(vocabulary, out);
  });
}

void write_post_processor(const Vocabulary& vocabulary, Out& out) {
  if (!vocabulary.add_bos && !vocabulary.add_eos) return out.value(nullptr);
  const auto piece = [&](std::string_view kind, std::string_view id, int type) {
    out.object({}, [&] { out.at(kind).object({{"id", id}, {"type_id", type}}); });
  };
  const auto sequence = [&](std::string_view name, int type) {
    if (vocabulary.add_bos) piece("SpecialToken", text_of(vocabulary, *vocabulary.bos), 0);
    piece("Sequence", name, type);
    if (vocabulary.add_eos) piece("SpecialToken", text_of(vocabulary, *vocabulary.eos), 0);
  };
  const auto describe = [&](std::int32_t id) {
    const std::string_view text = text_of(vocabulary, id);
    out.at(text).object({{"id", text}}, [&] {
      out.at("ids").array([&] { out.value(id); });
      out.at("tokens").array([&] { out.value(text); });
    });
  };
  out.object({{"type", "TemplateProcessing"}}, [&] {
    out.at("single").array([&] { sequence("A", 0); });
    out.at("pair").array([&] {
      sequence("A", 0);
      sequence("B", 1);
    });
    out.at("special_tokens").object({}, [&] {
      if (vocabulary.add_bos) describe(*vocabulary.bos);
      if (vocabulary.add_eos && !(vocabulary.add_bos && vocabulary.bos == vocabulary.eos)) describe(*vocabulary.eos);
    });
  });
}

void write_decoder(const Vocabulary& vocabulary, Out& out) {
  if (vocabulary.kind == TokenizerKind::byte_bpe) return write_byte_level(vocabulary, out);
  if (vocabulary.kind == TokenizerKind::word_piece) {
    return out.object({{"type", "WordPiece"}, {"prefix", word_prefix(vocabulary)}, {"cleanup", true}});
  }
  out.sequence("decoders", [&] {
    out.object({{"type", "Replace"}, {"pattern", Pattern{"String", kSpaceMark}}, {"content", " "}});
    if (vocabulary.byte_fallback) out.object({{"type", "ByteFallback"}});
    out.object({{"type", "Fuse"}});
    if (vocabulary.add_space_prefix) out.object({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  });
}

void write_vocab(const Vocabulary& vocabulary, Out& out) {
  out.at("vocab").object({}, [&] {
    for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
      out.at(spelled(vocabulary, vocabulary.tokens[id], word_prefix(vocabulary))).value(static_cast<int>(id));
    }
  });
}

void write_pair(const Value& first, const Value& second, Out& out) {
  out.array([&] {
    out.value(first);
    out.value(second);
  });
}

void write_model(const Vocabulary& vocabulary, Out& out) {
  const Value unknown = vocabulary.unknown ? Value(text_of(vocabulary, *vocabulary.unknown)) : Value(nullptr);
  switch (vocabulary.kind) {
    case TokenizerKind::word_piece:
      return out.object({{"type", "WordPiece"},
                         {"unk_token", unknown},
                         {"continuing_subword_prefix", word_prefix(vocabulary)},
                         {"max_input_chars_per_word", 100}},
                        [&] { write_vocab(vocabulary, out); });
    case TokenizerKind::unigram:
      return out.object({{"type", "Unigram"},
                         {"unk_id", vocabulary.unknown ? Value(*vocabulary.unknown) : Value(nullptr)},
                         {"byte_fallback", vocabulary.byte_fallback}},
                        [&] {
                          out.at("vocab").array([&] {
                            for (const Token& token : vocabulary.tokens) write_pair(token.text, token.score, out);
                          });
                        });
    case TokenizerKind::byte_bpe:
    case TokenizerKind::sentence_bpe: break;
  }
  const bool sentence = vocabulary.kind == TokenizerKind::sentence_bpe;
  out.object({{"type", "BPE"},
              {"dropout", nullptr},
              {"unk_token", unknown},
              {"continuing_subword_prefix", nullptr},
              {"end_of_word_suffix", nullptr},
              {"fuse_unk", sentence},
              {"byte_fallback", vocabulary.byte_fallback},
              {"ignore_merges", vocabulary.ignore_merges}},
             [&] {
               write_vocab(vocabulary, out);
               const bool by_score = sentence && vocabulary.merges.empty();
               out.at("merges").array([&] {
                 for (const auto& [left, right] : by_score ? merges_of_scores(vocabulary) : vocabulary.merges) {
                   write_pair(left, right, out);
                 }
               });
             });
}

std::string write_config(const Vocabulary& vocabulary) {
  Out out;
  out.object({{"add_bos_token", vocabulary.add_bos}, {"add_eos_token", vocabulary.add_eos}}, [&] {
    for (const SpecialToken& special : kSpecialTokens) {
      const std::optional<std::int32_t> id = vocabulary.*special.id;
      if (!id) continue;
      const Token& token = vocabulary.tokens[static_cast<std::size_t>(*id)];
      out.at(special.config_key).value(spelled(vocabulary, token, word_prefix(vocabulary)));
    }
    if (!vocabulary.chat_template.empty()) out.at("chat_template").value(vocabulary.chat_template);
    out.at("clean_up_tokenization_spaces").value(false);
    out.at("tokenizer_class").value("PreTrainedTokenizerFast");
  });
  return out.take();
}

}  // namespace

TokenizerFiles hugging_face_vocabulary(const Vocabulary& vocabulary) {
  Out out;
  out.object({{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}}, [&] {
    out.at("added_tokens").array([&] { write_added(vocabulary, out); });
    write_normalizer(vocabulary, out.at("normalizer"));
    write_pre_tokenizer(vocabulary, out.at("pre_tokenizer"));
    write_post_processor(vocabulary, out.at("post_processor"));
    write_decoder(vocabulary, out.at("decoder"));
    write_model(vocabulary, out.at("model"));
  });
  return {.tokenizer = out.take(), .tokenizer_config = write_config(vocabulary)};
}

}  // namespace imago::models
