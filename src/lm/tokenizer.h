#pragma once

#include "imago/lm.h"
#include "models/vocabulary.h"

namespace imago {

/// Makes tokenizers for those who have read the vocabulary already.
struct TokenizerMaker {
  /// Throws UnsupportedError, for an expression that cannot be used, say. REQUIRES: a vocabulary as read_vocabulary
  /// returns it.
  static Tokenizer make(models::Vocabulary vocabulary);
};

}  // namespace imago
