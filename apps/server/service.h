#pragma once

// What a server answers to a request: who may ask, and which endpoint it is for.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "http.h"
#include "imago/lm.h"
#include "models.h"

namespace imago::server {

struct ServiceOptions {
  std::vector<std::string> api_keys = {};      ///< none: everybody may ask
  std::vector<std::string> cors_origins = {};  ///< "*": any, "localhost": pages of this machine
  /// Names by which clients may call the server while it has no keys, besides those of this machine; "*": any. Pages of
  /// other sites reach it through names of their own otherwise.
  std::vector<std::string> hosts = {};
  GenerateOptions defaults = {};       ///< for requests that do not say
  std::size_t parallel = 0;            ///< as EngineOptions has it, for /props and /slots
  std::chrono::seconds timeout{3600};  ///< for an answer
  std::string slot_folder = {};        ///< where prefixes are saved; empty: nowhere
  bool slots = true, metrics = false, page = true;
  bool morphs = true;    ///< clients may change the types of a model's matrices
  bool verbose = false;  ///< answers to chats show the prompt
};

/// Thread-safe.
class Service {
 public:
  /// `models` must outlive it.
  Service(Models& models, ServiceOptions options);

  /// Answers a request. Does not throw.
  HttpReply handle(const HttpRequest& request);

  /// Cancels what is under way, as if all clients had gone.
  void cancel_all() noexcept { cancelled_.store(true, std::memory_order_relaxed); }

  Models& models() noexcept { return models_; }
  const ServiceOptions& options() const noexcept { return options_; }
  double uptime_seconds() const;
  /// How many connections are open; for the page of the server's state.
  std::function<std::size_t()> connections = [] { return std::size_t{0}; };

  /// The tokens that the last request with an id_slot has left in the cache.
  void remember_slot(std::int64_t slot, std::vector<TokenId> tokens);
  std::vector<TokenId> slot_tokens(std::int64_t slot);

 private:
  bool is_authorized(const HttpRequest& request) const;
  bool may_call(const HttpRequest& request) const;
  bool is_origin_allowed(std::string_view origin) const;
  HttpReply answer(const HttpRequest& request);

  Models& models_;
  const ServiceOptions options_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  std::atomic<bool> cancelled_ = false;
  std::mutex mutex_;
  std::map<std::int64_t, std::vector<TokenId>> slots_;
};

}  // namespace imago::server
