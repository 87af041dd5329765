#include "api.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <new>
#include <random>
#include <set>

#include "imago/engine.h"
#include "imago/error.h"

namespace imago::server {

namespace {

constexpr int kDeepest = 64;
constexpr double kLargestExact = 9007199254740992.0;  // 2^53: larger integers may have lost digits as floats

struct Refusal {
  int status;
  std::string type, message, param = {};
  Json more = {};
};

Refusal refusal_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const ApiError& known) {
    return {known.status(), known.type(), known.what(), known.param(), known.more()};
  } catch (const ContextError& known) {
    return {400,
            "exceed_context_size_error",
            known.what(),
            {},
            {{"n_prompt_tokens", known.prompt_tokens()}, {"n_ctx", known.context()}}};
  } catch (const QueueFullError& known) {
    return {429, "rate_limit_error", known.what()};
  } catch (const Error& known) {
    switch (known.kind()) {
      case ErrorKind::usage:
      case ErrorKind::shape: return {400, "invalid_request_error", known.what()};
      case ErrorKind::unsupported: return {501, "not_supported_error", known.what()};
      case ErrorKind::io:
      case ErrorKind::format:
      case ErrorKind::device:
      case ErrorKind::diverged: break;
    }
    return {500, "server_error", known.what()};
  } catch (const std::bad_alloc&) {
    return {503, "server_error", "out of memory; try again later"};
  } catch (const std::exception& other) {
    return {500, "server_error", other.what()};
  }
}

Json body_of(const Refusal& refusal, Dialect dialect) {
  if (dialect == Dialect::ollama) return {{"error", refusal.message}};
  if (dialect == Dialect::anthropic) {
    const char* const type = refusal.status == 401   ? "authentication_error"
                             : refusal.status == 403 ? "permission_error"
                             : refusal.status == 404 ? "not_found_error"
                             : refusal.status == 413 ? "request_too_large"
                             : refusal.status == 429 ? "rate_limit_error"
                             : refusal.status == 503 ? "overloaded_error"
                             : refusal.status >= 500 ? "api_error"
                                                     : "invalid_request_error";
    return {{"type", "error"}, {"error", {{"type", type}, {"message", refusal.message}}}};
  }
  Json error = {{"code", refusal.status}, {"message", refusal.message}, {"type", refusal.type}};
  error["param"] = refusal.param.empty() ? Json() : Json(refusal.param);
  if (refusal.more.is_object()) error.update(refusal.more);
  return {{"error", error}};
}

const char* name_of(const Body& value) {
  switch (value.type()) {
    case Body::value_t::null: return "null";
    case Body::value_t::object: return "an object";
    case Body::value_t::array: return "an array";
    case Body::value_t::string: return "a string";
    case Body::value_t::boolean: return "a boolean";
    case Body::value_t::number_integer:
    case Body::value_t::number_unsigned:
    case Body::value_t::number_float: return "a number";
    case Body::value_t::binary:
    case Body::value_t::discarded: break;
  }
  return "unknown";
}

[[noreturn]] void wrong_type(std::string_view name, const char* wanted, const Body& got) {
  bad_field(name, fmt::format("must be {}, not {}", wanted, name_of(got)));
}

}  // namespace

void bad_field(std::string_view name, const std::string& problem) {
  throw ApiError(400, "invalid_request_error", fmt::format("'{}' {}", name, problem), std::string(name));
}

void unsupported_field(std::string_view name, const std::string& problem) {
  throw ApiError(501, "not_supported_error", fmt::format("'{}' {}", name, problem), std::string(name));
}

