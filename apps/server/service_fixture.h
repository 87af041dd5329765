#pragma once

// A server without sockets, with a model whose text is nonsense but always the same, for tests.

#include <gtest/gtest.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/models.h"
#include "server/service.h"
#include "testing/byte_model.h"

namespace imago::server {

using nlohmann::json;
using testing::ByteModel;

class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto missing = ByteModel::missing()) GTEST_SKIP() << *missing;
    files_.emplace();
    start();
  }

  static EngineOptions engine_options() { return {.context = 256, .parallel = 4}; }
  ModelsOptions models_options() {
    ModelsOptions models;
    models.path = files_->path();
    models.name = "bytes";
    models.engine = engine_options();
    models.load = [](const std::string& path, std::optional<Format> type) {
      return LanguageModel::load(path, {.type = type, .fast = false});
    };
    return models;
  }
  void start(ServiceOptions options = {}) { start(std::move(options), models_options()); }
  void start(ServiceOptions options, ModelsOptions models, bool loaded = true) {
    service_.reset();
    models_.reset();
    models_.emplace(std::move(models));
    if (loaded) models_->load_first();
    options.parallel = 4;
    options.defaults.max_tokens = 64;
    options.defaults.sampler.temperature = 0;
    options.defaults.ignore_end = true;
    service_.emplace(*models_, std::move(options));
  }

  HttpReply ask(HttpRequest request) {
    if (request.header("Host").empty()) request.headers.emplace_back("Host", "localhost:8080");
    HttpReply reply = service_->handle(request);
    if (reply.stream) {
      reply.stream([&](std::string_view piece) {
        reply.body += piece;
        return true;
      });
    }
    return reply;
  }
  HttpReply get(const std::string& path, HttpHeaders headers = {}) {
    return ask({.method = "GET", .path = path, .headers = std::move(headers)});
  }
  HttpReply post(const std::string& path, const json& body, HttpHeaders headers = {}) {
    return ask({.method = "POST", .path = path, .headers = std::move(headers), .body = body.dump()});
  }

  /// The body of a reply with that status.
  static json whole(const HttpReply& reply, int status) {
    EXPECT_EQ(reply.status, status) << reply.body;
    return json::parse(reply.body, nullptr, false);
  }
  static json good(const HttpReply& reply) { return whole(reply, 200); }
  /// Expects a refusal, in the shape of OpenAI or Anthropic, and returns the error.
  static json refused(const HttpReply& reply, int status) {
    const json body = whole(reply, status);
    const bool known = body.is_object() && body.contains("error") && body["error"].is_object();
    EXPECT_TRUE(known) << reply.body;
    return known ? body["error"] : json::object();
  }
  static std::string header(const HttpReply& reply, const std::string& name) {
    for (const auto& [key, value] : reply.headers) {
      if (key == name) return value;
    }
    return {};
  }
  /// The messages of a stream of server-sent events, without the last [DONE]. Events that have a name have it as type.
  static std::vector<json> events(const HttpReply& reply) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_TRUE(reply.type.starts_with("text/event-stream"));
    std::vector<json> found;
    for (std::size_t at = 0, end = 0; (end = reply.body.find("\n\n", at)) != std::string::npos;) {
      std::string event = reply.body.substr(at, end - at), name;
      at = end + 2;
      if (event.starts_with("event: ")) {
        name = event.substr(7, event.find('\n') - 7);
        event.erase(0, event.find('\n') + 1);
      }
      EXPECT_TRUE(event.starts_with("data: ")) << event;
      if (event == "data: [DONE]") continue;
      found.push_back(json::parse(event.substr(6)));
      EXPECT_TRUE(name.empty() || found.back()["type"] == name) << event;
    }
    return found;
  }
  static std::vector<std::string> types(const std::vector<json>& events) {
    std::vector<std::string> found;
    for (const json& event : events) found.push_back(event["type"]);
    return found;
  }

  static json chat(const std::string& text) {
    return {{"messages", {{{"role", "user"}, {"content", text}}}}, {"max_tokens", 8}};
  }
  /// What ChatML makes of messages: role, text, role, text.
  static std::string chat_ml(const std::vector<std::string>& messages) {
    std::string text;
    for (std::size_t i = 0; i + 1 < messages.size(); i += 2) {
      text += "<|im_start|>" + messages[i] + "\n" + messages[i + 1] + "<|im_end|>\n";
    }
    return text + "<|im_start|>assistant\n";
  }
  static std::vector<TokenId> bytes_of(const std::string& text) {
    std::vector<TokenId> ids;
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
    return ids;
  }
  /// What the model answers to a prompt: by the engine, without the service.
  std::string answer(const std::string& prompt, std::size_t tokens) {
    Request request{.prompt = bytes_of(prompt), .generate = {.max_tokens = tokens, .ignore_end = true}};
    request.generate.sampler.temperature = 0;
    const std::string text = models_->get("")->engine().submit(std::move(request)).finish().text;
    // As JSON shows it: bytes that are not UTF-8 become U+FFFD.
    return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace));
  }
  /// A character of a text that comes first in its second half.
  static std::string late_character(const std::string& text) {
    for (std::size_t i = text.size() / 2; i < text.size(); ++i) {
      if (text[i] > ' ' && text[i] < 127 && text.find(text[i]) == i) return text.substr(i, 1);
    }
    ADD_FAILURE() << "no such character in " << text;
    return "?";
  }
  /// Fields that make the model say `text`, of which no character comes twice: each one is biased less than the one
  /// before, and what has been said is pushed down. The prompt must end with 16 characters that are not in it.
  static json saying(const std::string& text) {
    json biases = json::object();
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::string token = std::to_string(static_cast<unsigned char>(text[i]));
      biases[token] = 10000 - 500 * static_cast<int>(i);
    }
    return {{"logit_bias", biases}, {"repeat_penalty", 100}, {"repeat_last_n", 16}, {"temperature", 0}};
  }
  static constexpr const char* kThought = "Wow</think>yes";  ///< for `saying`
  /// Makes conversations begin with a thought.
  void start_thinking() {
    ModelsOptions models = models_options();
    models.chat_template = "{%- for message in messages -%}{{ message.content }}{%- endfor -%}{{ '<think>" +
                           std::string(16, '\n') + "' }}";
    start({}, std::move(models));
  }

  std::optional<ByteModel> files_;
  std::optional<Models> models_;
  std::optional<Service> service_;
};

}  // namespace imago::server
