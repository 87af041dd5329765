// The endpoints that llama-server has beside OpenAI's.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include "endpoints.h"
#include "imago/error.h"
#include "imago/system.h"
#include "prompt.h"

namespace imago::server {

namespace {

constexpr std::int64_t kMostProbabilities = 1000;

std::int64_t limit_of(std::size_t max_tokens) {
  return max_tokens == std::numeric_limits<std::size_t>::max() ? -1 : static_cast<std::int64_t>(max_tokens);
}

Json settings_of(const GenerateOptions& options) {
  const SamplerOptions& sampler = options.sampler;
  return {{"n_predict", limit_of(options.max_tokens)},
          {"seed", sampler.seed},
          {"temperature", sampler.temperature},
          {"top_k", sampler.top_k},
          {"top_p", sampler.top_p},
          {"min_p", sampler.min_p},
          {"typical_p", sampler.typical_p},
          {"repeat_penalty", sampler.repeat_penalty},
          {"repeat_last_n", sampler.penalty_tokens},
          {"presence_penalty", sampler.presence_penalty},
          {"frequency_penalty", sampler.frequency_penalty},
          {"stop", options.stop},
          {"ignore_eos", options.ignore_end},
          {"n_probs", options.log_probabilities}};
}

/// "generation_settings/n_predict" of an object, under that name; llama-server's response_fields.
Json chosen_fields(const Json& whole, const std::vector<std::string>& fields) {
  if (fields.empty()) return whole;
  Json chosen = Json::object();
  for (const std::string& field : fields) {
    const Json* at = &whole;
    std::size_t begin = 0;
    while (at != nullptr && begin <= field.size()) {
      const std::size_t end = std::min(field.find('/', begin), field.size());
      const auto found = at->is_object() ? at->find(field.substr(begin, end - begin)) : at->end();
      at = at->is_object() && found != at->end() ? &*found : nullptr;
      begin = end + 1;
    }
    if (at != nullptr) chosen[field] = *at;
  }
  return chosen;
}

std::string_view stop_type(EndReason end) {
  switch (end) {
    case EndReason::end_token: return "eos";
    case EndReason::stop_string: return "word";
    case EndReason::max_tokens:
    case EndReason::context_full: return "limit";
    case EndReason::cancelled: break;
  }
  return "none";
}

/// Tokens as they are, with the space that many vocabularies put first.
std::string spelled(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::string text;
  for (const TokenId id : ids) text += tokenizer.piece(id, true);
  return text;
}

/// The answer of one choice, complete.
Json whole_answer(const Completion& completion, std::size_t choice, bool return_tokens, bool with_text) {
  const RequestResult& result = completion.result(choice);
  Json ids = Json::array();
  if (return_tokens) ids = result.ids;
  return {{"index", choice},
          {"content", with_text ? completion.text(choice).content : std::string()},
          {"tokens", std::move(ids)},
          {"id_slot", -1},
          {"stop", true},
          {"model", completion.model().name()},
          {"tokens_predicted", result.ids.size()},
          {"tokens_evaluated", completion.prompt_of(choice).size()},
          {"generation_settings", settings_of(completion.options().generate)},
          {"prompt", spelled(completion.model().tokenizer(), completion.prompt_of(choice))},
          {"has_new_line", completion.text(choice).content.find('\n') != std::string::npos},
          {"truncated", result.end == EndReason::context_full},
          {"stop_type", stop_type(result.end)},
          {"stopping_word", completion.stop_string(choice)},
          {"tokens_cached", completion.prompt_of(choice).size() + result.ids.size()},
          {"timings", completion.timings(choice)}};
}

std::string file_in_folder(const Call& call) {
  const std::string& folder = call.service.options().slot_folder;
  if (folder.empty()) throw ApiError(501, "not_supported_error", "slots are not saved; see --slot-save-path");
  const std::string name = read_string(call.body, "filename");
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  if (name.empty() || name.size() > 200 || name.front() == '.' ||
      name.find_first_not_of(kAllowed) != std::string::npos) {
    bad_field("filename", "can have letters, digits, '.', '_' and '-', and does not begin with a dot");
  }
  return (std::filesystem::path(folder) / name).string();
}

void add_metric(std::string& text, const char* kind, const char* name, const char* help, double value) {
  fmt::format_to(std::back_inserter(text), "# HELP llamacpp:{0} {1}\n# TYPE llamacpp:{0} {2}\nllamacpp:{0} {3}\n", name,
                 help, kind, value);
}

}  // namespace

HttpReply health(Call& call) {
  if (!call.service.models().ready()) throw ApiError(503, "unavailable_error", "Loading model");
  return json_reply({{"status", "ok"}});
}

HttpReply props(Call& call) {
  const auto model = call.service.models().get(call.request.query_field("model"));
  const Tokenizer* const tokenizer = model->model().tokenizer();
  const auto spelled = [&](std::optional<TokenId> id) { return id ? tokenizer->piece(*id, true) : std::string(); };
  GenerateOptions defaults = call.service.options().defaults;
  return json_reply(
      {{"default_generation_settings", {{"n_ctx", model->engine().context()}, {"params", settings_of(defaults)}}},
       {"total_slots", call.service.options().parallel},
       {"model_alias", model->name()},
       {"model_path", model->path()},
       {"chat_template", model->template_source()},
       {"bos_token", tokenizer != nullptr ? spelled(tokenizer->bos()) : ""},
       {"eos_token", tokenizer != nullptr ? spelled(tokenizer->eos()) : ""},
       {"modalities", {{"vision", false}, {"audio", false}}},
       {"build_info", fmt::format("imago {}", version())}});
}

HttpReply metrics(Call& call) {
  if (!call.service.options().metrics) {
    throw ApiError(501, "not_supported_error", "this server was started without --metrics");
  }
  EngineState sum;
  std::size_t running = 0;
  for (const auto& model : call.service.models().loaded()) {
    const EngineState one = model->engine().state();
    running += one.running.size();
    sum.waiting += one.waiting;
    sum.pages += one.pages;
    sum.pages_used += one.pages_used;
    sum.pages_cached += one.pages_cached;
    sum.requests += one.requests;
    sum.cancelled += one.cancelled;
    sum.refused += one.refused;
    sum.preemptions += one.preemptions;
    sum.steps += one.steps;
    sum.prompt_tokens += one.prompt_tokens;
    sum.cached_tokens += one.cached_tokens;
    sum.generated_tokens += one.generated_tokens;
    sum.prompt_seconds += one.prompt_seconds;
    sum.generate_seconds += one.generate_seconds;
  }
  const auto count = [](auto value) { return static_cast<double>(value); };
  const auto rate = [](double tokens, double seconds) { return seconds > 0 ? tokens / seconds : 0.0; };
  std::string text;
  const auto counter = [&](const char* name, const char* help, double value) {
    add_metric(text, "counter", name, help, value);
  };
  const auto gauge = [&](const char* name, const char* help, double value) {
    add_metric(text, "gauge", name, help, value);
  };
  counter("prompt_tokens_total", "Prompt tokens processed.", count(sum.prompt_tokens));
  counter("prompt_tokens_cached_total", "Prompt tokens found in the cache.", count(sum.cached_tokens));
  counter("prompt_seconds_total", "Seconds of steps with prompts.", sum.prompt_seconds);
  counter("tokens_predicted_total", "Tokens generated.", count(sum.generated_tokens));
  counter("tokens_predicted_seconds_total", "Seconds of steps without prompts.", sum.generate_seconds);
  counter("n_decode_total", "Steps.", count(sum.steps));
  counter("requests_total", "Requests accepted.", count(sum.requests));
  counter("requests_cancelled_total", "Requests that clients gave up.", count(sum.cancelled));
  counter("requests_refused_total", "Requests refused because the queue was full or the prompt too long.",
          count(sum.refused));
  counter("preemptions_total", "Times a request lost its pages to others.", count(sum.preemptions));
  gauge("prompt_tokens_seconds", "Prompt tokens per second.", rate(count(sum.prompt_tokens), sum.prompt_seconds));
  gauge("predicted_tokens_seconds", "Generated tokens per second.",
        rate(count(sum.generated_tokens), sum.prompt_seconds + sum.generate_seconds));
  gauge("requests_processing", "Requests that run.", count(running));
  gauge("requests_deferred", "Requests that wait.", count(sum.waiting));
  gauge("n_busy_slots_per_decode", "Tokens generated per step.", rate(count(sum.generated_tokens), count(sum.steps)));
  gauge("kv_cache_pages", "Pages of the cache.", count(sum.pages));
  gauge("kv_cache_pages_used", "Pages that running requests hold.", count(sum.pages_used));
  gauge("kv_cache_pages_cached", "Pages kept for requests to come.", count(sum.pages_cached));
  HttpReply reply{.type = "text/plain; version=0.0.4", .body = std::move(text)};
  reply.headers.emplace_back("Process-Start-Time-Unix",
                             fmt::format("{}", unix_time() - static_cast<std::int64_t>(call.service.uptime_seconds())));
  return reply;
}

HttpReply slots(Call& call) {
  if (!call.service.options().slots) {
    throw ApiError(501, "not_supported_error", "this server was started with --no-slots");
  }
  Json list = Json::array();
  const auto model = call.service.models().get(call.request.query_field("model"));
  const EngineState state = model->engine().state();
  const std::size_t count = std::max(call.service.options().parallel, state.running.size());
  for (std::size_t i = 0; i < count; ++i) {
    const bool busy = i < state.running.size();
    Json slot = {{"id", i}, {"n_ctx", model->engine().context()}, {"is_processing", busy}};
    if (busy) {
      const EngineState::Running& one = state.running[i];
      slot.update({{"id_task", one.id},
                   {"n_prompt_tokens", one.prompt_tokens},
                   {"n_prompt_tokens_processed", one.prompt_done},
                   {"n_decoded", one.generated},
                   {"seconds", one.seconds}});
    }
    list.push_back(std::move(slot));
  }
  return json_reply(list);
}

HttpReply slot_action(Call& call) {
  const std::string_view path = call.request.path;
  const std::string_view number = path.substr(path.rfind('/') + 1);
  std::int64_t slot = -1;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), slot);
  if (error != std::errc() || end != number.data() + number.size() || slot < 0) {
    throw ApiError(404, "not_found_error", "slots have numbers, as in /slots/0");
  }
  const auto model = model_of(call);
  const std::string_view action = call.request.query_field("action");
  const auto start = std::chrono::steady_clock::now();
  const auto milliseconds = [&] {
    return 1e3 * std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  if (action == "save") {
    const std::string file = file_in_folder(call);
    const std::size_t saved = model->engine().save_prefix(call.service.slot_tokens(slot), file);
    return json_reply({{"id_slot", slot},
                       {"filename", read_string(call.body, "filename")},
                       {"n_saved", saved},
                       {"n_written", std::filesystem::file_size(file)},
                       {"timings", {{"save_ms", milliseconds()}}}});
  }
  if (action == "restore") {
    const std::string file = file_in_folder(call);
    std::vector<TokenId> tokens;
    try {
      tokens = model->engine().load_prefix(file);
    } catch (const Error& refused) {
      // The path of the server's folder is nobody's business.
      throw ApiError(400, "invalid_request_error",
                     fmt::format("'{}' cannot be restored: it is missing, damaged or of another model",
                                 read_string(call.body, "filename")),
                     "filename");
    }
    const std::size_t restored = tokens.size();
    call.service.remember_slot(slot, std::move(tokens));
    return json_reply({{"id_slot", slot},
                       {"filename", read_string(call.body, "filename")},
                       {"n_restored", restored},
                       {"timings", {{"restore_ms", milliseconds()}}}});
  }
  if (action == "erase") {
    const std::size_t erased = call.service.slot_tokens(slot).size();
    call.service.remember_slot(slot, {});
    model->engine().forget_prefixes();
    return json_reply({{"id_slot", slot}, {"n_erased", erased}});
  }
  throw ApiError(400, "invalid_request_error", "'action' can be save, restore or erase", "action");
}

