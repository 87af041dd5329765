// The endpoints of other servers: OpenAI's embeddings and Responses, Anthropic's messages, Ollama's.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>

#include "server/service_fixture.h"
#include "testing/cross_encoder.h"

namespace imago::server {
namespace {

using Types = std::vector<std::string>;

// ---- embeddings

class EmbeddingsTest : public ServiceTest {
 protected:
  std::vector<float> of_engine(const std::string& text) { return models_->get("")->engine().embed(bytes_of(text)); }
  /// The same in length 1.
  std::vector<double> unit(const std::string& text) {
    const std::vector<float> vector = of_engine(text);
    double squares = 0;
    for (const float value : vector) squares += static_cast<double>(value) * static_cast<double>(value);
    std::vector<double> scaled;
    for (const float value : vector) scaled.push_back(static_cast<double>(value) / std::sqrt(squares));
    return scaled;
  }
  static void expect_near(const std::vector<double>& got, const std::vector<double>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-6) << i;
  }
  static std::vector<double> decoded(const std::string& base64) {
    constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::vector<std::uint8_t> bytes;
    std::uint32_t bits = 0;
    int count = 0;
    for (const char digit : base64.substr(0, base64.find('='))) {
      bits = bits << 6 | static_cast<std::uint32_t>(kDigits.find(digit));
      if ((count += 6) >= 8) bytes.push_back(static_cast<std::uint8_t>(bits >> (count -= 8)));
    }
    std::vector<double> values;
    for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4) {
      std::array<std::uint8_t, 4> one{};
      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(i), 4, one.begin());
      values.push_back(static_cast<double>(std::bit_cast<float>(one)));
    }
    return values;
  }
};

TEST_F(EmbeddingsTest, AreTheEnginesInLengthOne) {
  const json reply = good(post("/v1/embeddings", {{"input", {"Up betimes", "ships"}}}));
  ASSERT_EQ(reply["data"].size(), 2u);
  EXPECT_EQ(reply["data"][1]["index"], 1);
  expect_near(reply["data"][0]["embedding"], unit("Up betimes"));
  expect_near(reply["data"][1]["embedding"], unit("ships"));
  EXPECT_EQ(reply["usage"]["prompt_tokens"], 15);
  EXPECT_EQ(reply["usage"]["total_tokens"], 15);
}

TEST_F(EmbeddingsTest, TakeIdsAndGiveBase64) {
  json body = {{"input", {115, 104, 105, 112, 115}}, {"encoding_format", "base64"}};
  const json ids = good(post("/v1/embeddings", body));
  ASSERT_EQ(ids["data"].size(), 1u);
  expect_near(decoded(ids["data"][0]["embedding"]), unit("ships"));
  body["input"] = {{115, 104, 105, 112, 115}, {85, 112}};
  const json lists = good(post("/v1/embeddings", body));
  ASSERT_EQ(lists["data"].size(), 2u);
  expect_near(decoded(lists["data"][1]["embedding"]), unit("Up"));
}

TEST_F(EmbeddingsTest, RefuseWhatTheyCannotDo) {
  const auto with = [&](json more) {
    json body = {{"input", "ships"}};
    body.update(more);
    return body;
  };
  const auto width = static_cast<int>(of_engine("ships").size());
  good(post("/v1/embeddings", with({{"dimensions", width}})));
  const std::uint64_t steps = models_->get("")->engine().state().steps;
  EXPECT_EQ(refused(post("/v1/embeddings", with({{"dimensions", width / 2}})), 501)["param"], "dimensions");
  EXPECT_EQ(models_->get("")->engine().state().steps, steps) << "no text is computed for nothing";
  EXPECT_EQ(refused(post("/v1/embeddings", with({{"encoding_format", "int8"}})), 400)["param"], "encoding_format");
  EXPECT_EQ(refused(post("/v1/embeddings", json::object()), 400)["param"], "input");
  EXPECT_EQ(refused(post("/v1/embeddings", {{"input", json::array()}}), 400)["param"], "input");
  EXPECT_EQ(refused(post("/v1/embeddings", {{"input", {256}}}), 400)["param"], "input[0]");
  EXPECT_EQ(refused(post("/v1/embeddings", {{"input", ByteModel::text(300)}}), 400)["type"],
            "exceed_context_size_error");
}

