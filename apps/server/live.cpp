// What the page asks besides: the state of the server, and the precision of a model that runs.

#include <fmt/format.h>

#include <string>
#include <utility>

#include "endpoints.h"
#include "imago/format.h"
#include "imago/system.h"

namespace imago::server {

namespace {

Json describe(ServedModel& served) {
  const LanguageModel& model = served.model();
  const ModelFacts facts = served.facts();
  const EngineState now = served.engine().state();
  Json running = Json::array();
  for (const EngineState::Running& one : now.running) {
    running.push_back({{"id", one.id},
                       {"prompt_tokens", one.prompt_tokens},
                       {"prompt_done", one.prompt_done},
                       {"generated", one.generated},
                       {"max_tokens", one.max_tokens},
                       {"seconds", one.seconds}});
  }
  return {{"id", served.name()},
          {"loaded", true},
          {"type", facts.type},
          {"bytes", facts.bytes},
          {"parameters", model.parameters()},
          {"context", served.engine().context()},
          {"architecture", std::string(model.architecture())},
          {"running", std::move(running)},
          {"waiting", now.waiting},
          {"page_tokens", now.page_tokens},
          {"pages", now.pages},
          {"pages_used", now.pages_used},
          {"pages_cached", now.pages_cached},
          {"last_batch", now.last_batch},
          {"requests", now.requests},
          {"cancelled", now.cancelled},
          {"refused", now.refused},
          {"preemptions", now.preemptions},
          {"steps", now.steps},
          {"prompt_tokens", now.prompt_tokens},
          {"cached_tokens", now.cached_tokens},
          {"generated_tokens", now.generated_tokens},
          {"prompt_seconds", now.prompt_seconds},
          {"generate_seconds", now.generate_seconds}};
}

Json describe(const MorphedMatrices& done, const ServedModel& served, std::chrono::steady_clock::time_point start) {
  return {{"changed", done.changed.size()},
          {"misfits", done.misfits},
          {"bytes_before", done.bytes_before},
          {"bytes_after", done.bytes_after},
          {"type", served.facts().type},
          {"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()}};
}

}  // namespace

HttpReply state(Call& call) {
  Json models = Json::array();
  for (const auto& model : call.service.models().loaded()) models.push_back(describe(*model));
  return json_reply({{"version", version()},
                     {"uptime_seconds", call.service.uptime_seconds()},
                     {"connections", call.service.connections()},
                     {"models", std::move(models)}});
}

HttpReply types(Call& call) {
  const auto served = call.service.models().get(call.request.query_field("model"));
  const ModelFacts facts = served->facts();
  Json roles = Json::array(), formats = Json::array();
  for (const ModelFacts::Role& role : facts.roles) {
    roles.push_back({{"role", role.role},
                     {"type", role.type},
                     {"matrices", role.matrices},
                     {"weights", role.weights},
                     {"bytes", role.bytes}});
  }
  for (const Format format : kFormats) {
    if (!format.is_target()) continue;
    formats.push_back({{"name", format.name()}, {"bits", format.bits()}, {"block", format.is_block()}});
  }
  return json_reply({{"model", served->name()},
                     {"type", facts.type},
                     {"bytes", facts.bytes},
                     {"can_undo", facts.morphs > 0},
                     {"formats", std::move(formats)},
                     {"roles", std::move(roles)}});
}

namespace {

void require_morphs(const Call& call) {
  if (call.service.options().morphs) return;
  throw ApiError(501, "not_supported_error", "this server was started with --no-morph");
}

}  // namespace

HttpReply morph(Call& call) {
  require_morphs(call);
  const auto served = model_of(call);
  const std::string pattern = read_string(call.body, "pattern"), type = read_string(call.body, "type");
  if (pattern.empty()) bad_field("pattern", "is missing");
  if (type.empty()) bad_field("type", "is missing");
  const auto start = std::chrono::steady_clock::now();
  const MorphedMatrices done = served->morph(pattern, parse_format(type));
  return json_reply(describe(done, *served, start));
}

HttpReply undo(Call& call) {
  require_morphs(call);
  const auto served = model_of(call);
  const auto start = std::chrono::steady_clock::now();
  const MorphedMatrices done = served->undo();
  return json_reply(describe(done, *served, start));
}

}  // namespace imago::server
