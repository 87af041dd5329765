#pragma once

// Sockets: accepts connections, reads requests within limits of size and time, sends replies.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "http.h"

namespace imago::server {

struct ListenerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                                 ///< 0: a free one
  std::string tls_certificate = {}, tls_key = {};  ///< PEM files; empty: no TLS
  std::size_t connections = 512;  ///< open at a time; more wait in the kernel's queue, idle ones are closed for them
  std::size_t body_bytes = std::size_t{64} << 20;
  std::size_t header_bytes = std::size_t{32} << 10;
  std::chrono::seconds header_timeout{10};  ///< for request line and headers, from their first byte
  std::chrono::seconds body_timeout{60};    ///< for the whole body
  std::chrono::seconds idle_timeout{30};    ///< between two requests of a connection
  std::chrono::seconds write_timeout{30};   ///< for a client to take the next bytes
};

class Listener {
 public:
  /// Binds. Throws UsageError for a host or port that cannot be bound, IoError for files of TLS.
  Listener(const ListenerOptions& options, HttpHandler handler);
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener();

  int port() const noexcept;
  /// Serves until `stop`, on threads of its own, one per connection. Returns when all connections have ended, which
  /// after `stop` are at most those with a request under way.
  void run();
  /// No new connections, no new requests on open ones. May be called from any thread, and more than once.
  void stop() noexcept;
  std::size_t connections() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace imago::server