TEST_F(EmbeddingsTest, OfLlamaServerAndOllama) {
  const json native = good(post("/embedding", {{"content", "ships"}}));
  expect_near(native[0]["embedding"][0], unit("ships"));
  const std::vector<float> raw = of_engine("ships");
  const std::vector<double> exact(raw.begin(), raw.end());
  expect_near(good(post("/embeddings", {{"input", "ships"}, {"embd_normalize", -1}}))[0]["embedding"][0], exact);
  refused(post("/embedding", {{"content", "ships"}, {"embd_normalize", 1}}), 501);

  const json several = good(post("/api/embed", {{"model", "bytes:latest"}, {"input", {"ships", "Up"}}}));
  EXPECT_EQ(several["model"], "bytes:latest");
  expect_near(several["embeddings"][0], unit("ships"));
  expect_near(several["embeddings"][1], unit("Up"));
  EXPECT_EQ(several["prompt_eval_count"], 7);
  EXPECT_GT(several["total_duration"], 0);
  expect_near(good(post("/api/embeddings", {{"prompt", "ships"}}))["embedding"], exact);
}

TEST_F(EmbeddingsTest, OllamaCutsTextsThatAreTooLong) {
  const std::string text = ByteModel::text(300);
  expect_near(good(post("/api/embed", {{"input", text}}))["embeddings"][0], unit(text.substr(0, 255)));
  EXPECT_EQ(whole(post("/api/embed", {{"input", text}, {"truncate", false}}), 400)["error"].type(),
            json::value_t::string);
}

TEST_F(EmbeddingsTest, EndWhenTheClientHasGone) {
  HttpRequest request{.method = "POST", .path = "/v1/embeddings", .body = json{{"input", {"a", "b"}}}.dump()};
  request.is_alive = [] { return false; };
  const std::uint64_t steps = models_->get("")->engine().state().steps;
  EXPECT_EQ(ask(std::move(request)).status, 499);
  EXPECT_EQ(models_->get("")->engine().state().steps, steps);
}

TEST_F(EmbeddingsTest, OnlyCrossEncodersRerank) {
  const json error = refused(post("/v1/rerank", {{"query", "ships"}, {"documents", {"a"}}}), 501);
  EXPECT_NE(error["message"].get<std::string>().find("reranking needs a cross-encoder"), std::string::npos);
}

// ---- reranking

class RerankTest : public ServiceTest {
 protected:
  void SetUp() override {
    if (const auto missing = testing::CrossEncoder::missing()) GTEST_SKIP() << *missing;
    encoder_.emplace();
    ModelsOptions models;
    models.path = encoder_->path();
    models.name = "scores";
    models.engine = {.parallel = 2};
    models.load = [](const std::string& path, std::optional<Format>) {
      return LanguageModel::load(path, {.fast = false});
    };
    start({}, std::move(models));
  }
  float score_of(const std::string& query, const std::string& document) {
    ServedModel& model = *models_->get("");
    const TextPair pair = encode_pair(model.tokenizer(), query, document);
    return model.engine().score({&pair, 1}).front();
  }
  std::optional<testing::CrossEncoder> encoder_;
};

TEST_F(RerankTest, DocumentsComeInTheOrderOfTheirScores) {
  const std::vector<std::string> documents = {"the ships.", "a ship", "word"};
  for (const char* const path : {"/rerank", "/v1/rerank", "/reranking", "/v1/reranking"}) {
    const json reply = good(post(path, {{"query", "ship?"}, {"documents", documents}}));
    EXPECT_EQ(reply["model"], "scores");
    EXPECT_EQ(reply["object"], "list");
    EXPECT_GT(reply["usage"]["prompt_tokens"], 0);
    ASSERT_EQ(reply["results"].size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      const json& result = reply["results"][i];
      EXPECT_NEAR(result["relevance_score"], score_of("ship?", documents.at(result["index"])), 1e-6);
      EXPECT_LE(result["relevance_score"], reply["results"][i == 0 ? 0 : i - 1]["relevance_score"]);
    }
  }
  const json best = good(post("/rerank", {{"query", "ship?"}, {"documents", documents}, {"top_n", 1}}));
  EXPECT_EQ(best["results"].size(), 1u);
  const json texts = good(post("/rerank", {{"query", "ship?"}, {"texts", documents}, {"return_text", true}}));
  ASSERT_EQ(texts.size(), 3u);
  for (const json& one : texts) {
    EXPECT_EQ(one["text"], documents.at(one["index"]));
    EXPECT_NEAR(one["score"], score_of("ship?", one["text"]), 1e-6);
  }
}

