#include "listener.h"

// httplib parses requests and frames replies. Its own sockets have a time limit for each read only, and none for the
// number of headers, so a few slow clients could hold all threads; the streams here have limits for the whole.
#include <fmt/format.h>
#include <httplib.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "api.h"
#include "imago/error.h"

namespace imago::server {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLongestTarget = 4096;        // httplib matches paths by std::regex, which recurses
constexpr int kBacklog = 1024;                      // connections that wait in the kernel
constexpr std::chrono::milliseconds kLinger{1000};  // for a refused client to read why
constexpr std::size_t kLingerBytes = std::size_t{4} << 20;

struct FreeTls {
  void operator()(SSL* tls) const noexcept { SSL_free(tls); }
  void operator()(SSL_CTX* context) const noexcept { SSL_CTX_free(context); }
};
using TlsContext = std::unique_ptr<SSL_CTX, FreeTls>;

/// What OpenSSL complained of last.
std::string tls_problem() {
  std::array<char, 256> text{};
  ERR_error_string_n(ERR_get_error(), text.data(), text.size());
  ERR_clear_error();
  return text.data();
}

TlsContext make_tls(const ListenerOptions& options) {
  if (options.tls_certificate.empty()) return nullptr;
  TlsContext context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) throw UnsupportedError("TLS cannot be started: " + tls_problem());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (SSL_CTX_use_certificate_chain_file(context.get(), options.tls_certificate.c_str()) != 1) {
    throw IoError(options.tls_certificate, "is not a certificate: " + tls_problem());
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), options.tls_key.c_str(), SSL_FILETYPE_PEM) != 1) {
    throw IoError(options.tls_key, "is not a private key of the certificate: " + tls_problem());
  }
  return context;
}

/// What a connection is doing. All but `answering` may be cut off when others need its place.
enum class Phase : std::uint8_t { idle, reading_header, reading_body, answering };

}  // namespace

// ---- the connections that are open

namespace {

class Connection;

/// The connections that are open, and room for more.
class Connections {
 public:
  explicit Connections(std::size_t most) : most_(most) {}

  /// Waits for a place, and takes it. The longest idle connection goes for it, or one that is slow to ask.
  void enter();
  void leave();
  void add(Connection& connection);
  void remove(Connection& connection);
  void set_phase(Connection& connection, Phase phase);
  /// Ends those between two requests; the others end after the one they are at.
  void stop();
  bool stopping() const noexcept { return stopping_.load(std::memory_order_relaxed); }
  void wait_until_empty();
  std::size_t count() const;

 private:
  void cut_off_one();

