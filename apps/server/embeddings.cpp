// Embeddings: what a model makes of texts, as vectors; OpenAI's endpoint and llama-server's.

#include <fmt/format.h>
#include <openssl/evp.h>

#include <bit>
#include <cmath>
#include <cstddef>
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
    return read_prompts(*input, name, model);
  }
  bad_field(*names.begin(), "is missing");
}

std::size_t count_tokens(const std::vector<std::vector<TokenId>>& prompts) {
  return std::accumulate(prompts.begin(), prompts.end(), std::size_t{0},
                         [](std::size_t sum, const std::vector<TokenId>& ids) { return sum + ids.size(); });
}

}  // namespace

std::vector<std::vector<float>> embed(Call& call, ServedModel& model, const std::vector<std::vector<TokenId>>& prompts,
                                      bool normalized) {
  std::vector<std::vector<float>> vectors;
  for (const std::vector<TokenId>& ids : prompts) {
    if (!call.is_alive()) throw ClientGone();
    if (std::chrono::steady_clock::now() > call.deadline) {
      throw ApiError(504, "timeout_error", "the answer took longer than the server allows");
    }
    vectors.push_back(model.engine().embed(ids));
    if (!normalized) continue;
    std::vector<float>& vector = vectors.back();
    const double length = std::sqrt(std::inner_product(vector.begin(), vector.end(), vector.begin(), 0.0));
    if (length == 0) continue;
    for (float& value : vector) value = static_cast<float>(static_cast<double>(value) / length);
  }
  return vectors;
}

HttpReply embeddings(Call& call) {
  const Body& body = call.body;
  const std::string format = read_string(body, "encoding_format", "float");
  if (format != "float" && format != "base64") {
    bad_field("encoding_format", fmt::format("is '{}'; it can be float or base64", format));
  }
  const std::int64_t dimensions = read_integer(body, "dimensions", 0, 1, 1 << 24);
  const auto model = model_of(call);
  const std::vector<std::vector<TokenId>> prompts = read_input(body, {"input", "content"}, *model);
  Json data = Json::array();
  for (const std::vector<float>& vector : embed(call, *model, prompts, true)) {
    if (dimensions != 0 && static_cast<std::size_t>(dimensions) != vector.size()) {
      unsupported_field("dimensions",
                        fmt::format("is {}; this model has {}, which are not cut", dimensions, vector.size()));
    }
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
