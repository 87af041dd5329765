#pragma once

// What all endpoints share: JSON bodies read field by field, and errors in the shapes of the APIs.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "http.h"

namespace imago::server {

using Json = nlohmann::ordered_json;
/// Bodies of requests: keys in a tree, so that a million of them take no quadratic time.
using Body = nlohmann::json;

/// A refusal, with what the client gets to know of it.
class ApiError final : public std::runtime_error {
 public:
  /// `param`: the field that is wrong; empty: none. `more`: further members of the error.
  ApiError(int status, std::string type, const std::string& message, std::string param = {}, Json more = {})
      : std::runtime_error(message),
        status_(status),
        type_(std::move(type)),
        param_(std::move(param)),
        more_(std::move(more)) {}

  int status() const noexcept { return status_; }
  const std::string& type() const noexcept { return type_; }
  const std::string& param() const noexcept { return param_; }
  const Json& more() const noexcept { return more_; }

 private:
  int status_;
  std::string type_, param_;
  Json more_;
};

/// 400 that names a field.
[[noreturn]] void bad_field(std::string_view name, const std::string& problem);
/// 501.
[[noreturn]] void unsupported_field(std::string_view name, const std::string& problem);

/// Whose clients an endpoint serves: they expect errors in their own shape.
enum class Dialect : std::uint8_t { openai, anthropic, ollama };

/// The reply to what was thrown: an ApiError, an error of the library, or anything else.
HttpReply error_reply(const std::exception_ptr& error, Dialect dialect);
/// Its body alone, for streams that have begun.
Json error_body(const std::exception_ptr& error, Dialect dialect);

/// The JSON object in a body: valid UTF-8, at most 64 deep, no key twice. Throws ApiError.
Body parse_body(std::string_view text);
/// On one line; what is not UTF-8 becomes U+FFFD.
std::string dump(const Json& value);
HttpReply json_reply(const Json& value, int status = 200);

// Fields of a body. Absent ones and null give the default; others throw ApiError, naming the field, for a wrong type or
// a number out of range.

const Body* find(const Body& body, std::string_view name);
/// Whether a field asks for something: clients send empty lists, objects and texts for nothing.
bool is_given(const Body& body, std::string_view name);
bool read_bool(const Body& body, std::string_view name, bool otherwise);
double read_number(const Body& body, std::string_view name, double otherwise, double least, double most);
std::int64_t read_integer(const Body& body, std::string_view name, std::int64_t otherwise, std::int64_t least,
                          std::int64_t most);
std::string read_string(const Body& body, std::string_view name, std::string otherwise = {});
/// A string, or an array of strings.
std::vector<std::string> read_strings(const Body& body, std::string_view name);
/// The integer that a JSON value is; `name` is for the error.
std::int64_t as_integer(const Body& value, const std::string& name, std::int64_t least, std::int64_t most);

/// Seconds since 1970.
std::int64_t unix_time();
/// "chatcmpl-" and 24 random characters.
std::string random_id(std::string_view prefix);

}  // namespace imago::server
