// Sockets: good requests over plain and encrypted connections, and clients that do not keep to the rules.

#include "server/listener.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "imago/error.h"
#include "testing/temp_dir.h"

namespace imago::server {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// A connection that sends what it likes.
class RawClient {
 public:
  explicit RawClient(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) close();
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  RawClient(RawClient&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  RawClient& operator=(RawClient&&) = delete;
  ~RawClient() { close(); }

  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  bool send(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t sent = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      text.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  /// Until `end` has been seen, or the connection ends.
  std::string read_until(std::string_view end) const {
    std::string text;
    char byte = 0;
    while (!text.ends_with(end) && ::recv(socket_, &byte, 1, 0) == 1) text += byte;
    return text;
  }
  /// All that comes until the server closes.
  std::string read_all() const {
    std::string text;
    char buffer[4096];
    for (ssize_t got = 0; (got = ::recv(socket_, buffer, sizeof buffer, 0)) > 0;) {
      text.append(buffer, static_cast<std::size_t>(got));
    }
    return text;
  }

 private:
  int socket_;
};

/// A listener that answers with what it was asked, on a thread of its own.
class ListenerTest : public ::testing::Test {
 protected:
  void start(ListenerOptions options = {}) {
    options.port = 0;
    listener_.emplace(options, [this](const HttpRequest& request) { return answer(request); });
    serving_ = std::async(std::launch::async, [this] { listener_->run(); });
  }
  void TearDown() override { stop(); }
  void stop() {
    if (!listener_) return;
    listener_->stop();
    if (serving_.valid()) serving_.get();
    listener_.reset();
  }

  virtual HttpReply answer(const HttpRequest& request) {
    ++asked_;
    if (request.path == "/stream") {
      return {.type = "text/event-stream", .stream = [](const BodyWriter& write) {
                for (int i = 0; i < 3; ++i) write("piece " + std::to_string(i) + "\n");
              }};
    }
    if (request.path == "/endless") {
      return {.type = "text/event-stream", .stream = [this, alive = request.is_alive](const BodyWriter& write) {
                while (alive() && write("more\n")) std::this_thread::sleep_for(1ms);
                ended_ = true;
              }};
    }
    if (request.path == "/wait") {
      while (request.is_alive() && !release_) std::this_thread::sleep_for(1ms);
      if (!release_) gone_ = true;
    }
    return {.body = request.method + " " + request.path + " [" + request.body + "] " + request.query};
  }

  int port() const { return listener_->port(); }
  static std::string get(const std::string& path, const std::string& more = {}) {
    return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + more + "\r\n";
  }
  /// The whole reply to one request on a connection of its own.
  std::string ask(const std::string& request) const {
    const RawClient client(port());
    EXPECT_TRUE(client.send(request));
    return client.read_all();
  }
  static bool eventually(const std::function<bool()>& holds) {
    const auto end = Clock::now() + 20s;
    while (!holds() && Clock::now() < end) std::this_thread::sleep_for(2ms);
    return holds();
  }

  std::optional<Listener> listener_;
  std::future<void> serving_;
  std::atomic<int> asked_ = 0;
  std::atomic<bool> release_ = false, ended_ = false, gone_ = false;
};

TEST_F(ListenerTest, AnswersSeveralRequestsOnOneConnection) {
  start();
  httplib::Client client("127.0.0.1", port());
  client.set_keep_alive(true);
  for (int i = 0; i < 3; ++i) {
    const auto reply = client.Post("/echo%20this?a=b%20c", "body " + std::to_string(i), "text/plain");
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200);
    EXPECT_EQ(reply->body, "POST /echo this [body " + std::to_string(i) + "] a=b%20c");
  }
  EXPECT_EQ(listener_->connections(), 1u);
  const auto empty = client.Post("/none");
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->body, "POST /none [] ");
}

TEST_F(ListenerTest, AnswersRequestsThatComeTogether) {
  start();
  const std::string replies = ask(get("/1") + get("/2") + get("/3", "Connection: close\r\n"));
  EXPECT_NE(replies.find("GET /1 []"), std::string::npos);
  EXPECT_NE(replies.find("GET /2 []"), std::string::npos);
  EXPECT_NE(replies.find("GET /3 []"), std::string::npos);
}

TEST_F(ListenerTest, StreamsInChunksAndWithoutToOldClients) {
  start();
  httplib::Client client("127.0.0.1", port());
  const auto reply = client.Get("/stream", {{"Accept-Encoding", "gzip"}});
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->body, "piece 0\npiece 1\npiece 2\n");
  EXPECT_EQ(reply->get_header_value("Transfer-Encoding"), "chunked");
  EXPECT_FALSE(reply->has_header("Content-Encoding"));  // it would hold pieces back

