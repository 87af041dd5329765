// imago serve: the program around the server, with a model of random weights that `imago synth` makes.

#include <httplib.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <thread>

#include "imago.h"
#include "testing/temp_dir.h"

namespace imago::testing {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

/// A server on a free port of this machine, from when it answers.
class Server {
 public:
  explicit Server(const Words& words) : process_(command(words)) {
    const auto end = std::chrono::steady_clock::now() + 60s;
    constexpr std::string_view kListening = "listening on http://127.0.0.1:";
    while (std::chrono::steady_clock::now() < end && process_.is_running() && !is_ready()) {
      std::this_thread::sleep_for(5ms);
      const std::string said = process_.err();
      const std::size_t at = said.find(kListening);
      if (port_ == 0 && at != std::string::npos && said.find('\n', at) != std::string::npos) {
        port_ = std::stoi(said.substr(at + kListening.size()));
      }
    }
    EXPECT_TRUE(is_ready()) << process_.err();
  }

  int port() const { return port_; }
  Process& process() { return process_; }
  httplib::Client client() const {
    httplib::Client made("127.0.0.1", port_);
    made.set_read_timeout(60s);
    return made;
  }
  /// A body, of a reply with that status.
  Json get(const std::string& path, int status = 200) const { return body_of(client().Get(path), status); }
  Json post(const std::string& path, const Json& body, int status = 200, const httplib::Headers& headers = {}) const {
    return body_of(client().Post(path, headers, body.dump(), "application/json"), status);
  }

 private:
  static Words command(Words words) {
    words.insert(words.begin(), {IMAGO_PROGRAM, "serve", "--port", "0", "-t", "1", "--temp", "0", "--ignore-eos"});
    return words;
  }
  static Json body_of(const httplib::Result& reply, int status) {
    EXPECT_TRUE(reply) << httplib::to_string(reply.error());
    if (!reply) return {};
    EXPECT_EQ(reply->status, status) << reply->body;
    return Json::parse(reply->body, nullptr, false);
  }
  bool is_ready() const {
    if (port_ == 0) return false;
    const auto reply = client().Get("/health");
    return reply && reply->status == 200;
  }

