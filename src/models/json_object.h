#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "files/json_writer.h"

namespace imago::models {

/// A JSON object under construction; values are JSON texts.
class JsonObject {
 public:
  void raw(const std::string& key, std::string json) { members_[key] = std::move(json); }
  void text(const std::string& key, std::string_view value) { raw(key, files::quote_json(value)); }
  void size(const std::string& key, std::size_t value) { raw(key, fmt::format("{}", value)); }
  void number(const std::string& key, double value) { raw(key, files::format_number(value)); }
  void number(const std::string& key, float value) { raw(key, files::format_number(value)); }
  void flag(const std::string& key, bool value) { raw(key, value ? "true" : "false"); }
  void size_or_null(const std::string& key, std::size_t value) { value == 0 ? raw(key, "null") : size(key, value); }
  void number_or_null(const std::string& key, float value) { value == 0 ? raw(key, "null") : number(key, value); }

  std::string json(files::JsonStyle style) const {
    files::StringSink sink;
    files::JsonWriter writer(sink, style);
    writer.begin_object();
    for (const auto& [key, value] : members_) {
      writer.key(key);
      writer.raw(value);
    }
    writer.end_object();
    return sink.text();
  }

 private:
  std::map<std::string, std::string> members_;
};

}  // namespace imago::models
