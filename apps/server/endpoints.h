#pragma once

// The endpoints. Each answers one request, and throws what refuses it.

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "api.h"
#include "completion.h"
#include "http.h"
#include "models.h"
#include "service.h"

namespace imago::server {

/// A request on its way to an endpoint.
struct Call {
  Service& service;
  const HttpRequest& request;
  Dialect dialect;
  std::function<bool()> is_alive;  ///< whether somebody still waits for the answer
  Body body;                       ///< an empty object for GET
  std::chrono::steady_clock::time_point deadline;
};

/// Sends one message of a stream. Throws ClientGone.
using SendEvent = std::function<void(const Json& message, std::string_view event)>;
/// Server-sent events, the same with a last [DONE], or a JSON object on each line.
enum class StreamFormat : std::uint8_t { events, events_until_done, lines };

/// A reply that `tell` sends, message by message. What it throws ends the stream with an error in the dialect's shape.
HttpReply stream_reply(StreamFormat format, Dialect dialect, std::function<void(const SendEvent& send)> tell);
/// The model that a body names; clients of Ollama add ":latest" to names.
std::shared_ptr<ServedModel> model_of(Call& call);
/// Reads the limit on generated tokens from the first of these fields that is there; what the
/// server was started with holds if none is, or it is negative.
void read_max_tokens(const Body& body, std::initializer_list<std::string_view> names, GenerateOptions& options);
/// 501 for fields that ask for what this server cannot do (tools, grammars), 400 if they make no sense at all.
void refuse_unsupported(const Body& body);
/// One vector for each prompt, of length 1 if they are normalized. Throws as Engine::embed, and as Completion::next.
std::vector<std::vector<float>> embed(Call& call, ServedModel& model, const std::vector<std::vector<TokenId>>& prompts,
                                      bool normalized);
/// Submits the answer to a conversation. `options` are what the dialect has read.
std::shared_ptr<Completion> converse(const std::shared_ptr<ServedModel>& model, const std::string& prompt,
                                     CompletionOptions options, bool separates_reasoning);

// OpenAI
HttpReply list_models(Call& call);
inline constexpr std::string_view kModelPath = "/v1/models/";
HttpReply one_model(Call& call);
HttpReply chat_completions(Call& call);
HttpReply completions(Call& call);
HttpReply count_chat_tokens(Call& call);
HttpReply embeddings(Call& call);
HttpReply responses(Call& call);

// Anthropic
HttpReply messages(Call& call);
HttpReply count_message_tokens(Call& call);

// Ollama
HttpReply ollama_chat(Call& call);
HttpReply ollama_generate(Call& call);
HttpReply ollama_embed(Call& call);
HttpReply ollama_embeddings(Call& call);
HttpReply ollama_tags(Call& call);
HttpReply ollama_show(Call& call);
HttpReply ollama_running(Call& call);
HttpReply ollama_version(Call& call);

// llama-server
HttpReply health(Call& call);
HttpReply props(Call& call);
HttpReply metrics(Call& call);
HttpReply slots(Call& call);
HttpReply slot_action(Call& call);
HttpReply tokenize(Call& call);
HttpReply detokenize(Call& call);
HttpReply apply_template(Call& call);
HttpReply native_completion(Call& call);
HttpReply native_embeddings(Call& call);
HttpReply rerank(Call& call);

// The page: state, and precision of a running model
HttpReply state(Call& call);
HttpReply types(Call& call);
HttpReply morph(Call& call);
HttpReply undo(Call& call);

}  // namespace imago::server
