// Embeddings: what a model makes of texts, as vectors; the endpoints of OpenAI, llama-server and Ollama. And reranking:
// the scores that a cross-encoder gives to documents.

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>
#include <numeric>
#include <string>

#include "endpoints.h"
#include "prompt.h"

namespace imago::server {

namespace {

/// The floats of a vector as OpenAI's clients read them fastest.
std::string base64(const std::vector<float>& vector) {
  static_assert(std::endian::native == std::endian::little);
  const auto bytes = static_cast<int>(vector.size() * sizeof(float));
  std::string text(static_cast<std::size_t>(bytes + 2) / 3 * 4 + 1, '\0');  // OpenSSL ends it with a zero
  text.resize(static_cast<std::size_t>(::EVP_EncodeBlock(
      reinterpret_cast<unsigned char*>(text.data()), reinterpret_cast<const unsigned char*>(vector.data()), bytes)));
  return text;
}

std::vector<std::vector<TokenId>> read_input(const Body& body, std::initializer_list<const char*> names,
                                             const ServedModel& model) {
  for (const char* const name : names) {
    const Body* const input = find(body, name);
    if (input == nullptr) continue;
    if (input->is_array() && input->empty()) bad_field(name, "is empty");
    return read_prompts(*input, name, model, true);
  }
  bad_field(*names.begin(), "is missing");
}

std::size_t count_tokens(const std::vector<std::vector<TokenId>>& prompts) {
  return std::accumulate(prompts.begin(), prompts.end(), std::size_t{0},
                         [](std::size_t sum, const std::vector<TokenId>& ids) { return sum + ids.size(); });
}

}  // namespace

namespace {

/// Ends the work once nobody waits for it.
std::function<void(std::size_t, std::size_t)> watch(Call& call) {
  return [&call](std::size_t, std::size_t) {
    if (!call.is_alive()) throw ClientGone();
    if (std::chrono::steady_clock::now() > call.deadline) {
      throw ApiError(504, "timeout_error", "the answer took longer than the server allows");
    }
  };
}

}  // namespace

std::vector<std::vector<float>> embed(Call& call, ServedModel& model, const std::vector<std::vector<TokenId>>& prompts,
                                      bool normalized) {
  return model.engine().embed(prompts, {.normalize = normalized, .progress = watch(call)});
}

HttpReply embeddings(Call& call) {
  const Body& body = call.body;
  const std::string format = read_string(body, "encoding_format", "float");
  if (format != "float" && format != "base64") {
    bad_field("encoding_format", fmt::format("is '{}'; it can be float or base64", format));
  }
  const std::int64_t dimensions = read_integer(body, "dimensions", 0, 1, 1 << 24);
  const auto model = model_of(call);
  const std::size_t width = model->model().embedding_width();
  if (dimensions != 0 && static_cast<std::size_t>(dimensions) != width) {
    unsupported_field("dimensions", fmt::format("is {}; this model has {}, which are not cut", dimensions, width));
  }
  const std::vector<std::vector<TokenId>> prompts = read_input(body, {"input", "content"}, *model);
  Json data = Json::array();
  for (const std::vector<float>& vector : embed(call, *model, prompts, true)) {
    Json embedding = format == "base64" ? Json(base64(vector)) : Json(vector);
    data.push_back({{"object", "embedding"}, {"index", data.size()}, {"embedding", std::move(embedding)}});
  }
  const std::size_t tokens = count_tokens(prompts);
  return json_reply({{"object", "list"},
                     {"data", std::move(data)},
                     {"model", model->name()},
                     {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}});
}

HttpReply native_embeddings(Call& call) {
  constexpr std::int64_t kAsTheyAre = -1, kEuclidean = 2;
  const std::int64_t norm = read_integer(call.body, "embd_normalize", kEuclidean, -1, 1 << 20);
  if (norm != kAsTheyAre && norm != kEuclidean) {
    unsupported_field("embd_normalize", fmt::format("is {}; it can be -1, none, or 2, Euclidean", norm));
  }
  const auto model = model_of(call);
  const std::vector<std::vector<TokenId>> prompts = read_input(call.body, {"content", "input"}, *model);
  Json replies = Json::array();
  for (const std::vector<float>& vector : embed(call, *model, prompts, norm == kEuclidean)) {
    // A list of vectors, as llama-server has one for each token where it does not pool them.
    replies.push_back({{"index", replies.size()}, {"embedding", Json::array({vector})}});
  }
  return json_reply(replies);
}

HttpReply rerank(Call& call) {
  // Jina's clients send documents and read results; those of text-embeddings-inference send texts and read a list.
  const Body& body = call.body;
  const char* const field =
      find(body, "documents") == nullptr && find(body, "texts") != nullptr ? "texts" : "documents";
  const bool list_only = field == std::string_view("texts");
  if (find(body, "query") == nullptr) bad_field("query", "is missing");
  const std::string query = read_string(body, "query");
  std::vector<std::string> documents;
  if (const Body* const given = find(body, field); given != nullptr && given->is_array()) {
    for (const Body& one : *given) {
      const std::string place = fmt::format("{}[{}]", field, documents.size());
      if (!one.is_string() && !one.is_object()) bad_field(place, "must be a string, or an object with a 'text'");
      documents.push_back(one.is_string() ? one.get<std::string>() : read_string(one, "text"));
    }
  }
  if (documents.empty()) bad_field(field, "must be an array of texts that is not empty");
  const auto top = static_cast<std::size_t>(read_integer(body, "top_n", 0, 1, 1 << 30));
  const bool with_text = read_bool(body, list_only ? "return_text" : "return_documents", false);
  const auto model = model_of(call);

  std::vector<TextPair> pairs;
  std::size_t tokens = 0;
  for (const std::string& document : documents) {
    pairs.push_back(encode_pair(model->tokenizer(), query, document));
    tokens += pairs.back().ids.size();
  }
  const std::vector<float> scores = model->engine().score(pairs, {.progress = watch(call)});
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return scores[i]; });
  if (top != 0 && top < order.size()) order.resize(top);
  Json results = Json::array();
  for (const std::size_t i : order) {
    Json result = {{"index", i}, {list_only ? "score" : "relevance_score", scores[i]}};
    if (with_text && list_only) result["text"] = documents[i];
    if (with_text && !list_only) result["document"] = {{"text", documents[i]}};
    results.push_back(std::move(result));
  }
  if (list_only) return json_reply(results);
  return json_reply({{"model", model->name()},
                     {"object", "list"},
                     {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}},
                     {"results", std::move(results)}});
}

