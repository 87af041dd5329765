// The endpoints without sockets: a tiny model answers.

#include "server/service.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/api.h"
#include "server/completion.h"
#include "testing/byte_model.h"

namespace imago::server {
namespace {

using nlohmann::json;
using testing::ByteModel;

/// A server with the byte model, whose text is nonsense but always the same.
class ServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto missing = ByteModel::missing()) GTEST_SKIP() << *missing;
    files_.emplace();
    start({});
  }

  void start(ServiceOptions options) {
    service_.reset();
    models_.reset();
    ModelsOptions models;
    models.path = files_->path();
    models.name = "bytes";
    models.engine = {.context = 256, .parallel = 4};
    models.load = [](const std::string& path, std::optional<Format> type) {
      return LanguageModel::load(path, {.type = type, .fast = false});
    };
    models_.emplace(models);
    models_->load_first();
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
  /// The body of a good reply.
  json good(const HttpReply& reply) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body, nullptr, false);
  }
  /// Expects a refusal in OpenAI's shape, and returns the error.
  json refused(const HttpReply& reply, int status) {
    EXPECT_EQ(reply.status, status) << reply.body;
    const json body = json::parse(reply.body, nullptr, false);
    EXPECT_TRUE(body.is_object() && body.contains("error")) << reply.body;
    return body.value("error", json::object());
  }
  /// The messages of a stream of server-sent events, without the last [DONE].
  std::vector<json> events(const HttpReply& reply) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_TRUE(reply.type.starts_with("text/event-stream"));
    std::vector<json> found;
    for (std::size_t at = 0; (at = reply.body.find("data: ", at)) != std::string::npos;) {
      const std::size_t end = reply.body.find("\n\n", at);
      const std::string data = reply.body.substr(at + 6, end - at - 6);
      if (data != "[DONE]") found.push_back(json::parse(data));
      at = end;
    }
    return found;
  }
  static json chat(const std::string& text) {
    return {{"messages", {{{"role", "user"}, {"content", text}}}}, {"max_tokens", 8}};
  }

  std::optional<ByteModel> files_;
  std::optional<Models> models_;
  std::optional<Service> service_;
};

TEST_F(ServiceTest, AnswersAChat) {
  const json reply = good(post("/v1/chat/completions", chat("Up betimes")));
  EXPECT_EQ(reply["object"], "chat.completion");
  EXPECT_EQ(reply["model"], "bytes");
  EXPECT_EQ(reply["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(reply["usage"]["completion_tokens"], 8);
  EXPECT_EQ(reply["usage"]["total_tokens"], reply["usage"]["prompt_tokens"].get<int>() + 8);
}

TEST_F(ServiceTest, AStreamSaysWhatTheWholeReplySays) {
  json body = chat("Up betimes");
  body["n"] = 2;
  const json whole = good(post("/v1/chat/completions", body));
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const HttpReply reply = post("/v1/chat/completions", body);
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n"));
  std::vector<std::string> texts(2), reasons(2);
  json usage;
  for (const json& event : events(reply)) {
    if (event["choices"].empty()) usage = event["usage"];
    for (const json& choice : event["choices"]) {
      const auto index = choice["index"].get<std::size_t>();
      if (choice["delta"].contains("content") && choice["delta"]["content"].is_string()) {
        texts.at(index) += choice["delta"]["content"].get<std::string>();
      }
      if (!choice["finish_reason"].is_null()) reasons.at(index) = choice["finish_reason"];
    }
  }
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(texts[i], whole["choices"][i]["message"]["content"]);
    EXPECT_EQ(reasons[i], "length");
  }
  EXPECT_EQ(usage["completion_tokens"], 16);
}

}  // namespace
}  // namespace imago::server
