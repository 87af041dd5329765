// A tokenizer.json that is accepted makes a tokenizer that takes any text, and can be written in both forms.

#include "models/vocabulary.h"

#include <cstdint>
#include <cstdlib>

#include "imago/error.h"
#include "lm/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace imago;
  std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const models::Vocabulary vocabulary = models::read_vocabulary(files::JsonFile::parse(std::move(text), "fuzz"));
    if (vocabulary.tokens.empty()) std::abort();
    models::gguf_vocabulary(vocabulary);
    const models::TokenizerFiles files = models::hugging_face_vocabulary(vocabulary);
    const models::Vocabulary again = models::read_vocabulary(files::JsonFile::parse(files.tokenizer, "again"));
    if (again.kind != vocabulary.kind || again.tokens.size() != vocabulary.tokens.size()) std::abort();
    const Tokenizer tokenizer = TokenizerMaker::make(vocabulary);
    for (const bool special : {false, true}) {
      const std::vector<TokenId> ids = tokenizer.encode("a b  c\n<s>\xc3\xa9\xff 12 \xf0\x9f\x98\x80", special);
      for (const TokenId id : ids) {
        if (id < 0 || static_cast<std::size_t>(id) >= tokenizer.size()) std::abort();
      }
      tokenizer.decode(ids, special);
    }
  } catch (const Error&) {
  }
  return 0;
}