TEST_F(RerankTest, RefusesWhatIsMissing) {
  EXPECT_EQ(refused(post("/rerank", {{"documents", {"a"}}}), 400)["param"], "query");
  EXPECT_EQ(refused(post("/rerank", {{"query", "a"}}), 400)["param"], "documents");
  EXPECT_EQ(refused(post("/rerank", {{"query", "a"}, {"documents", json::array()}}), 400)["param"], "documents");
  EXPECT_EQ(refused(post("/rerank", {{"query", "a"}, {"documents", {1}}}), 400)["param"], "documents[0]");
  EXPECT_EQ(refused(post("/v1/completions", {{"prompt", "a"}}), 501)["type"], "not_supported_error");
}

// ---- OpenAI's Responses

using ResponsesTest = ServiceTest;

TEST_F(ResponsesTest, AnswerAText) {
  const json body = {
      {"model", "bytes"}, {"input", "Up betimes"}, {"instructions", "Be brief"}, {"max_output_tokens", 8}};
  const std::string prompt = chat_ml({"system", "Be brief", "user", "Up betimes"});
  for (const char* const path : {"/v1/responses", "/responses"}) {
    const json reply = good(post(path, body));
    EXPECT_EQ(reply["object"], "response");
    EXPECT_EQ(reply["status"], "incomplete");
    EXPECT_EQ(reply["incomplete_details"]["reason"], "max_output_tokens");
    EXPECT_EQ(reply["instructions"], "Be brief");
    EXPECT_EQ(reply["max_output_tokens"], 8);
    ASSERT_EQ(reply["output"].size(), 1u);
    EXPECT_EQ(reply["output"][0]["role"], "assistant");
    EXPECT_EQ(reply["output"][0]["content"][0]["type"], "output_text");
    EXPECT_EQ(reply["output"][0]["content"][0]["text"], answer(prompt, 8));
    EXPECT_EQ(reply["usage"]["input_tokens"], prompt.size());
    EXPECT_EQ(reply["usage"]["output_tokens"], 8);
    EXPECT_EQ(reply["usage"]["total_tokens"], prompt.size() + 8);
  }
  // The second was asked what the first was, but for the last token, which must run to say what follows.
  EXPECT_EQ(good(post("/v1/responses", body))["usage"]["input_tokens_details"]["cached_tokens"], prompt.size() - 1);
}

