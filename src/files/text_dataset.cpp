#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include "base/checked.h"
#include "base/file.h"
#include "files/json_text.h"
#include "imago/data.h"
#include "imago/error.h"

namespace imago {

namespace {

/// Calls visit(unit) for each byte or character of `text`.
template <class Visit>
void for_each_unit(std::string_view text, TextUnit unit, std::string_view file, Visit&& visit) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = unit == TextUnit::byte ? 1 : files::utf8_length(text, at);
    if (length == 0) throw FormatError(file, at, "this is not UTF-8 text; read it as bytes");
    visit(text.substr(at, length));
    at += length;
  }
}

}  // namespace

TextVocabulary::TextVocabulary(std::string_view text, TextUnit unit, std::string_view file) : unit_(unit) {
  std::array<bool, 256> bytes{};  // single bytes, which is nearly all of it, without a search
  std::set<std::string_view> longer;
  for_each_unit(text, unit, file, [&](std::string_view token) {
    if (token.size() == 1) {
      bytes[static_cast<unsigned char>(token[0])] = true;
    } else {
      longer.insert(token);
    }
  });
  for (std::size_t byte = 0; byte < bytes.size(); ++byte) {
    if (bytes[byte]) tokens_.emplace_back(1, static_cast<char>(byte));
  }
  tokens_.insert(tokens_.end(), longer.begin(), longer.end());  // they start above every single byte of UTF-8
}

std::vector<int> TextVocabulary::encode(std::string_view text, std::string_view file) const {
  std::array<int, 256> of_byte;
  of_byte.fill(-1);
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].size() == 1) of_byte[static_cast<unsigned char>(tokens_[id][0])] = static_cast<int>(id);
  }
  std::vector<int> ids;
  ids.reserve(text.size());
  for_each_unit(text, unit_, file, [&](std::string_view token) {
    if (token.size() == 1 && of_byte[static_cast<unsigned char>(token[0])] >= 0) {
      ids.push_back(of_byte[static_cast<unsigned char>(token[0])]);
      return;
    }
    const auto at = std::ranges::lower_bound(tokens_, token);
    if (at == tokens_.end() || *at != token) {
      throw UsageError(fmt::format("'{}' is not in the vocabulary of {} {}", token, tokens_.size(),
                                   unit_ == TextUnit::byte ? "bytes" : "characters"));
    }
    ids.push_back(static_cast<int>(at - tokens_.begin()));
  });
  return ids;
}

std::string TextVocabulary::decode(std::span<const int> ids) const {
  std::string text;
  for (const int id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= tokens_.size()) {
      throw UsageError(fmt::format("token {} of a vocabulary of {}", id, tokens_.size()));
    }
    text += tokens_[static_cast<std::size_t>(id)];
  }
  return text;
}

Dataset make_token_dataset(std::span<const int> ids, const TextOptions& options, std::string_view file) {
  if (options.context == 0) throw UsageError("a text dataset needs a context of at least one token");
  const std::size_t stride = options.stride == 0 ? options.context : options.stride;
  if (ids.size() <= options.context) {
    throw UsageError(fmt::format("{}: {} tokens are too few for a context of {} and the token after it", file,
                                 ids.size(), options.context));
  }
  const std::size_t count = (ids.size() - 1 - options.context) / stride + 1;
  checked_mul(checked_mul(count, options.context, "a text dataset"), sizeof(float), "a text dataset");
  Dataset data{Tensor<float>({count, options.context}), Tensor<float>({count, options.context})};
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t t = 0; t < options.context; ++t) {
      data.x[i * options.context + t] = static_cast<float>(ids[i * stride + t]);
      data.y[i * options.context + t] = static_cast<float>(ids[i * stride + t + 1]);
    }
  }
  return data;
}

TextDataset make_text_dataset(std::string_view text, const TextOptions& options, std::string_view file) {
  TextDataset result;
  result.vocabulary = TextVocabulary(text, options.unit, file);
  result.data = make_token_dataset(result.vocabulary.encode(text, file), options, file);
  return result;
}

TextDataset load_text_dataset(const std::string& path, const TextOptions& options) {
  const MappedFile file = MappedFile::open(path);
  return make_text_dataset(file.text(), options, path);
}

}  // namespace imago
