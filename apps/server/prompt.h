#pragma once

// From the messages and prompts of a request to tokens.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api.h"
#include "imago/lm.h"
#include "models.h"

namespace imago::server {

/// A conversation to continue.
struct Conversation {
  std::vector<ChatMessage> messages;
  bool continues_last = false;  ///< the last message, of the assistant, is the beginning of the answer
  std::vector<std::pair<std::string, std::string>> variables = {};  ///< for the template; values are JSON texts
};

/// The text of `content`: a string, or an array of parts of which all are text or thoughts, which are left out. `name`
/// is for errors. Throws ApiError.
std::string read_content(const Body& content, const std::string& name);
/// The messages of a list in any dialect; thoughts, which models do not read again, are left out. Throws ApiError.
std::vector<ChatMessage> read_messages(const Body& messages, const std::string& name);
/// Adds the variables by which templates are told how much to think: "none", "low", … Throws ApiError.
void read_effort(const Body& body, std::string_view name, Conversation& conversation);
/// Adds the variables of chat_template_kwargs. Throws ApiError.
void read_template_variables(const Body& body, Conversation& conversation);
/// `messages` as OpenAI has them, with continue_final_message, reasoning_effort and chat_template_kwargs. Throws
/// ApiError.
Conversation read_conversation(const Body& body);

/// By the chat template of the model. Throws ApiError, and as ChatTemplate::render.
std::string render(const ServedModel& model, const Conversation& conversation);

/// The token ids of an array. Throws ApiError for ids outside the vocabulary.
std::vector<TokenId> read_ids(const Body& ids, const std::string& name, std::size_t vocabulary);
/// One prompt or several: text, token ids, an array of both, {"prompt_string": text}, or an array of such prompts.
/// `whole`: texts end with the EOS that the tokenizer adds, since nothing follows them.
std::vector<std::vector<TokenId>> read_prompts(const Body& prompt, const std::string& name, const ServedModel& model,
                                               bool whole = false);

}  // namespace imago::server