HttpReply error_reply(const std::exception_ptr& error, Dialect dialect) {
  const Refusal refusal = refusal_of(error);
  HttpReply reply = json_reply(body_of(refusal, dialect), refusal.status);
  if (refusal.status == 429 || refusal.status == 503) reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

Json error_body(const std::exception_ptr& error, Dialect dialect) { return body_of(refusal_of(error), dialect); }

Body parse_body(std::string_view text) {
  const auto refuse = [](const std::string& problem) {
    throw ApiError(400, "invalid_request_error", "the body is not valid JSON: " + problem);
  };
  std::vector<std::set<std::string>> keys;  // keys of the objects that are open
  const auto watch = [&](int depth, Body::parse_event_t event, Body& parsed) {
    if (depth > kDeepest) refuse(fmt::format("it is nested more than {} deep", kDeepest));
    if (event == Body::parse_event_t::object_start) keys.emplace_back();
    if (event == Body::parse_event_t::object_end) keys.pop_back();
    if (event == Body::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      refuse(fmt::format("the key '{}' comes twice", parsed.get<std::string>()));
    }
    return true;
  };
  Body body;
  try {
    body = Body::parse(text, watch);
  } catch (const Body::exception& error) {
    refuse(error.what());
  }
  if (!body.is_object()) refuse("an object is expected");
  return body;
}

std::string dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

HttpReply json_reply(const Json& value, int status) {
  return {.status = status, .type = "application/json; charset=utf-8", .body = dump(value)};
}

const Body* find(const Body& body, std::string_view name) {
  const auto found = body.find(name);
  return found == body.end() || found->is_null() ? nullptr : &*found;
}

bool is_given(const Body& body, std::string_view name) {
  const Body* const value = find(body, name);
  if (value == nullptr) return false;
  if (value->is_string()) return !value->get_ref<const std::string&>().empty();
  return !value->is_structured() || !value->empty();
}

bool read_bool(const Body& body, std::string_view name, bool otherwise) {
  const Body* const value = find(body, name);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) wrong_type(name, "true or false", *value);
  return value->get<bool>();
}

double read_number(const Body& body, std::string_view name, double otherwise, double least, double most) {
  const Body* const value = find(body, name);
  if (value == nullptr) return otherwise;
  if (!value->is_number()) wrong_type(name, "a number", *value);
  const double number = value->get<double>();
  if (!(number >= least && number <= most)) {
    bad_field(name, fmt::format("is {}; it can be {} to {}", number, least, most));
  }
  return number;
}

std::int64_t as_integer(const Body& value, const std::string& name, std::int64_t least, std::int64_t most) {
  if (!value.is_number()) wrong_type(name, "an integer", value);
  const auto refuse = [&] {
    bad_field(name, fmt::format("is {}; it can be an integer from {} to {}", value.dump(), least, most));
  };
  if (value.is_number_float()) {  // some clients write 8.0
    const double number = value.get<double>();
    if (std::trunc(number) != number || std::fabs(number) > kLargestExact) refuse();
  } else if (value.is_number_unsigned() &&
             value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    refuse();
  }
  const auto number = value.get<std::int64_t>();
  if (number < least || number > most) refuse();
  return number;
}

std::int64_t read_integer(const Body& body, std::string_view name, std::int64_t otherwise, std::int64_t least,
                          std::int64_t most) {
  const Body* const value = find(body, name);
  return value == nullptr ? otherwise : as_integer(*value, std::string(name), least, most);
}

std::string read_string(const Body& body, std::string_view name, std::string otherwise) {
  const Body* const value = find(body, name);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) wrong_type(name, "a string", *value);
  return value->get<std::string>();
}

std::vector<std::string> read_strings(const Body& body, std::string_view name) {
  const Body* const value = find(body, name);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array()) wrong_type(name, "a string or an array of strings", *value);
  std::vector<std::string> texts;
  for (const Body& text : *value) {
    if (!text.is_string()) wrong_type(fmt::format("{}[{}]", name, texts.size()), "a string", text);
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

std::int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string random_id(std::string_view prefix) {
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  thread_local std::mt19937_64 engine{std::random_device{}()};
  std::uniform_int_distribution<std::size_t> letter(0, kLetters.size() - 1);
  std::string id(prefix);
  for (int i = 0; i < 24; ++i) id += kLetters[letter(engine)];
  return id;
}

}  // namespace imago::server