  const std::size_t most_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Connection*> open_;
  std::size_t places_ = 0;  // taken
  std::atomic<bool> stopping_ = false;
};

// ---- one connection

/// A socket with limits of time and size for each part of a request. Used by one thread, but for its phase.
class Connection final : public httplib::Stream {
 public:
  Connection(const ListenerOptions& options, Connections& all, SSL_CTX* tls, int socket)
      : options_(options), all_(all), socket_(socket), tls_(tls != nullptr ? SSL_new(tls) : nullptr), uses_tls_(tls) {
    const int on = 1;
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    all_.add(*this);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() override {
    say_goodbye();
    all_.remove(*this);
    ::close(socket_);
  }

  /// False if the client does not speak TLS, or too slowly.
  bool shake_hands();
  /// Waits for the first byte of a request. False if there is none in time, or the listener stops.
  bool await_request();
  /// The headers are read: a body may follow. `bytes`: its length, if the headers say it.
  void begin_body(bool has_body) {
    has_unread_body_ = has_body;
    deadline_ = Clock::now() + options_.body_timeout;
    all_.set_phase(*this, Phase::reading_body);
  }
  /// Nothing more is read of this request.
  void begin_answer() {
    deadline_ = Clock::time_point::max();
    all_.set_phase(*this, Phase::answering);
  }
  void end_body() noexcept { has_unread_body_ = false; }
  /// Whether another request may follow on this connection.
  bool may_go_on() const noexcept { return !has_unread_body_ && !is_broken_ && !ends_; }
  /// The reply ends with the connection.
  void end_after_reply() noexcept { ends_ = true; }
  bool has_too_long_header() const noexcept { return too_long_header_; }
  bool is_late() const noexcept { return late_; }
  /// Whether the client still waits.
  bool is_alive() const noexcept;
  bool is_from_loopback() const;
  void cut_off() noexcept { ::shutdown(socket_, SHUT_RDWR); }

  // httplib's side

  bool is_readable() const override { return true; }
  bool is_writable() const override { return !is_broken_; }
  ssize_t read(char* data, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

  // of Connections, under its lock
  Phase phase = Phase::idle;
  Clock::time_point since = Clock::now();
  std::list<Connection*>::iterator place;

 private:
  /// Calls `attempt` until it does not ask to wait for the socket. Its result, or -1 at the deadline.
  template <class Attempt>
  ssize_t retry(Clock::time_point deadline, Attempt attempt);
  bool wait_for(short events, Clock::time_point deadline);
  ssize_t receive(char* data, std::size_t size);
  void say_goodbye() noexcept;

  const ListenerOptions& options_;
  Connections& all_;
  const int socket_;
  std::unique_ptr<SSL, FreeTls> tls_;
  const bool uses_tls_;
  std::array<char, 4096> buffer_{};
  std::size_t begin_ = 0, end_ = 0;  // what was received and not read
  Clock::time_point deadline_ = Clock::time_point::max();
  std::size_t header_left_ = 0;
  bool reads_header_ = false, too_long_header_ = false, late_ = false;
  bool has_unread_body_ = false, is_broken_ = false, ends_ = false;
};

/// The connection whose request this thread handles; httplib does not hand it to handlers.
thread_local Connection* current_connection = nullptr;

/// What a step on a socket wants before it can go on.
constexpr ssize_t kWantsRead = -2, kWantsWrite = -3;

ssize_t tls_result(SSL* tls, int result) {
  if (result > 0) return result;
  switch (SSL_get_error(tls, result)) {
    case SSL_ERROR_WANT_READ: return kWantsRead;
    case SSL_ERROR_WANT_WRITE: return kWantsWrite;
    case SSL_ERROR_ZERO_RETURN: return 0;
    default: ERR_clear_error(); return -1;
  }
}

ssize_t socket_result(ssize_t result, ssize_t wants) {
  if (result >= 0) return result;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? wants : -1;
}

bool Connection::wait_for(short events, Clock::time_point deadline) {
  for (;;) {
    int wait = -1;
    if (deadline != Clock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left <= 0) return false;
      wait = static_cast<int>(std::min<std::int64_t>(left, 1 << 30));
    }
    pollfd entry{.fd = socket_, .events = events, .revents = 0};
    const int ready = ::poll(&entry, 1, wait);
    if (ready > 0) return true;  // an error shows when the socket is used
    if (ready < 0 && errno != EINTR) return false;
  }
}

template <class Attempt>
ssize_t Connection::retry(Clock::time_point deadline, Attempt attempt) {
  for (;;) {
    const ssize_t result = attempt();
    if (result >= -1) return result;
    if (wait_for(result == kWantsRead ? POLLIN : POLLOUT, deadline)) continue;
    late_ = true;
    return -1;
  }
}

bool Connection::shake_hands() {
  if (!uses_tls_) return true;
  if (tls_ == nullptr) return false;
  // The socket must not block: a step of TLS may need to wait for either direction.
  ::fcntl(socket_, F_SETFL, ::fcntl(socket_, F_GETFL) | O_NONBLOCK);
  SSL_set_fd(tls_.get(), socket_);
  const auto deadline = Clock::now() + options_.header_timeout;
  return retry(deadline, [&] { return tls_result(tls_.get(), SSL_accept(tls_.get())); }) > 0;
}

ssize_t Connection::receive(char* data, std::size_t size) {
  return retry(deadline_, [&] {
    if (tls_)
      return tls_result(tls_.get(), SSL_read(tls_.get(), data, static_cast<int>(std::min(size, buffer_.size()))));
    return socket_result(::recv(socket_, data, size, MSG_DONTWAIT), kWantsRead);
  });
}

bool Connection::await_request() {
  all_.set_phase(*this, Phase::idle);
  if (all_.stopping()) return false;
  if (begin_ == end_) {
    deadline_ = Clock::now() + options_.idle_timeout;
    begin_ = end_ = 0;
    const ssize_t got = receive(buffer_.data(), buffer_.size());
    if (got <= 0) return false;
    end_ = static_cast<std::size_t>(got);
  }
  header_left_ = options_.header_bytes;
  reads_header_ = true;
  late_ = false;
  deadline_ = Clock::now() + options_.header_timeout;
  all_.set_phase(*this, Phase::reading_header);
  return true;
}

ssize_t Connection::read(char* data, size_t size) {
  if (current_connection != this) return -1;
  if (reads_header_) {
    if (header_left_ == 0) {
      too_long_header_ = true;
      return -1;
    }
    size = std::min(size, header_left_);
  }
  if (begin_ == end_) {
    if (size >= buffer_.size()) {  // bodies go straight to their place
      const ssize_t got = receive(data, size);
      if (got <= 0) is_broken_ = true;
      return got;
    }
    const ssize_t got = receive(buffer_.data(), buffer_.size());
    if (got <= 0) {
      is_broken_ = got == 0 || !late_;
      ends_ = true;
      return got;
    }
    begin_ = 0;
    end_ = static_cast<std::size_t>(got);
  }
  const std::size_t count = std::min(size, end_ - begin_);
  std::memcpy(data, buffer_.data() + begin_, count);
  begin_ += count;
  if (reads_header_) header_left_ -= count;
  return static_cast<ssize_t>(count);
}

ssize_t Connection::write(const char* data, size_t size) {
  if (is_broken_) return -1;
  const ssize_t sent = retry(Clock::now() + options_.write_timeout, [&] {
    if (tls_)
      return tls_result(tls_.get(),
                        SSL_write(tls_.get(), data, static_cast<int>(std::min<std::size_t>(size, 1 << 20))));
    return socket_result(::send(socket_, data, size, MSG_DONTWAIT | MSG_NOSIGNAL), kWantsWrite);
  });
  if (sent <= 0) is_broken_ = true;
  return sent;
}

bool Connection::is_alive() const noexcept {
  if (is_broken_) return false;
  pollfd entry{.fd = socket_, .events = POLLRDHUP, .revents = 0};
  return ::poll(&entry, 1, 0) <= 0;
}

/// Closes so that the client can read the reply: a socket closed with bytes that nobody has read resets the connection.
void Connection::say_goodbye() noexcept {
  if (is_broken_) return;
  if (tls_) SSL_shutdown(tls_.get());
  ::shutdown(socket_, SHUT_WR);
  if (!has_unread_body_ && !too_long_header_) return;
  const auto deadline = Clock::now() + kLinger;
  for (std::size_t dropped = 0; dropped < kLingerBytes && wait_for(POLLIN, deadline);) {
    const ssize_t got = ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (got <= 0) return;
    dropped += static_cast<std::size_t>(got);
  }
}

/// Address and port of one end of a socket.
void describe(const sockaddr_storage& address, socklen_t length, std::string& ip, int& port) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> service{};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host.data(), host.size(), service.data(),
                    service.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return;
  }
  ip = host.data();
  port = std::atoi(service.data());
}

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getpeername(socket_, reinterpret_cast<sockaddr*>(&address), &length) == 0) describe(address, length, ip, port);
}