TEST_F(ResponsesTest, AnswerItems) {
  const json body = {
      {"input",
       {{{"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "a"}}}}},
        {{"type", "reasoning"}, {"summary", json::array()}},
        {{"type", "message"}, {"role", "assistant"}, {"content", {{{"type", "output_text"}, {"text", "b"}}}}},
        {{"role", "developer"}, {"content", "c"}},
        {{"role", "user"}, {"content", "d"}}}},
      {"max_output_tokens", 4},
      {"store", false},
      {"tools", json::array()},
      {"previous_response_id", nullptr}};
  const json reply = good(post("/v1/responses", body));
  const std::string prompt = chat_ml({"user", "a", "assistant", "b", "system", "c", "user", "d"});
  EXPECT_EQ(reply["output"][0]["content"][0]["text"], answer(prompt, 4));
}

TEST_F(ResponsesTest, StreamTypedEvents) {
  const HttpReply reply = post("/v1/responses", {{"input", "Up betimes"}, {"max_output_tokens", 3}, {"stream", true}});
  const std::vector<json> told = events(reply);
  EXPECT_EQ(reply.body.find("[DONE]"), std::string::npos);
  Types kinds = types(told);
  std::string text;
  for (std::size_t i = 0; i < told.size(); ++i) {
    EXPECT_EQ(told[i]["sequence_number"], i);
    if (kinds[i] == "response.output_text.delta") {
      EXPECT_EQ(told[i]["item_id"], told[2]["item"]["id"]);
      text += told[i]["delta"];
    }
  }
  EXPECT_EQ(text, answer(chat_ml({"user", "Up betimes"}), 3));
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  EXPECT_EQ(kinds, (Types{"response.created", "response.in_progress", "response.output_item.added",
                          "response.content_part.added", "response.output_text.delta", "response.output_text.done",
                          "response.content_part.done", "response.output_item.done", "response.incomplete"}));
  const json& last = told.back()["response"];
  EXPECT_EQ(last["output"][0]["content"][0]["text"], text);
  EXPECT_EQ(last["output"][0]["id"], told[2]["item"]["id"]);
  EXPECT_EQ(last["id"], told[0]["response"]["id"]);
  EXPECT_EQ(last["usage"]["output_tokens"], 3);
}

TEST_F(ResponsesTest, ThoughtsAreAnItemOfTheirOwn) {
  start_thinking();
  json body = {{"input", "Up"}, {"max_output_tokens", 14}};
  body.update(saying(kThought));
  const json whole = good(post("/v1/responses", body));
  ASSERT_EQ(whole["output"].size(), 2u);
  EXPECT_EQ(whole["output"][0]["type"], "reasoning");
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], "Wow");
  EXPECT_EQ(whole["output"][1]["content"][0]["text"], "yes");
  EXPECT_EQ(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 3);
  body["stream"] = true;
  std::map<std::string, std::string> texts;
  for (const json& event : events(post("/v1/responses", body))) {
    const std::string type = event["type"];
    if (type.ends_with(".delta")) {
      EXPECT_EQ(event["output_index"], type == "response.reasoning_text.delta" ? 0 : 1);
      texts[type] += event["delta"];
    }
    EXPECT_TRUE(type != "response.incomplete" || event["response"]["output"].size() == 2);
  }
  EXPECT_EQ(texts["response.reasoning_text.delta"], "Wow");
  EXPECT_EQ(texts["response.output_text.delta"], "yes");
}

TEST_F(ResponsesTest, RefuseWhatNeedsMemoryOrTools) {
  const std::vector<std::pair<std::string, json>> unsupported = {{"previous_response_id", "resp_1"},
                                                                 {"background", true},
                                                                 {"tools", {{{"type", "web_search"}}}},
                                                                 {"text", {{"format", {{"type", "json_object"}}}}},
                                                                 {"input", {{{"type", "function_call_output"}}}}};
  for (const auto& [field, value] : unsupported) {
    json body = {{"input", "Up"}};
    body[field] = value;
    const json error = refused(post("/v1/responses", body), 501);
    EXPECT_TRUE(error["param"].get<std::string>().starts_with(field)) << error;
  }
  EXPECT_EQ(refused(post("/v1/responses", json::object()), 400)["param"], "input");
  EXPECT_EQ(refused(post("/v1/responses", {{"input", 5}}), 400)["param"], "input");
}

// ---- Anthropic

using AnthropicTest = ServiceTest;

TEST_F(AnthropicTest, AnswersAMessage) {
  json body = chat("Up betimes");
  body["system"] = {{{"type", "text"}, {"text", "Be brief"}, {"cache_control", {{"type", "ephemeral"}}}}};
  const std::string prompt = chat_ml({"system", "Be brief", "user", "Up betimes"});
  const json reply = good(post("/v1/messages", body, {{"anthropic-version", "2023-06-01"}}));
  EXPECT_EQ(reply["type"], "message");
  EXPECT_EQ(reply["role"], "assistant");
  ASSERT_EQ(reply["content"].size(), 1u);
  EXPECT_EQ(reply["content"][0]["type"], "text");
  EXPECT_EQ(reply["content"][0]["text"], answer(prompt, 8));
  EXPECT_EQ(reply["stop_reason"], "max_tokens");
  EXPECT_TRUE(reply["stop_sequence"].is_null());
  EXPECT_EQ(reply["usage"]["input_tokens"], prompt.size());
  EXPECT_EQ(reply["usage"]["cache_read_input_tokens"], 0);
  EXPECT_EQ(reply["usage"]["output_tokens"], 8);
  const json again = good(post("/v1/messages", body));
  EXPECT_EQ(again["usage"]["input_tokens"], 1);
  EXPECT_EQ(again["usage"]["cache_read_input_tokens"], prompt.size() - 1);
  body.erase("max_tokens");
  EXPECT_EQ(good(post("/v1/messages/count_tokens", body)), (json{{"input_tokens", prompt.size()}}));
}