HttpReply ollama_embeddings(Call& call) {
  const auto model = model_of(call);
  const std::vector<std::vector<TokenId>> prompts = read_input(call.body, {"prompt"}, *model);
  if (prompts.size() != 1) bad_field("prompt", "must be one text; /api/embed takes several");
  return json_reply({{"embedding", embed(call, *model, prompts, false).front()}});
}

HttpReply ollama_embed(Call& call) {
  const auto start = std::chrono::steady_clock::now();
  const bool truncate = read_bool(call.body, "truncate", true);
  if (find(call.body, "dimensions") != nullptr) unsupported_field("dimensions", "is not supported by this server");
  const auto model = model_of(call);
  const auto loaded = std::chrono::steady_clock::now();
  std::vector<std::vector<TokenId>> prompts = read_input(call.body, {"input"}, *model);
  const std::size_t most = model->engine().context() - 1;  // as for answers, which need room for a token
  for (std::vector<TokenId>& ids : prompts) {
    if (truncate && ids.size() > most) ids.resize(most);
  }
  std::vector<std::vector<float>> vectors = embed(call, *model, prompts, true);
  const auto since = [](auto from, auto to) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(to - from).count();
  };
  return json_reply({{"model", read_string(call.body, "model", model->name())},
                     {"embeddings", std::move(vectors)},
                     {"total_duration", since(start, std::chrono::steady_clock::now())},
                     {"load_duration", since(start, loaded)},
                     {"prompt_eval_count", count_tokens(prompts)}});
}

}  // namespace imago::server
