#include "service.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <exception>
#include <utility>

#include "api.h"
#include "endpoints.h"
#include "page.h"

namespace imago::server {

namespace {

char lower(char letter) { return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter; }

bool same_text(std::string_view a, std::string_view b) { return std::ranges::equal(a, b, {}, lower, lower); }

/// Whether two texts are equal, in a time that tells nothing about where they differ.
bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char expected = secret.empty() ? '\0' : secret[i % secret.size()];
    difference |= static_cast<unsigned>(static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(expected));
  }
  return difference == 0;
}

/// "localhost" of "localhost:8080", "[::1]" of "[::1]:8080".
std::string_view without_port(std::string_view host) {
  const std::size_t colon = host.rfind(':');
  const std::size_t bracket = host.rfind(']');
  if (colon == std::string_view::npos || (bracket != std::string_view::npos && colon < bracket)) return host;
  return host.substr(0, colon);
}

bool is_this_machine(std::string_view host) {
  if (same_text(host, "localhost") || host == "[::1]") return true;
  // Only addresses: "127.evil.com" is a name.
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos;
}

/// "localhost:8080" of "http://localhost:8080".
std::string_view host_of_origin(std::string_view origin) {
  const std::size_t scheme = origin.find("://");
  return scheme == std::string_view::npos ? std::string_view() : origin.substr(scheme + 3);
}

/// "a@b c" of "a%40b+c"; a percent sign without two hexadecimal digits stays.
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && text.size() - i > 2 && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      decoded += static_cast<char>(byte);
      i += 2;
    } else {
      decoded += text[i] == '+' ? ' ' : text[i];
    }
  }
  return decoded;
}

using Endpoint = HttpReply (*)(Call&);

struct Route {
  std::string_view method, path;
  Endpoint endpoint;
  Dialect dialect = Dialect::openai;
  bool is_public = false;  ///< without a key
};

constexpr Route kRoutes[] = {
    {"GET", "/health", health, Dialect::openai, true},
    {"GET", "/v1/health", health, Dialect::openai, true},
    {"GET", "/v1/models", list_models},
    {"GET", "/models", list_models},
    {"POST", "/v1/chat/completions", chat_completions},
    {"POST", "/chat/completions", chat_completions},
    {"POST", "/v1/chat/completions/input_tokens", count_chat_tokens},
    {"POST", "/chat/completions/input_tokens", count_chat_tokens},
    {"POST", "/v1/completions", completions},
    {"POST", "/v1/embeddings", embeddings},
    {"POST", "/v1/responses", responses},
    {"POST", "/responses", responses},
    {"POST", "/v1/messages", messages, Dialect::anthropic},
    {"POST", "/v1/messages/count_tokens", count_message_tokens, Dialect::anthropic},
    {"POST", "/api/chat", ollama_chat, Dialect::ollama},
    {"POST", "/api/generate", ollama_generate, Dialect::ollama},
    {"POST", "/api/embed", ollama_embed, Dialect::ollama},
    {"POST", "/api/embeddings", ollama_embeddings, Dialect::ollama},
    {"GET", "/api/tags", ollama_tags, Dialect::ollama},
    {"POST", "/api/show", ollama_show, Dialect::ollama},
    {"GET", "/api/ps", ollama_running, Dialect::ollama},
    {"GET", "/api/version", ollama_version, Dialect::ollama},
    {"GET", "/props", props},
    {"GET", "/metrics", metrics},
    {"GET", "/slots", slots},
    {"POST", "/tokenize", tokenize},
    {"POST", "/detokenize", detokenize},
    {"POST", "/apply-template", apply_template},
    {"POST", "/completion", native_completion},
    {"POST", "/completions", native_completion},
    {"POST", "/embedding", native_embeddings},
    {"POST", "/embeddings", native_embeddings},
    {"POST", "/rerank", rerank},
    {"POST", "/reranking", rerank},
    {"POST", "/v1/rerank", rerank},
    {"POST", "/v1/reranking", rerank},
    {"GET", "/imago/state", state},
    {"GET", "/imago/types", types},
    {"POST", "/imago/morph", morph},
    {"POST", "/imago/undo", undo},
};