void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length) == 0) describe(address, length, ip, port);
}

bool Connection::is_from_loopback() const {
  std::string ip;
  int port = 0;
  get_remote_ip_and_port(ip, port);
  return ip == "::1" || ip.starts_with("127.") || ip.starts_with("::ffff:127.");
}

// ---- room for connections

void Connections::enter() {
  // A client may take this long before it counts as slow.
  constexpr std::chrono::milliseconds kCheck{20};
  std::unique_lock lock(mutex_);
  while (places_ >= most_ && !stopping()) {
    cut_off_one();
    changed_.wait_for(lock, kCheck);
  }
  ++places_;
}

/// REQUIRES: the lock is held.
void Connections::cut_off_one() {
  const auto now = Clock::now();
  const auto patience = [](Phase phase) -> Clock::duration {
    switch (phase) {
      case Phase::idle: return std::chrono::milliseconds(100);  // its first request may be on the way
      case Phase::reading_header: return std::chrono::seconds(1);
      case Phase::reading_body: return std::chrono::seconds(10);
      case Phase::answering: break;
    }
    return Clock::duration::max();
  };
  Connection* longest = nullptr;
  for (Connection* const one : open_) {
    if (one->phase == Phase::answering || now - one->since < patience(one->phase)) continue;
    if (longest == nullptr || one->since < longest->since) longest = one;
  }
  if (longest == nullptr) return;
  longest->cut_off();
  longest->since = now;  // another one next time
}