HttpReply tokenize(Call& call) {
  const auto model = model_of(call);
  const Tokenizer& tokenizer = model->tokenizer();
  const Body* const content = find(call.body, "content");
  if (content == nullptr) return json_reply({{"tokens", Json::array()}});
  const std::string text = read_string(call.body, "content");
  const bool add_special = read_bool(call.body, "add_special", false);
  // The library reads special tokens where it also adds them; without the latter they are cut off again.
  std::vector<TokenId> ids = add_special ? encode_prompt(tokenizer, text)
                                         : tokenizer.encode(text, read_bool(call.body, "parse_special", true));
  if (!add_special && !ids.empty() && tokenizer.adds_bos() && ids.front() == tokenizer.bos()) ids.erase(ids.begin());
  if (!read_bool(call.body, "with_pieces", false)) return json_reply({{"tokens", ids}});
  Json pieces = Json::array();
  for (const TokenId id : ids) {
    const std::string piece = tokenizer.piece(id, true);
    Json shown = piece;
    Utf8Stream check;
    if (check.push(piece) + check.finish() != piece) {  // part of a character
      shown = Json::array();
      for (const char byte : piece) shown.push_back(static_cast<unsigned char>(byte));
    }
    pieces.push_back({{"id", id}, {"piece", std::move(shown)}});
  }
  return json_reply({{"tokens", std::move(pieces)}});
}