TEST_F(AnthropicTest, JoinsTurnsOfOneRoleAndContinuesTheLastOfTheAssistant) {
  json body = {{"max_tokens", 4},
               {"messages",
                {{{"role", "user"}, {"content", "a"}},
                 {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "b"}}}}},
                 {{"role", "assistant"},
                  {"content", {{{"type", "thinking"}, {"thinking", "hm"}}, {{"type", "text"}, {"text", "c"}}}}}}}};
  EXPECT_EQ(good(post("/v1/messages", body))["content"][0]["text"], answer(chat_ml({"user", "a\n\nb"}) + "c", 4));
}

TEST_F(AnthropicTest, SaysWhatStoppedIt) {
  const std::string whole = answer(chat_ml({"user", "Up betimes"}), 20);
  const std::string stop = late_character(whole);
  json body = chat("Up betimes");
  body["max_tokens"] = 20;
  body["stop_sequences"] = {"never said", stop};
  const json reply = good(post("/v1/messages", body));
  EXPECT_EQ(reply["stop_reason"], "stop_sequence");
  EXPECT_EQ(reply["stop_sequence"], stop);
  EXPECT_EQ(reply["content"][0]["text"], whole.substr(0, whole.find(stop)));
}

TEST_F(AnthropicTest, StreamsNamedEvents) {
  json body = chat("Up betimes");
  body["stream"] = true;
  body["max_tokens"] = 3;
  const HttpReply reply = post("/v1/messages", body);
  EXPECT_EQ(reply.body.find("[DONE]"), std::string::npos);
  EXPECT_TRUE(reply.body.starts_with("event: message_start\n"));
  const std::vector<json> told = events(reply);
  Types kinds = types(told);
  EXPECT_NE(std::ranges::find(kinds, "ping"), kinds.end());
  std::erase(kinds, "ping");
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  EXPECT_EQ(kinds, (Types{"message_start", "content_block_start", "content_block_delta", "content_block_stop",
                          "message_delta", "message_stop"}));
  std::string text;
  for (const json& event : told) {
    if (event["type"] == "content_block_delta") text += event["delta"]["text"];
    if (event["type"] != "message_delta") continue;
    EXPECT_EQ(event["delta"]["stop_reason"], "max_tokens");
    EXPECT_EQ(event["usage"]["output_tokens"], 3);
  }
  EXPECT_EQ(text, answer(chat_ml({"user", "Up betimes"}), 3));
  EXPECT_EQ(told[0]["message"]["usage"]["input_tokens"], chat_ml({"user", "Up betimes"}).size());
}

TEST_F(AnthropicTest, ThoughtsAreABlock) {
  start_thinking();
  json body = chat("Up");
  body.update(saying(kThought));
  body["max_tokens"] = 14;
  body["thinking"] = {{"type", "enabled"}, {"budget_tokens", 1024}};
  const json whole = good(post("/v1/messages", body));
  ASSERT_EQ(whole["content"].size(), 2u);
  EXPECT_EQ(whole["content"][0]["thinking"], "Wow");
  EXPECT_EQ(whole["content"][1]["text"], "yes");
  body["stream"] = true;
  std::map<int, std::string> texts;
  Types blocks;
  for (const json& event : events(post("/v1/messages", body))) {
    if (event["type"] == "content_block_start") blocks.push_back(event["content_block"]["type"]);
    if (event["type"] != "content_block_delta") continue;
    const json& delta = event["delta"];
    texts[event["index"]] += delta[delta["type"] == "thinking_delta" ? "thinking" : "text"].get<std::string>();
  }
  EXPECT_EQ(blocks, (Types{"thinking", "text"}));
  EXPECT_EQ(texts[0], "Wow");
  EXPECT_EQ(texts[1], "yes");
}

