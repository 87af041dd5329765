#pragma once

// Requests and replies as the endpoints see them: no sockets, so that tests and fuzz targets can call them.

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace imago::server {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;      ///< "GET", "POST", …
  std::string path;        ///< without the query, percent-decoded
  std::string query = {};  ///< as it was sent, without the question mark
  HttpHeaders headers = {};
  std::string body = {};
  bool from_loopback = true;  ///< the peer is on this machine
  /// Whether the client still waits; asked between tokens.
  std::function<bool()> is_alive = [] { return true; };

  /// The value of a header, whose name is compared without case; empty if it is not there.
  std::string_view header(std::string_view name) const noexcept;
  /// The value of a field of the query, as it was sent; empty if it is not there.
  std::string_view query_field(std::string_view name) const noexcept;
};

/// Writes the pieces of a streamed body. Returns false once the client is gone: nothing more can be written.
using BodyWriter = std::function<bool(std::string_view piece)>;

struct HttpReply {
  int status = 200;
  std::string type = "application/json";
  std::string body = {};
  HttpHeaders headers = {};
  /// Writes the body instead of `body`, on the thread of the connection, after status and headers were sent. It must
  /// not throw.
  std::function<void(const BodyWriter& write)> stream = nullptr;
};

/// Answers a request; does not throw. Called from many threads.
using HttpHandler = std::function<HttpReply(const HttpRequest&)>;

}  // namespace imago::server