  const std::string old = ask("GET /stream HTTP/1.0\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(old.ends_with("\r\n\r\npiece 0\npiece 1\npiece 2\n")) << old;
}

TEST_F(ListenerTest, ReadsBodiesInChunks) {
  start();
  const std::string reply =
      ask("POST /p HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
          "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n");
  EXPECT_NE(reply.find("POST /p [hello world]"), std::string::npos) << reply;
}

TEST_F(ListenerTest, NoticesThatAClientHasGone) {
  start();
  RawClient client(port());
  client.send(get("/wait"));
  ASSERT_TRUE(eventually([&] { return asked_ == 1; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return gone_.load(); }));

  RawClient reader(port());
  reader.send(get("/endless"));
  reader.read_until("more\n");
  reader.close();
  EXPECT_TRUE(eventually([&] { return ended_.load(); }));
  EXPECT_TRUE(eventually([&] { return listener_->connections() == 0; }));
}

TEST_F(ListenerTest, RefusesLargeBodiesBeforeTheyArrive) {
  start({.body_bytes = 1000});
  const RawClient client(port());
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1073741824\r\n\r\nwhat comes first");
  const std::string reply = client.read_all();
  EXPECT_TRUE(reply.starts_with("HTTP/1.1 413")) << reply;
  EXPECT_NE(reply.find("1073741824"), std::string::npos);
  EXPECT_EQ(asked_, 0);

  const std::string piece = "400\r\n" + std::string(1024, 'x') + "\r\n";
  const std::string chunked =
      ask("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + piece + piece + "0\r\n\r\n");
  EXPECT_TRUE(chunked.starts_with("HTTP/1.1 413")) << chunked;
  EXPECT_EQ(asked_, 0);
  const std::string fits =
      ask("POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n" + std::string(1000, 'x'));
  EXPECT_TRUE(fits.starts_with("HTTP/1.1 200")) << fits;
}

TEST_F(ListenerTest, RefusesRequestsOfUnclearLength) {
  start();
  const std::string begin = "POST / HTTP/1.1\r\nHost: x\r\n";
  for (const std::string headers :
       {"Content-Length: 5\r\nContent-Length: 6\r\n", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: -1\r\n", "Content-Length: 5x\r\n", "Content-Length: 99999999999999999999\r\n",
        "Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n"}) {
    const std::string reply = ask(begin + headers + "\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n");
    const int status = std::stoi(reply.substr(9));
    EXPECT_TRUE(status == 400 || status == 413 || status == 501) << headers << reply;
    EXPECT_EQ(reply.find("smuggled"), std::string::npos) << headers << reply;
  }
  EXPECT_EQ(asked_, 0);
}

TEST_F(ListenerTest, ABodyThatNobodyReadsIsNotTheNextRequest) {
  start();
  const std::string reply = ask("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 41\r\n\r\n" + get("/smuggled"));
  EXPECT_NE(reply.find("GET / []"), std::string::npos) << reply;
  EXPECT_EQ(reply.find("smuggled"), std::string::npos) << reply;
}

TEST_F(ListenerTest, RefusesWhatIsNotARequest) {
  start();
  for (const std::string text :
       {"nonsense\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "FETCH / HTTP/1.1\r\n\r\n"}) {
    const std::string reply = ask(text);
    EXPECT_TRUE(reply.starts_with("HTTP/1.1 4")) << text << reply;
    EXPECT_NE(reply.find("\"error\""), std::string::npos) << reply;
  }
  EXPECT_TRUE(ask("GET /" + std::string(5000, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 414"));
  EXPECT_TRUE(ask("POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc")
                  .starts_with("HTTP/1.1 415"));
  EXPECT_TRUE(
      ask("POST / HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 3\r\n\r\nabc")
          .starts_with("HTTP/1.1 415"));
  EXPECT_EQ(asked_, 0);
}

TEST_F(ListenerTest, BoundsHeadersInSize) {
  start({.header_bytes = 4096});
  std::string many = "GET / HTTP/1.1\r\nHost: x\r\n";
  for (int i = 0; i < 100'000; ++i) many += "X-" + std::to_string(i) + ": y\r\n";
  const RawClient client(port());
  client.send(many);
  const std::string reply = client.read_all();
  EXPECT_TRUE(reply.starts_with("HTTP/1.1 431")) << reply.substr(0, 200);
  EXPECT_EQ(asked_, 0);
}

TEST_F(ListenerTest, BoundsHeadersAndBodiesInTime) {
  start({.header_timeout = 1s, .body_timeout = 1s});
  const auto begin = Clock::now();
  const RawClient header(port()), body(port());
  body.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nnot all");
  // Each byte comes in time, the whole does not.
  for (int i = 0; i < 15 && header.send("G"); ++i) std::this_thread::sleep_for(100ms);
  header.read_all();
  const std::string reply = body.read_all();
  EXPECT_TRUE(reply.starts_with("HTTP/1.1 408")) << reply;
  EXPECT_LT(Clock::now() - begin, 15s);
  EXPECT_EQ(asked_, 0);
}

TEST_F(ListenerTest, SlowClientsMakeRoomForOthers) {
  start({.connections = 4, .header_timeout = 60s, .idle_timeout = 60s});
  std::vector<RawClient> slow;
  for (int i = 0; i < 16; ++i) {
    slow.emplace_back(port());
    if (i % 2 == 0) slow.back().send("GET / HTTP/1.1\r\nHo");
  }
  httplib::Client client("127.0.0.1", port());
  client.set_read_timeout(50s);
  for (int i = 0; i < 3; ++i) {
    const auto reply = client.Get("/served");
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200);
  }
}

TEST_F(ListenerTest, StopWaitsForRequestsUnderWay) {
  start();
  const RawClient idle(port());
  RawClient busy(port());
  busy.send(get("/wait"));
  ASSERT_TRUE(eventually([&] { return asked_ == 1; }));
  listener_->stop();
  EXPECT_EQ(idle.read_all(), "");  // closed at once
  EXPECT_EQ(serving_.wait_for(50ms), std::future_status::timeout);
  release_ = true;
  EXPECT_NE(busy.read_all().find("GET /wait"), std::string::npos);
  EXPECT_EQ(serving_.wait_for(20s), std::future_status::ready);
}

TEST_F(ListenerTest, APortThatIsTakenIsAnError) {
  start();
  EXPECT_THROW(Listener({.port = port()}, [](const HttpRequest&) { return HttpReply{}; }), UsageError);
  EXPECT_THROW(Listener({.host = "203.0.113.1", .port = 0}, [](const HttpRequest&) { return HttpReply{}; }),
               UsageError);
}

/// A key and a certificate that it signs itself, as PEM files.
void write_certificate(const std::string& certificate, const std::string& key) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> pair(EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256"),
                                                                 EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> made(X509_new(), X509_free);
  ASN1_INTEGER_set(X509_get_serialNumber(made.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(made.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(made.get()), 3600);
  X509_set_pubkey(made.get(), pair.get());
  X509_NAME* const name = X509_get_subject_name(made.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(made.get(), name);
  X509_sign(made.get(), pair.get(), EVP_sha256());
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
  const File to(std::fopen(certificate.c_str(), "w"), std::fclose), secret(std::fopen(key.c_str(), "w"), std::fclose);
  PEM_write_X509(to.get(), made.get());
  PEM_write_PrivateKey(secret.get(), pair.get(), nullptr, nullptr, 0, nullptr, nullptr);
}

TEST_F(ListenerTest, SpeaksTls) {
  const imago::testing::TempDir folder;
  const std::string certificate = (folder.path() / "certificate.pem").string(),
                    key = (folder.path() / "key.pem").string();
  write_certificate(certificate, key);
  start({.tls_certificate = certificate, .tls_key = key, .header_timeout = 1s});
  httplib::SSLClient client("127.0.0.1", port());
  client.enable_server_certificate_verification(false);
  const auto reply = client.Post("/secret", std::string(1 << 20, 'x'), "text/plain");
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->body.size(), (1u << 20) + std::string("POST /secret [] ").size());
  const auto stream = client.Get("/stream");
  ASSERT_TRUE(stream);
  EXPECT_EQ(stream->body, "piece 0\npiece 1\npiece 2\n");
  // A client that does not speak TLS, and one that says nothing: both end, others go on.
  EXPECT_EQ(ask(get("/")).find("200"), std::string::npos);
  EXPECT_EQ(RawClient(port()).read_all(), "");
  EXPECT_TRUE(client.Get("/"));
}

TEST_F(ListenerTest, FilesOfTlsAreChecked) {
  const imago::testing::TempDir folder;
  const auto serve = [&](const std::string& certificate, const std::string& key) {
    const Listener listener({.port = 0, .tls_certificate = certificate, .tls_key = key},
                            [](const HttpRequest&) { return HttpReply{}; });
  };
  const std::string certificate = (folder.path() / "certificate.pem").string(),
                    key = (folder.path() / "key.pem").string();
  write_certificate(certificate, key);
  const std::string other = (folder.path() / "other.pem").string(),
                    other_key = (folder.path() / "other_key.pem").string();
  write_certificate(other, other_key);
  EXPECT_NO_THROW(serve(certificate, key));
  EXPECT_THROW(serve((folder.path() / "missing.pem").string(), key), IoError);
  EXPECT_THROW(serve(key, key), IoError);
  EXPECT_THROW(serve(certificate, other_key), IoError);
}

}  // namespace
}  // namespace imago::server
