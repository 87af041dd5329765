// What all endpoints share: who may ask, errors and their statuses; and OpenAI's chat.

#include "server/service.h"

#include <chrono>
#include <future>

#include "server/api.h"
#include "server/completion.h"
#include "server/service_fixture.h"

namespace imago::server {
namespace {

TEST_F(ServiceTest, AnswersAChat) {
  const json reply = good(post("/v1/chat/completions", chat("Up betimes")));
  EXPECT_EQ(reply["object"], "chat.completion");
  EXPECT_EQ(reply["model"], "bytes");
  EXPECT_EQ(reply["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(reply["choices"][0]["message"]["content"], answer(chat_ml({"user", "Up betimes"}), 8));
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(reply["usage"]["completion_tokens"], 8);
  EXPECT_EQ(reply["usage"]["prompt_tokens"], chat_ml({"user", "Up betimes"}).size());
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

TEST_F(ServiceTest, ThoughtsAreToldApart) {
  start_thinking();
  json body = chat("Up");
  body.update(saying(kThought));
  body["max_tokens"] = 14;
  const json reply = good(post("/v1/chat/completions", body));
  EXPECT_EQ(reply["choices"][0]["message"]["reasoning_content"], "Wow");
  EXPECT_EQ(reply["choices"][0]["message"]["content"], "yes");
  EXPECT_EQ(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);
}

TEST(ReasoningFilter, FindsTagsThatPiecesCut) {
  for (const std::string whole : {"<think>a < b</think>\n\nyes", "\n<think>a < b</think>yes"}) {
    ReasoningFilter filter(true, false);
    std::string reasoning, content;
    const auto add = [&](const ReasoningFilter::Parts& parts) {
      reasoning += parts.reasoning;
      content += parts.content;
    };
    for (const char letter : whole) add(filter.push(std::string(1, letter)));
    add(filter.finish());
    EXPECT_EQ(reasoning, "a < b");
    EXPECT_EQ(content, "yes");
  }
}

TEST(ReasoningFilter, LeavesTextWithoutThoughtsAlone) {
  ReasoningFilter filter(true, false), disabled(false, true);
  EXPECT_EQ(filter.push("a <think>b</think>").content, "a <think>b</think>");
  EXPECT_EQ(disabled.push("<think>b</think>").content, "<think>b</think>");
  ReasoningFilter cut(true, true);
  EXPECT_EQ(cut.push("thought </thi").reasoning, "thought ");
  EXPECT_EQ(cut.finish().reasoning, "</thi");
}

TEST_F(ServiceTest, ProgressOfAPromptBeginsWithWhatIsCachedAndHasTimes) {
  const json body = {{"prompt", ByteModel::text(200)}, {"n_predict", 2}, {"stream", true}, {"return_progress", true}};
  std::vector<json> progress;
  for (const json& event : events(post("/completion", body))) {
    if (event.contains("prompt_progress")) progress.push_back(event);
  }
  ASSERT_EQ(progress.size(), 2u);
  EXPECT_EQ(progress[0]["prompt_progress"]["processed"], 0);
  EXPECT_EQ(progress[0]["timings"]["prompt_ms"], 0);
  EXPECT_EQ(progress[1]["prompt_progress"]["processed"], 200);
  EXPECT_EQ(progress[1]["timings"]["prompt_n"], 200);
  EXPECT_GT(progress[1]["timings"]["prompt_ms"], 0);
}

TEST_F(ServiceTest, ALimitOfTheServerIsWhatARequestGetsThatHasNone) {
  EXPECT_EQ(good(post("/completion", {{"prompt", "a"}}))["tokens_predicted"], 64);
  EXPECT_EQ(good(post("/completion", {{"prompt", "a"}, {"n_predict", -1}}))["tokens_predicted"], 64);
  EXPECT_EQ(good(post("/completion", {{"prompt", "a"}, {"n_predict", 80}}))["tokens_predicted"], 80);
}

TEST_F(ServiceTest, SaysWhichTextStoppedIt) {
  const std::string whole = answer("Up", 20);
  const std::string stop = late_character(whole);
  const json reply = good(post("/completion", {{"prompt", "Up"}, {"n_predict", 20}, {"stop", {"never said", stop}}}));
  EXPECT_EQ(reply["content"], whole.substr(0, whole.find(stop)));
  EXPECT_EQ(reply["stop_type"], "word");
  EXPECT_EQ(reply["stopping_word"], stop);
}

TEST_F(ServiceTest, BiasesMayNameTextsAsWellAsTokens) {
  const json by_text = {{"prompt", "a"}, {"n_predict", 4}, {"logit_bias", {{"z", 10000}}}};
  EXPECT_EQ(good(post("/completion", by_text))["content"], "zzzz");
  const json by_id = {{"prompt", "a"}, {"n_predict", 4}, {"logit_bias", {{"122", 10000}}}};
  EXPECT_EQ(good(post("/completion", by_id))["content"], "zzzz");
  refused(post("/completion", {{"prompt", "a"}, {"logit_bias", {{"256", 1}}}}), 400);
}

TEST_F(ServiceTest, ChatsShowTheirPromptWhereTheyAreAskedTo) {
  json body = chat("Up");
  EXPECT_FALSE(good(post("/v1/chat/completions", body)).contains("__verbose"));
  body["verbose"] = true;
  EXPECT_EQ(good(post("/v1/chat/completions", body))["__verbose"]["prompt"], chat_ml({"user", "Up"}));
  start({.verbose = true});
  EXPECT_TRUE(good(post("/v1/chat/completions", chat("Up"))).contains("__verbose"));
}

// ---- errors

TEST_F(ServiceTest, AFieldThatIsWrongIsNamed) {
  const auto with = [&](const std::string& field, const json& value) {
    json body = chat("Up");
    body[field] = value;
    return refused(post("/v1/chat/completions", body), 400);
  };
  const std::vector<std::pair<std::string, json>> wrong = {{"temperature", "hot"},
                                                           {"top_p", 2},
                                                           {"max_tokens", "many"},
                                                           {"max_tokens", 1.5},
                                                           {"seed", {1}},
                                                           {"stop", 5},
                                                           {"n", 0},
                                                           {"stream", "yes"},
                                                           {"messages", "hello"},
                                                           {"messages", json::array()},
                                                           {"logit_bias", 7},
                                                           {"response_format", {{"type", "sound"}}},
                                                           {"stream_options", {{"include_usage", true}}},
                                                           {"top_logprobs", 5}};
  for (const auto& [field, value] : wrong) {
    const json error = with(field, value);
    const std::string param = error.value("param", "");
    EXPECT_EQ(error["type"], "invalid_request_error") << field;
    EXPECT_EQ(param.substr(0, param.find('.')), field) << error;
    EXPECT_NE(error["message"].get<std::string>().find("'" + field), std::string::npos) << error;
  }
}

TEST_F(ServiceTest, MoreThan20TopLogprobsAreRefused) {
  json body = chat("Up");
  body["logprobs"] = true;
  body["top_logprobs"] = 20;
  EXPECT_EQ(good(post("/v1/chat/completions", body))["choices"][0]["logprobs"]["content"][0]["top_logprobs"].size(),
            20u);
  body["top_logprobs"] = 21;
  EXPECT_EQ(refused(post("/v1/chat/completions", body), 400)["param"], "top_logprobs");
}

TEST_F(ServiceTest, APromptBeyondTheContextIsRefusedWithTheNumbers) {
  const json error = refused(post("/v1/completions", {{"prompt", ByteModel::text(300)}}), 400);
  EXPECT_EQ(error["type"], "exceed_context_size_error");
  EXPECT_EQ(error["n_prompt_tokens"], 300);
  EXPECT_EQ(error["n_ctx"], 256);
}

TEST_F(ServiceTest, AMessageBeyondTheBoundsOfTemplatesIsTheClientsFault) {
  const json error = refused(post("/v1/chat/completions", chat(std::string(std::size_t{17} << 20, 'x'))), 400);
  EXPECT_EQ(error["param"], "messages");
}

TEST_F(ServiceTest, ToolsAndGrammarsAreNotSupportedButEmptyListsAreFine) {
  json body = chat("Up");
  body["tools"] = json::array();
  body["response_format"] = {{"type", "text"}};
  good(post("/v1/chat/completions", body));
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, json>>{{"tools", {{{"type", "function"}}}},
                                                 {"grammar", "root ::= \"a\""},
                                                 {"response_format", {{"type", "json_object"}}}}) {
    json other = chat("Up");
    other[field] = value;
    const json error = refused(post("/v1/chat/completions", other), 501);
    EXPECT_EQ(error["type"], "not_supported_error");
    EXPECT_EQ(error["param"], field);
  }
  json image = chat("Up");
  image["messages"][0]["content"] = {{{"type", "image_url"}}};
  EXPECT_EQ(refused(post("/v1/chat/completions", image), 501)["param"], "messages[0].content[0].type");
}

TEST_F(ServiceTest, WhoHasNoKeyIsTurnedAwayInTheShapeOfTheDialect) {
  start({.api_keys = {"secret"}});
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(refused(post("/v1/chat/completions", chat("Up")), 401)["type"], "authentication_error");
  EXPECT_EQ(refused(post("/v1/messages", chat("Up")), 401)["type"], "authentication_error");
  EXPECT_EQ(whole(post("/api/chat", chat("Up")), 401)["error"], "the API key is missing or wrong");
  EXPECT_EQ(refused(post("/v1/chat/completions", chat("Up"), {{"Authorization", "Bearer secre"}}), 401)["code"], 401);
  good(post("/v1/chat/completions", chat("Up"), {{"Authorization", "Bearer secret"}}));
  good(post("/v1/messages", chat("Up"), {{"x-api-key", "secret"}}));
}

TEST_F(ServiceTest, UnknownPathsModelsAndMethodsAreTold) {
  EXPECT_EQ(refused(get("/v1/nothing"), 404)["type"], "not_found_error");
  EXPECT_EQ(whole(get("/api/nothing"), 404)["error"], "there is no GET \"/api/nothing\"");
  refused(get("/v1/chat/completions"), 405);
  json body = chat("Up");
  body["model"] = "bytes@q99";
  EXPECT_EQ(refused(post("/v1/chat/completions", body), 404)["param"], "model");
}

TEST_F(ServiceTest, OneModelIsTheSameAsInTheList) {
  const json listed = good(get("/v1/models"))["data"][0];
  EXPECT_EQ(good(get("/v1/models/" + listed["id"].get<std::string>())), listed);
  EXPECT_EQ(refused(get("/v1/models/other"), 404)["param"], "model");
  EXPECT_EQ(refused(get("/v1/models/"), 404)["param"], "model");
}

TEST_F(ServiceTest, ClientsChangeTypesUnlessTheServerSaysNo) {
  start({.morphs = false});
  const json before = good(get("/imago/types"))["roles"];
  EXPECT_NE(refused(post("/imago/morph", {{"pattern", "ffn"}, {"type", "q4_0"}}), 501).dump().find("--no-morph"),
            std::string::npos);
  refused(post("/imago/undo", json::object()), 501);
  EXPECT_EQ(good(get("/imago/types"))["roles"], before);
}

TEST_F(ServiceTest, AFullQueueSaysWhenToComeBack) {
  ModelsOptions models = models_options();
  models.engine.parallel = 1;
  models.engine.queue = 0;
  start({}, std::move(models));
  // Requests that are accepted wait for a step, which a metamorphosis holds up.
  Engine& engine = models_->get("")->engine();
  std::promise<void> begun, done;
  auto held = std::async(std::launch::async, [&] {
    engine.change_model([&](LanguageModel&) {
      begun.set_value();
      done.get_future().wait();
    });
  });
  begun.get_future().wait();
  const Generation running = engine.submit({.prompt = bytes_of("Up")});
  const HttpReply reply = post("/v1/chat/completions", chat("Up"));
  EXPECT_EQ(refused(reply, 429)["type"], "rate_limit_error");
  EXPECT_EQ(header(reply, "Retry-After"), "1");
  const HttpReply other = post("/v1/messages", chat("Up"));
  EXPECT_EQ(refused(other, 429)["type"], "rate_limit_error");
  EXPECT_EQ(header(other, "Retry-After"), "1");
  done.set_value();
  held.get();
}

TEST_F(ServiceTest, WhileTheModelLoadsItIsUnavailable) {
  start({}, models_options(), false);
  for (const HttpReply& reply : {get("/health"), post("/v1/chat/completions", chat("Up"))}) {
    EXPECT_EQ(refused(reply, 503)["type"], "unavailable_error");
    EXPECT_EQ(header(reply, "Retry-After"), "1");
  }
  EXPECT_EQ(refused(post("/v1/messages", chat("Up")), 503)["type"], "overloaded_error");
  EXPECT_EQ(good(get("/v1/models"))["data"].size(), 0u);
}

TEST_F(ServiceTest, WhatEndsAStreamIsToldInTheShapeOfTheDialect) {
  start({.timeout = std::chrono::seconds(0)});
  EXPECT_EQ(refused(post("/v1/chat/completions", chat("Up")), 504)["type"], "timeout_error");
  EXPECT_EQ(refused(post("/v1/messages", chat("Up")), 504)["type"], "api_error");
  json body = chat("Up");
  body["stream"] = true;
  for (const char* const path : {"/v1/chat/completions", "/v1/completions", "/completion", "/v1/responses"}) {
    json other = body;
    other[path == std::string("/v1/responses") ? "input" : "prompt"] = "Up";
    const HttpReply reply = post(path, other);
    ASSERT_EQ(reply.status, 200) << reply.body;  // what was sent before the answer took too long
    EXPECT_EQ(reply.body.find("[DONE]"), std::string::npos) << path;
    EXPECT_EQ(events(reply).back()["error"]["type"], "timeout_error") << path;
  }
  const HttpReply anthropic = post("/v1/messages", body);
  EXPECT_NE(anthropic.body.find("event: error\n"), std::string::npos);
  EXPECT_EQ(events(anthropic).back()["error"]["type"], "api_error");
  const HttpReply ollama = post("/api/chat", body);
  EXPECT_TRUE(json::parse(ollama.body)["error"].is_string()) << ollama.body;
}

TEST_F(ServiceTest, BodiesThatAreNotJsonAreRefused) {
  for (const std::string body : {"", "{", "[]", "{\"a\": 1, \"a\": 2}", "{\"prompt\": \"\xff\"}"}) {
    const HttpReply reply = ask({.method = "POST", .path = "/v1/completions", .body = body});
    EXPECT_EQ(refused(reply, 400)["type"], "invalid_request_error") << body;
  }
}

}  // namespace
}  // namespace imago::server
