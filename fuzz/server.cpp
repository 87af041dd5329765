// Any request gets an answer: of a known status, with JSON that is valid where it says so, and never an error of the
// server's own. The first line is the method and the path with its query, then come headers, an empty line and the
// body.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "server/models.h"
#include "server/service.h"
#include "testing/byte_model.h"

namespace {

using namespace imago;
using namespace imago::server;

/// A service with a tiny model, or without any where the reference data are absent.
struct Target {
  Target() {
    ModelsOptions options;
    options.name = "bytes";
    options.engine = {.context = 48, .parallel = 2};
    options.load = [](const std::string& path, std::optional<Format> type) {
      return LanguageModel::load(path, {.type = type, .fast = false});
    };
    if (!testing::ByteModel::missing()) {
      files.emplace();
      options.path = files->path();
    }
    models.emplace(std::move(options));
    models->load_first();
    ServiceOptions service_options;
    service_options.defaults.max_tokens = 4;
    service_options.cors_origins = {"localhost"};
    service_options.metrics = true;
    service.emplace(*models, std::move(service_options));
  }
  std::optional<testing::ByteModel> files;
  std::optional<Models> models;
  std::optional<Service> service;
};

std::string_view take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 16384) return 0;
  static Target target;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  HttpRequest request;
  const std::string_view line = take_line(text);
  const std::size_t space = std::min(line.find(' '), line.size());
  request.method = line.substr(0, space);
  const std::string_view where = line.substr(std::min(space + 1, line.size()));
  const std::size_t question = std::min(where.find('?'), where.size());
  request.path = where.substr(0, question);
  request.query = where.substr(std::min(question + 1, where.size()));
  while (!text.empty()) {
    const std::string_view header = take_line(text);
    if (header.empty()) break;
    const std::size_t colon = std::min(header.find(':'), header.size());
    request.headers.emplace_back(header.substr(0, colon), header.substr(std::min(colon + 1, header.size())));
  }
  request.body = text;

  HttpReply reply = target.service->handle(request);
  if (reply.stream) {
    reply.stream([&](std::string_view piece) {
      reply.body += piece;
      return reply.body.size() < (std::size_t{1} << 20);
    });
  }
  if (reply.status < 200 || reply.status > 599 || reply.status == 500) std::abort();
  if (reply.status >= 400 && reply.body.empty()) std::abort();
  if (reply.type.starts_with("application/json") && !nlohmann::json::accept(reply.body)) std::abort();
  return 0;
}