/// Something follows these paths.
constexpr Route kOpenRoutes[] = {
    {"GET", kModelPath, one_model}, {"POST", "/slots/", slot_action},  // /slots/N?action=save
};

const Route* find_route(std::string_view method, std::string_view path) {
  const auto find = [&](std::span<const Route> routes, auto fits) -> const Route* {
    const auto found =
        std::ranges::find_if(routes, [&](const Route& route) { return route.method == method && fits(route.path); });
    return found == routes.end() ? nullptr : &*found;
  };
  const Route* const whole = find(kRoutes, [&](std::string_view own) { return own == path; });
  return whole != nullptr ? whole : find(kOpenRoutes, [&](std::string_view own) { return path.starts_with(own); });
}

Dialect dialect_of(std::string_view path) {
  if (path.starts_with("/api/")) return Dialect::ollama;  // unknown paths too
  const auto found = std::ranges::find(kRoutes, path, &Route::path);
  return found == std::end(kRoutes) ? Dialect::openai : found->dialect;
}

HttpReply page_reply() {
  return {.type = "text/html; charset=utf-8",
          .body = std::string(page()),
          .headers = {{"Content-Security-Policy",
                       "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
                       "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
                      {"Cache-Control", "no-cache"}}};
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const noexcept {
  const auto found = std::ranges::find_if(headers, [&](const auto& header) { return same_text(header.first, name); });
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

std::string HttpRequest::query_field(std::string_view name) const {
  std::string_view rest = query;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('&'), rest.size());
    const std::string_view field = rest.substr(0, end);
    if (field.starts_with(name) && field.substr(name.size()).starts_with('=')) {
      return percent_decoded(field.substr(name.size() + 1));
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return {};
}

Service::Service(Models& models, ServiceOptions options) : models_(models), options_(std::move(options)) {}

double Service::uptime_seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

void Service::remember_slot(std::int64_t slot, std::vector<TokenId> tokens) {
  const std::scoped_lock lock(mutex_);
  slots_[slot] = std::move(tokens);
}

std::vector<TokenId> Service::slot_tokens(std::int64_t slot) {
  const std::scoped_lock lock(mutex_);
  const auto found = slots_.find(slot);
  return found == slots_.end() ? std::vector<TokenId>() : found->second;
}

bool Service::is_authorized(const HttpRequest& request) const {
  if (options_.api_keys.empty()) return true;
  constexpr std::string_view kBearer = "Bearer ";
  std::string_view given = request.header("Authorization");
  if (given.size() > kBearer.size() && same_text(given.substr(0, kBearer.size()), kBearer)) {
    given.remove_prefix(kBearer.size());
  } else {
    given = request.header("X-Api-Key");
  }
  bool found = false;  // all keys are compared: which one is near must not show
  for (const std::string& key : options_.api_keys) found |= equal_in_constant_time(given, key);
  return found;
}

bool Service::may_call(const HttpRequest& request) const {
  // A page of another site can make a browser call this machine by a name that it has pointed here. It cannot know
  // keys.
  if (!options_.api_keys.empty()) return true;
  const std::string_view host = without_port(request.header("Host"));
  return host.empty() || is_this_machine(host) || std::ranges::any_of(options_.hosts, [&](const std::string& name) {
           return name == "*" || same_text(name, host);
         });
}

bool Service::is_origin_allowed(std::string_view origin) const {
  return std::ranges::any_of(options_.cors_origins, [&](const std::string& allowed) {
    if (allowed == "*" || allowed == origin) return true;
    return allowed == "localhost" && is_this_machine(without_port(host_of_origin(origin)));
  });
}

HttpReply Service::handle(const HttpRequest& request) {
  const Dialect dialect = dialect_of(request.path);
  HttpReply reply;
  try {
    reply = answer(request);
  } catch (const ClientGone&) {
    reply = {.status = 499};
  } catch (...) {
    reply = error_reply(std::current_exception(), dialect);
  }
  reply.headers.emplace_back("X-Content-Type-Options", "nosniff");
  const std::string_view origin = request.header("Origin");
  if (!origin.empty() && is_origin_allowed(origin)) {
    reply.headers.emplace_back("Access-Control-Allow-Origin", origin);
    reply.headers.emplace_back("Access-Control-Allow-Credentials", "true");
    reply.headers.emplace_back("Vary", "Origin");
  }
  return reply;
}

HttpReply Service::answer(const HttpRequest& request) {
  const std::string_view origin = request.header("Origin");
  if (!may_call(request)) {
    throw ApiError(403, "permission_error",
                   "without a key this server answers to names of this machine only; see --api-key and --allowed-host");
  }
  if (request.method == "OPTIONS") {
    HttpReply reply{.type = "text/plain"};
    if (!origin.empty() && is_origin_allowed(origin)) {
      reply.headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"},
                       {"Access-Control-Allow-Headers", "*"}};
    }
    return reply;
  }
  // Browsers send some requests to other sites without asking first.
  const bool same_site = origin.empty() || same_text(host_of_origin(origin), request.header("Host"));
  if (!same_site && !is_origin_allowed(origin)) {
    throw ApiError(403, "permission_error", "pages of this origin may not call the server; see --cors-origin");
  }

  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  if (options_.page && method == "GET" && (request.path == "/" || request.path == "/index.html")) return page_reply();
  const Route* const route = find_route(method, request.path);
  if (route == nullptr) {
    const bool other_method = std::ranges::find(kRoutes, request.path, &Route::path) != std::end(kRoutes);
    throw ApiError(other_method ? 405 : 404, "not_found_error",
                   fmt::format("there is no {} {}", method,
                               Json(request.path).dump(-1, ' ', false, Json::error_handler_t::replace)));
  }
  if (!route->is_public && !is_authorized(request)) {
    throw ApiError(401, "authentication_error", "the API key is missing or wrong");
  }
  Call call{
      .service = *this,
      .request = request,
      .dialect = route->dialect,
      .is_alive = [this,
                   is_alive = request.is_alive] { return !cancelled_.load(std::memory_order_relaxed) && is_alive(); },
      .body = Body::object(),
      .deadline = std::chrono::steady_clock::now() + options_.timeout};
  const bool may_lack_body = route->endpoint == slot_action;
  if (method == "POST" && !(request.body.empty() && may_lack_body)) call.body = parse_body(request.body);
  return route->endpoint(call);
}

std::shared_ptr<ServedModel> model_of(Call& call) {
  constexpr std::string_view kLatest = ":latest";
  std::string name = read_string(call.body, "model");
  if (call.dialect == Dialect::ollama && name.ends_with(kLatest)) name.resize(name.size() - kLatest.size());
  return call.service.models().get(name);
}

HttpReply stream_reply(StreamFormat format, Dialect dialect, std::function<void(const SendEvent& send)> tell) {
  HttpReply reply;
  const bool lines = format == StreamFormat::lines;
  reply.type = lines ? "application/x-ndjson" : "text/event-stream; charset=utf-8";
  reply.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  reply.stream = [format, lines, dialect, tell = std::move(tell)](const BodyWriter& write) {
    std::string text;
    const auto send = [&](const Json& message, std::string_view event) {
      text.clear();
      if (!event.empty()) fmt::format_to(std::back_inserter(text), "event: {}\n", event);
      if (!lines) text += "data: ";
      text += dump(message);
      text += lines ? "\n" : "\n\n";
      if (!write(text)) throw ClientGone();
    };
    try {
      tell(send);
      if (format == StreamFormat::events_until_done) write("data: [DONE]\n\n");
    } catch (const ClientGone&) {
      // Nobody reads; what was generated has been cancelled by now.
    } catch (...) {
      try {
        send(error_body(std::current_exception(), dialect), dialect == Dialect::anthropic ? "error" : "");
      } catch (const ClientGone&) {
        // as above
      }
    }
  };
  return reply;
}

}  // namespace imago::server