  Process process_;
  int port_ = 0;
};

class Serve : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempDir;
    const ProcessResult made =
        imago_run({"synth", model(), "--type", "f32", "--width", "64", "--blocks", "1", "--feed-forward", "64",
                   "--heads", "2", "--kv-heads", "2", "--vocabulary", "512", "--ctx", "128", "-q"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    for (const char* const name : {"models/one.gguf", "models/two.gguf"}) {
      std::filesystem::create_directories(folder_->path() / "models");
      std::filesystem::copy_file(model(), file(name));
    }
    folder_->write("models/notes.txt", "not a model");
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::string file(const std::string& name) { return (folder_->path() / name).string(); }
  static std::string model() { return file("tiny.gguf"); }
  static Json text(int tokens) { return {{"prompt", "the"}, {"max_tokens", tokens}}; }
  static bool takes_connections(int port) {
    httplib::Client other("127.0.0.1", port);
    other.set_connection_timeout(1s);
    return static_cast<bool>(other.Get("/health"));
  }
  static bool eventually(const std::function<bool()>& holds) {
    const auto end = std::chrono::steady_clock::now() + 20s;
    while (!holds() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(2ms);
    return holds();
  }
  /// Asks for a long stream; `at_first` is called when its first piece is here. Returns all that came.
  static std::string stream(const Server& server, int tokens, const std::function<void()>& at_first) {
    httplib::Client client = server.client();
    httplib::Request request;
    request.method = "POST";
    request.path = "/v1/completions";
    Json body = text(tokens);
    body["stream"] = true;
    request.body = body.dump();
    std::string told;
    request.content_receiver = [&](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
      const bool is_first = told.empty();
      told.append(data, size);
      if (is_first) at_first();
      return true;
    };
    client.send(request);
    return told;
  }
  static TempDir* folder_;
};
TempDir* Serve::folder_ = nullptr;

TEST_F(Serve, SaysWhereItListensAndAnswers) {
  Server server({model()});
  EXPECT_EQ(server.get("/health"), (Json{{"status", "ok"}}));
  EXPECT_EQ(server.get("/v1/models")["data"][0]["id"], "tiny");
  EXPECT_EQ(server.post("/v1/completions", text(5))["usage"]["completion_tokens"], 5);
  const auto said = [&] { return server.process().err(); };
  EXPECT_TRUE(eventually([&] { return said().find("imago: tiny is ready: float32") != std::string::npos; })) << said();
}

TEST_F(Serve, EndsWithoutAnErrorAtSignals) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Server server({model(), "-q"});
    server.process().send(signal);
    const ProcessResult ended = server.process().wait();
    EXPECT_EQ(ended.exit_code, 0);
    EXPECT_EQ(ended.err, "listening on http://127.0.0.1:" + std::to_string(server.port()) + "\n");
  }
}

TEST_F(Serve, AtSigtermRequestsUnderWayEndAndNoNewOnesCome) {
  constexpr int kTokens = 2500;  // about a second
  Server server({model(), "-c", "8192"});
  const std::string told = stream(server, kTokens, [&] {
    server.process().send(SIGTERM);
    EXPECT_TRUE(eventually([&] { return !takes_connections(server.port()); }));
  });
  EXPECT_TRUE(told.ends_with("data: [DONE]\n\n"));
  EXPECT_NE(told.find("\"finish_reason\":\"length\""), std::string::npos);
  EXPECT_EQ(server.process().wait().exit_code, 0);
}

TEST_F(Serve, AfterTheStopTimeoutRequestsAreCut) {
  Server server({model(), "-c", "65536", "--stop-timeout", "0"});
  const auto start = std::chrono::steady_clock::now();
  const std::string told = stream(server, 60000, [&] { server.process().send(SIGTERM); });
  EXPECT_FALSE(told.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(server.process().wait().exit_code, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
}

TEST_F(Serve, KeysComeFromAFile) {
  folder_->write("keys", "first\r\n\nsecond");
  Server server({model(), "--api-key-file", file("keys"), "--api-key", "third"});
  server.post("/v1/completions", text(1), 401);
  for (const std::string key : {"first", "second", "third"}) {
    server.post("/v1/completions", text(1), 200, {{"Authorization", "Bearer " + key}});
  }
  for (const std::string key : {"", "firs", "fourth"}) {
    server.post("/v1/completions", text(1), 401, {{"Authorization", "Bearer " + key}});
  }
  folder_->write("empty", "\n");
  expect_error(imago_run({"serve", model(), "--port", "0", "--api-key-file", file("empty")}), 2, "has no keys");
  expect_error(imago_run({"serve", model(), "--port", "0", "--api-key-file", file("none")}), 1, "cannot open");
}

TEST_F(Serve, OtherMachinesNeedAKey) {
  expect_error(imago_run({"serve", model(), "--port", "0", "--host", "0.0.0.0"}), 2, "--no-auth");
}

TEST_F(Serve, LoadsModelsOfAFolderWhenTheyAreAskedFor) {
  Server server({"--model-dir", file("models"), "--models-max", "1"});
  const auto loaded = [&] {
    std::map<std::string, bool> found;
    const Json list = server.get("/v1/models");
    for (const Json& one : list["data"]) found[one["id"]] = one["meta"]["loaded"];
    return found;
  };
  using Loaded = std::map<std::string, bool>;
  EXPECT_EQ(loaded(), (Loaded{{"one", false}, {"two", false}}));
  const auto ask = [&](const std::string& name, int status) {
    Json body = text(3);
    body["model"] = name;
    return server.post("/v1/completions", body, status);
  };
  EXPECT_EQ(ask("two", 200)["model"], "two");
  EXPECT_EQ(loaded(), (Loaded{{"one", false}, {"two", true}}));
  EXPECT_EQ(ask("one", 200)["model"], "one");  // there is a place for one
  EXPECT_EQ(loaded(), (Loaded{{"one", true}, {"two", false}}));
  EXPECT_EQ(ask("three", 404)["error"]["param"], "model");
  EXPECT_EQ(ask("../models/one.gguf", 404)["error"]["param"], "model");
  EXPECT_EQ(server.post("/v1/completions", text(3), 400)["error"]["param"], "model");
}

TEST_F(Serve, AModelOfAFolderTakesATypeWithItsName) {
  Server server({model(), "--model-dir", file("models")});
  EXPECT_EQ(server.post("/v1/completions", text(3))["model"], "tiny");
  Json body = text(3);
  body["model"] = "one@q8_0";
  EXPECT_EQ(server.post("/v1/completions", body)["model"], "one@q8_0");
  std::map<std::string, std::string> types;
  const Json list = server.get("/v1/models");
  for (const Json& one : list["data"]) types[one["id"]] = one["meta"].value("type", "");
  EXPECT_EQ(types["tiny"], "float32");
  EXPECT_EQ(types["one@q8_0"], "q8_0");
}

TEST_F(Serve, WrongOptionsAreToldBeforeItListens) {
  expect_error(imago_run({"serve", file("none.gguf"), "--port", "0", "--tls-cert", model()}), 2, "--tls-key");
  expect_error(imago_run({"serve", model(), "--port", "0", "--slot-save-path", file("none")}), 2, "is not a folder");
  expect_help("serve");
}

}  // namespace
}  // namespace imago::testing