TEST_F(AnthropicTest, RefusesInItsShape) {
  json body = chat("Up");
  body.erase("max_tokens");
  const HttpReply reply = post("/v1/messages", body);
  EXPECT_EQ(json::parse(reply.body)["type"], "error");
  const json error = refused(reply, 400);
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_NE(error["message"].get<std::string>().find("max_tokens"), std::string::npos);
  body = chat("Up");
  body["tools"] = {{{"name", "weather"}}};
  refused(post("/v1/messages", body), 501);
  body["tools"] = json::array();
  good(post("/v1/messages", body));
  body["messages"][0]["content"] = {{{"type", "tool_result"}}};
  refused(post("/v1/messages", body), 501);
  refused(post("/v1/messages", chat(ByteModel::text(300))), 400);
}

// ---- how much to think

TEST_F(ServiceTest, TemplatesAreToldHowMuchToThinkInEveryDialect) {
  ModelsOptions models = models_options();
  models.chat_template = "{{ enable_thinking }} {{ reasoning_effort }}:";
  start({}, std::move(models));
  const auto says = [&](const char* path, const json& more) {
    json body = chat("Up");
    body["input"] = "Up";
    body["options"] = {{"num_predict", 8}};
    body["max_output_tokens"] = 8;
    body["stream"] = false;
    body.update(more);
    return good(post(path, body));
  };
  const auto text = [](const json& reply) -> std::string {
    if (reply.contains("choices")) return reply["choices"][0]["message"]["content"];
    if (reply.contains("output")) return reply["output"][0]["content"][0]["text"];
    return reply.contains("content") ? reply["content"][0]["text"] : reply["message"]["content"];
  };
  const std::string low = answer("True low:", 8), none = answer("False none:", 8), on = answer("True :", 8),
                    off = answer("False :", 8);
  EXPECT_NE(low, none);
  EXPECT_EQ(text(says("/v1/chat/completions", {{"reasoning_effort", "low"}})), low);
  EXPECT_EQ(text(says("/v1/responses", {{"reasoning", {{"effort", "none"}}}})), none);
  EXPECT_EQ(text(says("/v1/messages", {{"thinking", {{"type", "enabled"}, {"budget_tokens", 9}}}})), on);
  EXPECT_EQ(text(says("/v1/messages", {{"thinking", {{"type", "disabled"}}}})), off);
  EXPECT_EQ(text(says("/api/chat", {{"think", "low"}})), low);
  EXPECT_EQ(text(says("/api/chat", {{"think", false}})), off);
}

// ---- Ollama

class OllamaTest : public ServiceTest {
 protected:
  static json chat(const std::string& text) {
    return {{"model", "bytes:latest"},
            {"messages", {{{"role", "user"}, {"content", text}}}},
            {"options", {{"num_predict", 8}, {"num_ctx", 4096}}}};
  }
  static std::vector<json> lines(const HttpReply& reply) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.type, "application/x-ndjson");
    std::vector<json> found;
    for (std::size_t at = 0, end = 0; (end = reply.body.find('\n', at)) != std::string::npos;) {
      found.push_back(json::parse(reply.body.substr(at, end - at)));
      at = end + 1;
    }
    return found;
  }
};

TEST_F(OllamaTest, StreamsAChatInLinesUnlessItIsToldNotTo) {
  const std::vector<json> told = lines(post("/api/chat", chat("Up betimes")));
  const std::string prompt = chat_ml({"user", "Up betimes"}), expected = answer(prompt, 8);
  std::string text;
  for (const json& line : told) {
    EXPECT_EQ(line["model"], "bytes:latest");
    EXPECT_EQ(line["message"]["role"], "assistant");
    EXPECT_EQ(line["done"], &line == &told.back());
    text += line["message"]["content"];
  }
  EXPECT_EQ(text, expected);
  EXPECT_EQ(told.back()["done_reason"], "length");
  EXPECT_EQ(told.back()["eval_count"], 8);
  EXPECT_EQ(told.back()["prompt_eval_count"], prompt.size());
  EXPECT_GT(told.back()["total_duration"], 0);
  EXPECT_GE(told.back()["total_duration"], told.back()["eval_duration"]);

  json body = chat("Up betimes");
  body["stream"] = false;
  const json reply = good(post("/api/chat", body));
  EXPECT_EQ(reply["message"]["content"], expected);
  EXPECT_EQ(reply["done"], true);
}

