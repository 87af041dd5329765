// tokenizer.json and tokenizer_config.json.

#include "files/json_writer.h"
#include "models/vocabulary_parts.h"

namespace imago::models {

namespace {

using files::JsonWriter;

/// A writer that names values in place.
class Out {
 public:
  Out() : writer_(sink_, files::JsonStyle::indented) {}
  template <class T>
  void pair(std::string_view key, const T& value) {
    writer_.key(key);
    writer_.value(value);
  }
  void null(std::string_view key) {
    writer_.key(key);
    writer_.raw("null");
  }
  /// {"type": type, then what `more` writes}
  template <class More>
  void object(std::string_view type, More&& more) {
    writer_.begin_object();
    pair("type", type);
    more();
    writer_.end_object();
  }
  void object(std::string_view type) {
    object(type, [] {});
  }
  JsonWriter& json() noexcept { return writer_; }
  std::string take() { return std::move(sink_.text()) + "\n"; }

 private:
  files::StringSink sink_;
  JsonWriter writer_;
};

const std::string& text_of(const Vocabulary& vocabulary, std::int32_t id) {
  return vocabulary.tokens[static_cast<std::size_t>(id)].text;
}

bool is_sentence(const Vocabulary& vocabulary) {
  return vocabulary.kind == TokenizerKind::sentence_bpe || vocabulary.kind == TokenizerKind::unigram;
}

bool needs_metaspace(const Vocabulary& vocabulary) {
  return vocabulary.kind == TokenizerKind::unigram || vocabulary.space_prefix_once ||
         vocabulary.space_prefix_unless_there || vocabulary.split_words;
}

/// "ing" and "▁word" of GGUF are "##ing" and "word" in tokenizer.json.
std::string word_piece(const Token& token, std::string_view prefix) {
  const bool bracketed = token.text.starts_with('[') && token.text.ends_with(']');
  if (token.type != TokenType::normal || bracketed || prefix != kSpaceMark) return token.text;
  return token.text.starts_with(kSpaceMark) ? token.text.substr(kSpaceMark.size()) : "##" + token.text;
}

std::string spelled(const Vocabulary& vocabulary, const Token& token) {
  return vocabulary.kind == TokenizerKind::word_piece ? word_piece(token, vocabulary.word_prefix) : token.text;
}

void write_added(const Vocabulary& vocabulary, Out& out) {
  out.json().key("added_tokens");
  out.json().begin_array();
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const Token& token = vocabulary.tokens[id];
    const bool special = token.type == TokenType::control || token.type == TokenType::unknown;
    if (!special && token.type != TokenType::user_defined) continue;
    out.json().begin_object();
    out.pair("id", std::uint64_t{id});
    out.pair("content", std::string_view(token.text));
    out.pair("single_word", token.single_word);
    out.pair("lstrip", token.lstrip);
    out.pair("rstrip", token.rstrip);
    out.pair("normalized", token.normalized);
    out.pair("special", special);
    out.json().end_object();
  }
  out.json().end_array();
}

void write_pattern(Out& out, std::string_view kind, std::string_view text) {
  out.json().key("pattern");
  out.json().begin_object();
  out.pair(kind, text);
  out.json().end_object();
}

void write_normalizer(const Vocabulary& vocabulary, Out& out) {
  out.json().key("normalizer");
  if (vocabulary.kind == TokenizerKind::word_piece) {
    out.object("BertNormalizer", [&] {
      out.pair("clean_text", true);
      out.pair("handle_chinese_chars", vocabulary.split_chinese);
      out.pair("strip_accents", vocabulary.strip_accents);
      out.pair("lowercase", vocabulary.lowercase);
    });
    return;
  }
  out.object("Sequence", [&] {
    out.json().key("normalizers");
    out.json().begin_array();
    for (const std::string& form : vocabulary.normal_forms) out.object(form);
    if (!vocabulary.normalizer_map.empty()) {
      out.object("Precompiled", [&] {
        out.json().key("precompiled_charsmap");
        out.json().base64(std::as_bytes(std::span(vocabulary.normalizer_map)));
      });
    }
    if (is_sentence(vocabulary) && vocabulary.remove_extra_spaces) {
      out.object("Replace", [&] {
        write_pattern(out, "Regex", " {2,}");
        out.pair("content", " ");
      });
    }
    if (is_sentence(vocabulary) && !needs_metaspace(vocabulary)) {
      if (vocabulary.add_space_prefix) out.object("Prepend", [&] { out.pair("prepend", kSpaceMark); });
      out.object("Replace", [&] {
        write_pattern(out, "String", " ");
        out.pair("content", kSpaceMark);
      });
    }
    out.json().end_array();
  });
}

void write_byte_level(const Vocabulary& vocabulary, Out& out) {
  out.object("ByteLevel", [&] {
    out.pair("add_prefix_space", vocabulary.add_space_prefix);
    out.pair("trim_offsets", true);
    out.pair("use_regex", false);
  });
}

void write_metaspace(const Vocabulary& vocabulary, Out& out) {
  out.object("Metaspace", [&] {
    out.pair("replacement", kSpaceMark);
    const std::string_view scheme = vocabulary.space_prefix_once ? "first" : "always";
    out.pair("prepend_scheme", vocabulary.add_space_prefix ? scheme : "never");
    out.pair("split", vocabulary.split_words);
  });
}

void write_pre_tokenizer(const Vocabulary& vocabulary, Out& out) {
  if (is_sentence(vocabulary) && !needs_metaspace(vocabulary)) return out.null("pre_tokenizer");
  out.json().key("pre_tokenizer");
  if (is_sentence(vocabulary)) return write_metaspace(vocabulary, out);
  if (vocabulary.kind == TokenizerKind::word_piece) return out.object("BertPreTokenizer");
  const std::vector<std::string>* named = pre_tokenizer_patterns(vocabulary.pre_tokenizer);
  out.object("Sequence", [&] {
    out.json().key("pretokenizers");
    out.json().begin_array();
    for (const std::string& pattern : vocabulary.patterns.empty() && named != nullptr ? *named : vocabulary.patterns) {
      out.object("Split", [&] {
        write_pattern(out, "Regex", pattern);
        out.pair("behavior", "Isolated");
        out.pair("invert", false);
      });
    }
    write_byte_level(vocabulary, out);
    out.json().end_array();
  });
}

void write_template(const Vocabulary& vocabulary, Out& out) {
  const auto special = [&](std::int32_t id) {
    out.json().begin_object();
    out.json().key("SpecialToken");
    out.json().begin_object();
    out.pair("id", std::string_view(text_of(vocabulary, id)));
    out.pair("type_id", 0);
    out.json().end_object();
    out.json().end_object();
  };
  const auto sequence = [&](const char* name, int type) {
    if (vocabulary.add_bos) special(*vocabulary.bos);
    out.json().begin_object();
    out.json().key("Sequence");
    out.json().begin_object();
    out.pair("id", name);
    out.pair("type_id", type);
    out.json().end_object();
    out.json().end_object();
    if (vocabulary.add_eos) special(*vocabulary.eos);
  };
  out.json().key("single");
  out.json().begin_array();
  sequence("A", 0);
  out.json().end_array();
  out.json().key("pair");
  out.json().begin_array();
  sequence("A", 0);
  sequence("B", 1);
  out.json().end_array();
  out.json().key("special_tokens");
  out.json().begin_object();
  const auto describe = [&](std::int32_t id) {
    const std::string& text = text_of(vocabulary, id);
    out.json().key(text);
    out.json().begin_object();
    out.pair("id", std::string_view(text));
    out.json().key("ids");
    out.json().begin_array();
    out.json().value(id);
    out.json().end_array();
    out.json().key("tokens");
    out.json().begin_array();
    out.json().value(std::string_view(text));
    out.json().end_array();
    out.json().end_object();
  };
  if (vocabulary.add_bos) describe(*vocabulary.bos);
  if (vocabulary.add_eos && !(vocabulary.add_bos && vocabulary.bos == vocabulary.eos)) describe(*vocabulary.eos);
  out.json().end_object();
}

void write_decoder(const Vocabulary& vocabulary, Out& out) {
  out.json().key("decoder");
  if (vocabulary.kind == TokenizerKind::byte_bpe) return write_byte_level(vocabulary, out);
  if (vocabulary.kind == TokenizerKind::word_piece) {
    return out.object("WordPiece", [&] {
      out.pair("prefix", vocabulary.word_prefix == kSpaceMark ? "##" : std::string_view(vocabulary.word_prefix));
      out.pair("cleanup", true);
    });
  }
  out.object("Sequence", [&] {
    out.json().key("decoders");
    out.json().begin_array();
    out.object("Replace", [&] {
      write_pattern(out, "String", kSpaceMark);
      out.pair("content", " ");
    });
    if (vocabulary.byte_fallback) out.object("ByteFallback");
    out.object("Fuse");
    if (vocabulary.add_space_prefix) {
      out.object("Strip", [&] {
        out.pair("content", " ");
        out.pair("start", 1);
        out.pair("stop", 0);
      });
    }
    out.json().end_array();
  });
}

void write_vocab(const Vocabulary& vocabulary, Out& out) {
  out.json().key("vocab");
  if (vocabulary.kind == TokenizerKind::unigram) {
    out.json().begin_array();
    for (const Token& token : vocabulary.tokens) {
      out.json().begin_array();
      out.json().value(std::string_view(token.text));
      out.json().value(token.score);
      out.json().end_array();
    }
    out.json().end_array();
    return;
  }
  out.json().begin_object();
  for (std::size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    out.pair(spelled(vocabulary, vocabulary.tokens[id]), std::uint64_t{id});
  }
  out.json().end_object();
}

void write_model(const Vocabulary& vocabulary, Out& out) {
  out.json().key("model");
  const auto unknown = [&] {
    vocabulary.unknown ? out.pair("unk_token", std::string_view(text_of(vocabulary, *vocabulary.unknown)))
                       : out.null("unk_token");
  };
  switch (vocabulary.kind) {
    case TokenizerKind::word_piece:
      out.object("WordPiece", [&] {
        unknown();
        out.pair("continuing_subword_prefix",
                 vocabulary.word_prefix == kSpaceMark ? "##" : std::string_view(vocabulary.word_prefix));
        out.pair("max_input_chars_per_word", 100);
        write_vocab(vocabulary, out);
      });
      break;
    case TokenizerKind::unigram:
      out.object("Unigram", [&] {
        vocabulary.unknown ? out.pair("unk_id", *vocabulary.unknown) : out.null("unk_id");
        out.pair("byte_fallback", vocabulary.byte_fallback);
        write_vocab(vocabulary, out);
      });
      break;
    case TokenizerKind::byte_bpe:
    case TokenizerKind::sentence_bpe:
      out.object("BPE", [&] {
        out.null("dropout");
        unknown();
        out.null("continuing_subword_prefix");
        out.null("end_of_word_suffix");
        out.pair("fuse_unk", vocabulary.kind == TokenizerKind::sentence_bpe);
        out.pair("byte_fallback", vocabulary.byte_fallback);
        out.pair("ignore_merges", vocabulary.ignore_merges);
        write_vocab(vocabulary, out);
        out.json().key("merges");
        out.json().begin_array();
        const bool by_score = vocabulary.kind == TokenizerKind::sentence_bpe && vocabulary.merges.empty();
        for (const auto& [left, right] : by_score ? merges_of_scores(vocabulary) : vocabulary.merges) {
          out.json().begin_array();
          out.json().value(std::string_view(left));
          out.json().value(std::string_view(right));
          out.json().end_array();
        }
        out.json().end_array();
      });
      break;
  }
}

std::string write_config(const Vocabulary& vocabulary) {
  Out out;
  out.json().begin_object();
  out.pair("add_bos_token", vocabulary.add_bos);
  out.pair("add_eos_token", vocabulary.add_eos);
  const auto token = [&](std::string_view key, std::optional<std::int32_t> id) {
    if (id) out.pair(key, spelled(vocabulary, vocabulary.tokens[static_cast<std::size_t>(*id)]));
  };
  token("bos_token", vocabulary.bos);
  token("eos_token", vocabulary.eos);
  token("unk_token", vocabulary.unknown);
  token("pad_token", vocabulary.padding);
  token("sep_token", vocabulary.separator);
  if (!vocabulary.chat_template.empty()) out.pair("chat_template", std::string_view(vocabulary.chat_template));
  out.pair("clean_up_tokenization_spaces", false);
  out.pair("tokenizer_class", "PreTrainedTokenizerFast");
  out.json().end_object();
  return out.take();
}

}  // namespace

TokenizerFiles hugging_face_vocabulary(const Vocabulary& vocabulary) {
  Out out;
  out.json().begin_object();
  out.pair("version", "1.0");
  out.null("truncation");
  out.null("padding");
  write_added(vocabulary, out);
  write_normalizer(vocabulary, out);
  write_pre_tokenizer(vocabulary, out);
  if (vocabulary.add_bos || vocabulary.add_eos) {
    out.json().key("post_processor");
    out.object("TemplateProcessing", [&] { write_template(vocabulary, out); });
  } else {
    out.null("post_processor");
  }
  write_decoder(vocabulary, out);
  write_model(vocabulary, out);
  out.json().end_object();
  return {.tokenizer = out.take(), .tokenizer_config = write_config(vocabulary)};
}

}  // namespace imago::models
