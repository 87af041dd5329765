// Many clients at once over sockets, of which some leave early and some are hostile: every answer is whole, and nothing
// is left behind.

#include <gtest/gtest.h>
#include <httplib.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "server/listener.h"
#include "server/models.h"
#include "server/service.h"
#include "testing/byte_model.h"

namespace imago::server {
namespace {

using namespace std::chrono_literals;
using imago::testing::ByteModel;
using nlohmann::json;

class LoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto missing = ByteModel::missing()) GTEST_SKIP() << *missing;
    files_.emplace();
    ModelsOptions models;
    models.path = files_->path();
    models.name = "bytes";
    // Room for a few of 64 requests at a time, so that the others wait.
    models.engine = {.context = 256, .parallel = 32, .queue = 1000, .cache_bytes = std::uint64_t{1} << 18};
    models.load = [](const std::string& path, std::optional<Format> type) {
      return LanguageModel::load(path, {.type = type, .fast = false});
    };
    models_.emplace(std::move(models));
    models_->load_first();
    ServiceOptions options;
    options.defaults.sampler.temperature = 0;
    options.defaults.ignore_end = true;
    service_.emplace(*models_, std::move(options));
    listener_.emplace(ListenerOptions{.port = 0},
                      [this](const HttpRequest& request) { return service_->handle(request); });
    serving_ = std::async(std::launch::async, [this] { listener_->run(); });
  }
  void TearDown() override {
    if (!listener_) return;
    listener_->stop();
    serving_.get();
  }

  /// The prompt of a request, of which many begin alike.
  static std::string prompt(std::size_t i) {
    return ByteModel::text(20 + 50 * (i % 3)) + "and then " + std::to_string(i % 17);
  }
  static std::size_t tokens(std::size_t i) { return 1 + 5 * (i % 17); }
  static std::string body(std::size_t i, bool stream) {
    return json{{"prompt", prompt(i)}, {"max_tokens", tokens(i)}, {"stream", stream}}.dump();
  }

  /// The text of an answer, whole or in events; empty if it is not complete.
  static std::string text_of(const std::string& reply, bool stream) {
    if (!stream) return json::parse(reply)["choices"][0]["text"];
    if (!reply.ends_with("data: [DONE]\n\n")) return {};
    std::string text;
    for (std::size_t at = 0; (at = reply.find("data: {", at)) != std::string::npos;) {
      const std::size_t end = reply.find("\n\n", at);
      const json event = json::parse(reply.substr(at + 6, end - at - 6));
      if (!event["choices"].empty()) text += event["choices"][0]["text"].get<std::string>();
      at = end;
    }
    return text;
  }

  void ask(httplib::Client& client, std::size_t i) {
    const bool stream = i % 2 == 0;
    const auto reply = client.Post("/v1/completions", body(i, stream), "application/json");
    ASSERT_TRUE(reply) << i;
    ASSERT_EQ(reply->status, 200) << reply->body;
    const std::string text = text_of(reply->body, stream);
    const std::scoped_lock lock(mutex_);
    const auto [known, is_new] = texts_.emplace(std::pair(prompt(i), tokens(i)), text);
    EXPECT_EQ(known->second, text) << "the answer to a prompt depends on who else is served";
    ++whole_;
  }
  /// Leaves after the first piece of a long answer.
  static void ask_and_leave(int port, std::size_t i) {
    httplib::Client client("127.0.0.1", port);
    httplib::Request request;
    request.method = "POST";
    request.path = "/v1/completions";
    request.body = json{{"prompt", prompt(i)}, {"max_tokens", 200}, {"stream", true}}.dump();
    request.content_receiver = [](const char*, std::size_t, std::uint64_t, std::uint64_t) { return false; };
    client.send(request);
  }
  static void be_hostile(int port, std::size_t i) {
    httplib::Client client("127.0.0.1", port);
    const std::string deep(100'000, '[');
    const std::vector<std::string> bodies = {"{",
                                             deep,
                                             "\xff\xfe",
                                             R"({"prompt": 5})",
                                             R"({"prompt": "x", "max_tokens": "many"})",
                                             R"({"prompt": [99999999]})",
                                             json{{"prompt", std::string(5000, 'x')}}.dump()};
    const auto reply = client.Post("/v1/completions", bodies[i % bodies.size()], "application/json");
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 400) << reply->body;
  }

  /// Numbers 0 … count - 1, by 64 clients.
  void serve(std::size_t count) {
    std::atomic<std::size_t> next = 0;
    std::vector<std::thread> clients;
    for (int c = 0; c < 64; ++c) {
      clients.emplace_back([&] {
        httplib::Client client("127.0.0.1", listener_->port());
        client.set_keep_alive(true);
        client.set_read_timeout(200s);
        for (std::size_t i = 0; (i = next++) < count;) {
          if (i % 10 == 9) {
            be_hostile(listener_->port(), i / 10);
          } else if (i % 3 == 0) {
            ask_and_leave(listener_->port(), i);
          } else {
            ask(client, i);
          }
        }
      });
    }
    for (std::thread& client : clients) client.join();
  }
  EngineState state() { return models_->get("")->engine().state(); }

  std::optional<ByteModel> files_;
  std::optional<Models> models_;
  std::optional<Service> service_;
  std::optional<Listener> listener_;
  std::future<void> serving_;
  std::mutex mutex_;
  std::map<std::pair<std::string, std::size_t>, std::string> texts_;
  std::size_t whole_ = 0;
};

TEST_F(LoadTest, EveryAnswerIsWholeAndNothingIsLeft) {
  constexpr std::size_t kRequests = 1000;
  serve(kRequests);
  std::size_t expected = 0;
  for (std::size_t i = 0; i < kRequests; ++i) expected += i % 10 != 9 && i % 3 != 0 ? 1 : 0;
  EXPECT_EQ(whole_, expected);
  const auto end = std::chrono::steady_clock::now() + 30s;
  while ((state().pages_used != 0 || listener_->connections() != 0) && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(5ms);
  }
  const EngineState after = state();
  EXPECT_TRUE(after.running.empty());
  EXPECT_EQ(after.waiting, 0u);
  EXPECT_EQ(after.pages_used, 0u);
  EXPECT_EQ(listener_->connections(), 0u);
  EXPECT_GT(after.cancelled, 0u);
  EXPECT_GT(after.cached_tokens, 0u);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(LoadTest, MemoryDoesNotGrow) {
  const auto used = [] {
    ::malloc_trim(0);
    return ::mallinfo2().uordblks;
  };
  serve(400);
  const std::size_t before = used();
  serve(1200);
  // Not to the byte: threads that end give back what they have a little later.
  EXPECT_LT(used(), before + (std::size_t{1} << 20));
}
#endif

}  // namespace
}  // namespace imago::server