TEST_F(OllamaTest, GeneratesWithAndWithoutTheTemplate) {
  json body = {{"prompt", "Up"}, {"system", "s"}, {"stream", false}, {"options", {{"num_predict", 4}}}};
  EXPECT_EQ(good(post("/api/generate", body))["response"], answer(chat_ml({"system", "s", "user", "Up"}), 4));
  body["raw"] = true;
  const json raw = good(post("/api/generate", body));
  EXPECT_EQ(raw["response"], answer("Up", 4));
  body["stream"] = true;
  std::string text;
  for (const json& line : lines(post("/api/generate", body))) text += line["response"];
  EXPECT_EQ(text, raw["response"]);
}

TEST_F(OllamaTest, OptionsMeanWhatTheyMeanElsewhere) {
  const std::string whole = answer("Up", 20), stop = late_character(whole);
  const json body = {
      {"prompt", "Up"},
      {"raw", true},
      {"stream", false},
      {"options", {{"num_predict", 20}, {"stop", {stop}}, {"temperature", 0}, {"top_k", 5}, {"seed", 1}}}};
  const json reply = good(post("/api/generate", body));
  EXPECT_EQ(reply["response"], whole.substr(0, whole.find(stop)));
  EXPECT_EQ(reply["done_reason"], "stop");
  json wrong = body;
  wrong["options"]["temperature"] = "hot";
  EXPECT_NE(json::parse(post("/api/generate", wrong).body)["error"].get<std::string>().find("temperature"),
            std::string::npos);
}

TEST_F(OllamaTest, ThoughtsAreAFieldOfTheirOwn) {
  start_thinking();
  json body = chat("Up");
  body["options"] = saying(kThought);
  body["options"]["num_predict"] = 14;
  body["think"] = true;
  std::string thinking, content;
  for (const json& line : lines(post("/api/chat", body))) {
    thinking += line["message"].value("thinking", "");
    content += line["message"]["content"];
  }
  EXPECT_EQ(thinking, "Wow");
  EXPECT_EQ(content, "yes");
}

TEST_F(OllamaTest, WithoutWordsTheModelIsLoaded) {
  for (const char* const path : {"/api/chat", "/api/generate"}) {
    const std::vector<json> told = lines(post(path, {{"model", "bytes"}, {"keep_alive", 300}}));
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0]["done"], true);
    EXPECT_EQ(told[0]["done_reason"], "load");
  }
}

TEST_F(OllamaTest, TellsOfItsModels) {
  const json tags = good(get("/api/tags"));
  ASSERT_EQ(tags["models"].size(), 1u);
  EXPECT_EQ(tags["models"][0]["name"], "bytes:latest");
  EXPECT_EQ(tags["models"][0]["details"]["family"], "llama");
  EXPECT_EQ(tags["models"][0]["size"], models_->get("")->model().bytes());
  EXPECT_EQ(good(get("/api/ps"))["models"][0]["context_length"], 256);
  const json shown = good(post("/api/show", {{"model", "bytes"}}));
  EXPECT_EQ(shown["model_info"]["llama.context_length"], 256);
  EXPECT_EQ(shown["model_info"]["general.parameter_count"], models_->get("")->model().parameters());
  EXPECT_FALSE(good(get("/api/version"))["version"].get<std::string>().empty());
}

TEST_F(OllamaTest, RefusesInItsShape) {
  json body = chat("Up");
  body["tools"] = {{{"type", "function"}}};
  EXPECT_TRUE(whole(post("/api/chat", body), 501)["error"].is_string());
  body["tools"] = json::array();
  body["format"] = "";
  lines(post("/api/chat", body));
  body["format"] = "json";
  EXPECT_TRUE(whole(post("/api/chat", body), 501)["error"].is_string());
  body = chat("Up");
  body["messages"][0]["images"] = {"aGk="};
  EXPECT_TRUE(whole(post("/api/chat", body), 501)["error"].is_string());
  EXPECT_TRUE(whole(post("/api/chat", chat(ByteModel::text(300))), 400)["error"].is_string());
  EXPECT_TRUE(whole(post("/api/chat", {{"messages", 5}}), 400)["error"].is_string());
}

}  // namespace
}  // namespace imago::server