void Connections::leave() {
  const std::scoped_lock lock(mutex_);
  --places_;
  changed_.notify_all();  // under the lock: whoever waits until all have left may destroy this then
}

void Connections::add(Connection& connection) {
  const std::scoped_lock lock(mutex_);
  connection.place = open_.insert(open_.end(), &connection);
}

void Connections::remove(Connection& connection) {
  const std::scoped_lock lock(mutex_);
  open_.erase(connection.place);
}

void Connections::set_phase(Connection& connection, Phase phase) {
  const std::scoped_lock lock(mutex_);
  connection.phase = phase;
  connection.since = Clock::now();
}

void Connections::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_.store(true, std::memory_order_relaxed);
    for (Connection* const one : open_) {
      if (one->phase == Phase::idle) one->cut_off();
    }
  }
  changed_.notify_all();
}

void Connections::wait_until_empty() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return places_ == 0; });
}

std::size_t Connections::count() const {
  const std::scoped_lock lock(mutex_);
  return open_.size();
}

// ---- httplib

/// A thread for each connection.
class Threads final : public httplib::TaskQueue {
 public:
  explicit Threads(Connections& connections) : connections_(connections) {}

  void enqueue(std::function<void()> serve) override {
    for (;;) {
      connections_.enter();
      try {
        std::thread([this, serve] {
          serve();
          connections_.leave();
        }).detach();
        return;
      } catch (const std::system_error&) {  // no more threads now
        connections_.leave();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    }
  }
  void shutdown() override { connections_.wait_until_empty(); }

 private:
  Connections& connections_;
};

std::optional<std::uint64_t> parse_length(const std::string& text) {
  if (text.empty() || text.size() > 18 || text.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::stoull(text);
}

bool is_chunked(const httplib::Request& request) {
  std::string coding = request.get_header_value("Transfer-Encoding");
  std::ranges::transform(coding, coding.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return coding == "chunked";
}

/// Throws ApiError for a request that is not to be read further.
void check(const httplib::Request& request, const ListenerOptions& options) {
  const auto refuse = [](int status, const char* problem) {
    throw ApiError(status, status == 413 ? "request_too_large" : "invalid_request_error", problem);
  };
  if (request.target.size() > kLongestTarget) refuse(414, "the path is too long");
  const std::size_t lengths = request.get_header_value_count("Content-Length");
  const bool has_coding = request.has_header("Transfer-Encoding");
  // Two lengths, or a length and chunks: a proxy before us may have understood something else.
  if (lengths > 1 || (lengths == 1 && has_coding) || request.get_header_value_count("Transfer-Encoding") > 1) {
    refuse(400, "the length of the body is given twice");
  }
  if (has_coding && !is_chunked(request)) refuse(501, "'Transfer-Encoding' can be chunked only");
  if (lengths == 1) {
    const auto length = parse_length(request.get_header_value("Content-Length"));
    if (!length) refuse(400, "'Content-Length' is not a number");
    if (*length > options.body_bytes) {
      throw ApiError(413, "request_too_large",
                     fmt::format("the body has {} bytes; {} are allowed", *length, options.body_bytes));
    }
  }
  const std::string coding = request.get_header_value("Content-Encoding");
  if (!coding.empty() && coding != "identity") refuse(415, "'Content-Encoding' is not supported");
  if (request.is_multipart_form_data()) refuse(415, "multipart bodies are not supported");
}

HttpRequest to_request(const httplib::Request& from, const Connection& connection) {
  HttpRequest request{.method = from.method, .path = from.path};
  const std::size_t query = from.target.find('?');
  if (query != std::string::npos) request.query = from.target.substr(query + 1);
  for (const auto& [name, value] : from.headers) request.headers.emplace_back(name, value);
  request.from_loopback = connection.is_from_loopback();
  request.is_alive = [&connection] { return connection.is_alive(); };
  return request;
}

void send(HttpReply reply, const httplib::Request& request, Connection& connection, httplib::Response& response) {
  response.status = reply.status;
  for (auto& [name, value] : reply.headers) response.set_header(name, value);
  if (!reply.stream) {
    response.set_content(reply.body, reply.type);
    return;
  }
  const auto tell = [stream = std::move(reply.stream)](std::size_t, httplib::DataSink& sink) {
    bool going = true;
    stream([&](std::string_view piece) {
      going = going && (piece.empty() || sink.write(piece.data(), piece.size()));
      return going;
    });
    if (going) sink.done();
    return going;
  };
  if (request.version == "HTTP/1.0") {  // knows no chunks
    connection.end_after_reply();
    response.set_content_provider(reply.type, tell);
  } else {
    response.set_chunked_content_provider(reply.type, tell);
  }
}

class HttpServer final : public httplib::Server {
 public:
  HttpServer(const ListenerOptions& options, HttpHandler handler)
      : options_(options), handler_(std::move(handler)), tls_(make_tls(options)), connections_(options.connections) {
    new_task_queue = [this] { return new Threads(connections_); };
    // Two servers on one port would each get some of the requests.
    set_socket_options([](socket_t socket) {
      const int on = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    });
    set_keep_alive_timeout(options.idle_timeout.count());
    set_keep_alive_max_count(1'000'000);
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      return prepare(request, response) ? HandlerResponse::Unhandled : HandlerResponse::Handled;
    });
    const auto without_body = [this](const httplib::Request& request, httplib::Response& response) {
      answer(request, {}, response);
    };
    const auto with_body = [this](const httplib::Request& request, httplib::Response& response,
                                  const httplib::ContentReader& read) { read_and_answer(request, response, read); };
    Get(".*", without_body);
    Options(".*", without_body);
    Post(".*", with_body);
    Put(".*", with_body);
    Patch(".*", with_body);
    Delete(".*", with_body);
    set_error_handler([](const httplib::Request&, httplib::Response& response) { explain(response); });
  }

  int bind() {
    std::string host = options_.host;
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    errno = 0;
    const int port = options_.port == 0                  ? bind_to_any_port(host)
                     : bind_to_port(host, options_.port) ? options_.port
                                                         : -1;
    if (port <= 0) {
      const std::string why = errno != 0 ? std::generic_category().message(errno) : "there is no such address";
      throw UsageError(fmt::format("cannot listen on {}:{}: {}", options_.host, options_.port, why));
    }
    ::listen(svr_sock_, kBacklog);  // httplib's own is 5: a burst of clients would wait a second each
    return port;
  }
  void stop_listening() noexcept {
    if (stopped_.exchange(true)) return;
    ::shutdown(svr_sock_, SHUT_RDWR);
    connections_.stop();
  }
  std::size_t connections() const { return connections_.count(); }

 private:
  bool process_and_close_socket(socket_t socket) override {
    Connection connection(options_, connections_, tls_.get(), socket);
    current_connection = &connection;
    try {
      if (connection.shake_hands()) {
        while (connection.await_request()) {
          bool closed = false;
          const auto begin = [&](httplib::Request& request) {
            request.headers.erase("Accept-Encoding");  // a compressed stream would come in lumps
            connection.begin_body(is_chunked(request) ||
                                  parse_length(request.get_header_value("Content-Length")) != 0u);
            if (!request.has_header("Content-Length") && !is_chunked(request)) connection.end_body();
          };
          if (!process_request(connection, connections_.stopping(), closed, begin)) break;
          if (closed || !connection.may_go_on()) break;
        }
      }
    } catch (...) {
      // Out of memory, most likely: this connection ends, the others go on.
    }
    current_connection = nullptr;
    return true;
  }

  /// False if the request is refused before its body is read.
  bool prepare(const httplib::Request& request, httplib::Response& response) {
    try {
      check(request, options_);
      return true;
    } catch (const ApiError& error) {
      refuse(error, response);
      return false;
    }
  }
  void read_and_answer(const httplib::Request& request, httplib::Response& response,
                       const httplib::ContentReader& read) {
    std::string body;
    if (is_chunked(request) || request.has_header("Content-Length")) {
      bool too_large = false;
      const bool whole = read([&](const char* data, std::size_t size) {
        too_large = size > options_.body_bytes - body.size();
        if (too_large) return false;
        body.append(data, size);
        return true;
      });
      if (!whole) {
        const bool late = current_connection->is_late();
        refuse(too_large ? ApiError(413, "request_too_large",
                                    fmt::format("the body has more than {} bytes", options_.body_bytes))
               : late    ? ApiError(408, "timeout_error", "the body took too long to arrive")
                         : ApiError(400, "invalid_request_error", "the body is not complete"),
               response);
        return;
      }
    }
    current_connection->end_body();
    answer(request, std::move(body), response);
  }
  void answer(const httplib::Request& request, std::string body, httplib::Response& response) {
    Connection& connection = *current_connection;
    connection.begin_answer();
    HttpRequest converted = to_request(request, connection);
    converted.body = std::move(body);
    send(handler_(converted), request, connection, response);
  }
  /// For requests that were not read to their end: what follows would be taken for the next one.
  static void refuse(const ApiError& error, httplib::Response& response) {
    const HttpReply reply = error_reply(std::make_exception_ptr(error), Dialect::openai);
    response.status = reply.status;
    response.set_content(reply.body, reply.type);
    response.set_header("Connection", "close");
    current_connection->end_after_reply();
  }
  /// Errors that httplib found itself get a body.
  static void explain(httplib::Response& response) {
    if (!response.body.empty() || current_connection == nullptr) return;
    ApiError error(response.status, "invalid_request_error", "this is not an HTTP request that can be answered");
    if (current_connection->has_too_long_header()) {
      error = ApiError(431, "invalid_request_error", "the headers are too long");
    } else if (current_connection->is_late()) {
      error = ApiError(408, "timeout_error", "the headers took too long to arrive");
    } else if (response.status >= 500) {
      error = ApiError(response.status, "server_error", "the server failed");
    }
    refuse(error, response);
  }

  const ListenerOptions& options_;
  const HttpHandler handler_;
  const TlsContext tls_;
  Connections connections_;
  std::atomic<bool> stopped_ = false;
};

}  // namespace

struct Listener::State {
  State(ListenerOptions given, HttpHandler handler) : options(std::move(given)), server(options, std::move(handler)) {}
  ListenerOptions options;
  HttpServer server;
  int port = 0;
};

Listener::Listener(const ListenerOptions& options, HttpHandler handler)
    : state_(std::make_unique<State>(options, std::move(handler))) {
  state_->port = state_->server.bind();
}

Listener::~Listener() { stop(); }

int Listener::port() const noexcept { return state_->port; }
void Listener::run() { state_->server.listen_after_bind(); }
void Listener::stop() noexcept { state_->server.stop_listening(); }
std::size_t Listener::connections() const noexcept { return state_->server.connections(); }

}  // namespace imago::server