HttpReply detokenize(Call& call) {
  const auto model = model_of(call);
  const Body* const tokens = find(call.body, "tokens");
  if (tokens == nullptr) return json_reply({{"content", ""}});
  if (!tokens->is_array()) bad_field("tokens", "must be an array of token ids");
  return json_reply(
      {{"content", model->tokenizer().decode(read_ids(*tokens, "tokens", model->model().vocabulary()), true)}});
}

HttpReply apply_template(Call& call) {
  const Conversation conversation = read_conversation(call.body);
  const auto model = model_of(call);
  return json_reply({{"prompt", render(*model, conversation)}});
}

HttpReply native_completion(Call& call) {
  const Body& body = call.body;
  refuse_unsupported(body);
  const Body* const prompt = find(body, "prompt");
  if (prompt == nullptr) bad_field("prompt", "is missing");
  const bool return_tokens = read_bool(body, "return_tokens", false), stream = read_bool(body, "stream", false);
  const bool progress = read_bool(body, "return_progress", false);
  const std::vector<std::string> fields = read_strings(body, "response_fields");
  if (read_bool(body, "post_sampling_probs", false)) unsupported_field("post_sampling_probs", "is not supported");
  const auto probabilities = static_cast<std::size_t>(read_integer(body, "n_probs", 0, 0, kMostProbabilities));
  const std::int64_t slot = read_integer(body, "id_slot", -1, -1, 1 << 20);
  const auto model = model_of(call);
  CompletionOptions options = read_completion_options(body, *model, call.service.options().defaults);
  read_max_tokens(body, {"n_predict", "max_tokens"}, options.generate);
  options.generate.log_probabilities = probabilities;
  const auto completion =
      std::make_shared<Completion>(model, read_prompts(*prompt, "prompt", *model), std::move(options));
  // Its tokens are in the cache now, but for the last one.
  const auto remember = [&service = call.service, slot](const Completion& ended) {
    if (slot < 0) return;
    std::vector<TokenId> tokens = ended.prompt_of(0);
    const std::vector<TokenId>& ids = ended.result(0).ids;
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    service.remember_slot(slot, std::move(tokens));
  };

  if (stream) {
    return stream_reply(
        StreamFormat::events, Dialect::openai,
        [=, is_alive = call.is_alive, deadline = call.deadline](const SendEvent& send) {
          std::vector<std::size_t> generated(completion->choices(), 0);
          PromptProgress prompt_progress;
          while (const auto event = completion->next(is_alive, deadline)) {
            Json chunk = {
                {"index", event->choice}, {"content", event->content}, {"tokens", Json::array()}, {"stop", false}};
            if (event->token) {
              chunk["tokens"].push_back(event->token->id);
              chunk["tokens_predicted"] = ++generated[event->choice];
              chunk["tokens_evaluated"] = completion->prompt_of(event->choice).size();
              if (probabilities > 0) {
                chunk["completion_probabilities"] =
                    Json::array({log_probability(model->tokenizer(), *event->token, probabilities)});
              }
              send(chunk, {});
            } else if (event->is_end) {
              if (!event->content.empty()) send(chunk, {});
              send(whole_answer(*completion, event->choice, false, false), {});
            } else if (progress && event->choice == 0) {
              prompt_progress.tell(*event, [&](Json told, Json timings) {
                chunk["prompt_progress"] = std::move(told);
                chunk["timings"] = std::move(timings);
                send(chunk, {});
              });
            }
          }
          remember(*completion);
        });
  }

  std::vector<Json> tops(completion->choices(), Json::array());
  while (const auto event = completion->next(call.is_alive, call.deadline)) {
    if (probabilities == 0 || !event->token) continue;
    tops[event->choice].push_back(log_probability(model->tokenizer(), *event->token, probabilities));
  }
  remember(*completion);
  Json answers = Json::array();
  for (std::size_t i = 0; i < completion->choices(); ++i) {
    Json whole = whole_answer(*completion, i, return_tokens, true);
    if (probabilities > 0) whole["completion_probabilities"] = std::move(tops[i]);
    answers.push_back(chosen_fields(whole, fields));
  }
  return json_reply(answers.size() == 1 ? answers.front() : answers);
}

}  // namespace imago::server
