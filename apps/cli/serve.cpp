// imago serve: language models over HTTP.

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <exception>
#include <filesystem>
#include <future>
#include <thread>

#include "imago/engine.h"
#include "model_options.h"
#include "server/listener.h"
#include "server/service.h"

namespace imago::cli {

namespace {

constexpr std::size_t kUsualParallel = 64;

struct ServeCommand {
  GenerationOptions generation;
  server::ListenerOptions listen;
  server::ServiceOptions service;
  server::ModelsOptions models;
  std::vector<std::string> keys;
  std::string key_file, chat_template, chat_template_file;
  std::optional<std::uint64_t> cache_mebibytes;
  std::size_t parallel = kUsualParallel, queue = 1024;
  int timeout = 3600, stop_timeout = 60;
  bool no_auth = false, no_slots = false, no_page = false, no_morph = false, accepted = false;
};

/// A key on each line.
std::vector<std::string> read_keys(const std::string& path) {
  std::vector<std::string> keys;
  const std::string text = read_text(path);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string key = text.substr(begin, end - begin);
    if (key.ends_with('\r')) key.pop_back();
    if (!key.empty()) keys.push_back(std::move(key));
    begin = end + 1;
  }
  if (keys.empty()) throw UsageError(fmt::format("--api-key-file: {} has no keys", path));
  return keys;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || host.starts_with("127.");
}

/// The signals that end the server, which wait until somebody asks for them.
class EndSignals {
 public:
  EndSignals() {
    ::sigemptyset(&signals_);
    ::sigaddset(&signals_, SIGINT);
    ::sigaddset(&signals_, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  }
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;
  ~EndSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  /// Whether one came within that time.
  bool came(std::chrono::milliseconds within) const {
    const timespec wait{.tv_sec = within.count() / 1000, .tv_nsec = within.count() % 1000 * 1'000'000};
    return ::sigtimedwait(&signals_, nullptr, &wait) > 0;
  }

 private:
  sigset_t signals_{}, before_{};
};

server::ModelsOptions models_options(const ServeCommand& options) {
  server::ModelsOptions models = options.models;
  ModelOptions load = options.generation.model;
  if (models.folder.empty() || !load.path.empty()) models.path = model_path(load.path);
  if (models.name.empty() && !models.path.empty()) {
    const std::filesystem::path path = std::filesystem::path(models.path).lexically_normal();
    models.name = path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
  }
  models.chat_template = options.chat_template;
  if (!options.chat_template_file.empty()) models.chat_template = read_text(options.chat_template_file);
  models.load = [load, first = models.path](const std::string& path, std::optional<Format> type) mutable {
    ModelOptions one = load;
    one.path = path;
    if (type) one.type = type;
    one.quiet = load.quiet || path != first || type;
    return load_model(one);
  };
  models.engine = {.context = options.generation.sequence.context,
                   .cache = options.generation.sequence.cache,
                   .parallel = options.parallel,
                   .queue = options.queue,
                   .prompt_tokens = options.generation.sequence.batch};
  if (options.cache_mebibytes) models.engine.cache_bytes = *options.cache_mebibytes << 20;
  return models;
}

server::ServiceOptions service_options(const ServeCommand& options) {
  server::ServiceOptions service = options.service;
  service.api_keys = options.keys;
  if (!options.key_file.empty()) {
    const std::vector<std::string> more = read_keys(options.key_file);
    service.api_keys.insert(service.api_keys.end(), more.begin(), more.end());
  }
  service.hosts.push_back(options.listen.host);
  const bool open = !is_loopback(options.listen.host) && service.api_keys.empty();
  if (open && !options.no_auth) {
    throw UsageError(fmt::format("--host {} lets other machines in: give --api-key, or --no-auth if everybody may ask",
                                 printable(options.listen.host)));
  }
  if (open) service.hosts.emplace_back("*");
  service.defaults = generate_options(options.generation);
  service.parallel = options.parallel;
  service.timeout = std::chrono::seconds(options.timeout);
  service.slots = !options.no_slots;
  service.page = !options.no_page;
  service.morphs = !options.no_morph;
  if (!service.slot_folder.empty() && !std::filesystem::is_directory(service.slot_folder)) {
    throw UsageError(fmt::format("--slot-save-path: {} is not a folder", printable(service.slot_folder)));
  }
  return service;
}

void serve(const ServeCommand& options) {
  const bool quiet = options.generation.model.quiet;
  if (options.listen.tls_certificate.empty() != options.listen.tls_key.empty()) {
    throw UsageError("--tls-cert and --tls-key are given together");
  }
  set_thread_count(options.generation.threads);
  const EndSignals signals;
  server::Models models(models_options(options));
  server::Service service(models, service_options(options));
  server::Listener listener(options.listen,
                            [&](const server::HttpRequest& request) { return service.handle(request); });
  service.connections = [&] { return listener.connections(); };
  const std::string host = options.listen.host.find(':') == std::string::npos || options.listen.host.front() == '['
                               ? options.listen.host
                               : "[" + options.listen.host + "]";
  fmt::print(stderr, "listening on {}://{}:{}\n", options.listen.tls_key.empty() ? "http" : "https", host,
             listener.port());

  std::future<void> serving = std::async(std::launch::async, [&] { listener.run(); });
  // The listener must have ended before what it calls goes.
  struct Stop {
    server::Listener& listener;
    server::Service& service;
    ~Stop() {
      listener.stop();
      service.cancel_all();
    }
  };
  {
    const Stop stop{listener, service};
    std::future<void> loading = std::async(std::launch::async, [&] { models.load_first(); });
    bool ended = false;
    while (loading.wait_for(std::chrono::seconds(0)) != std::future_status::ready && !ended) {
      ended = signals.came(std::chrono::milliseconds(50));
    }
    // Nothing is under way, and loading cannot be stopped.
    if (ended && !models.ready()) ::_exit(0);
    loading.get();
    if (!quiet) {
      for (const auto& model : models.loaded()) {
        const server::ModelFacts facts = model->facts();
        fmt::print(stderr, "imago: {} is ready: {}, {}; {} tokens a request, {} requests at a time\n",
                   printable(model->name()), facts.type, format_bytes(facts.bytes), model->engine().context(),
                   options.parallel);
        if (!model->template_problem().empty()) {
          fmt::print(stderr, "imago: note: {}; conversations are written as ChatML\n",
                     printable(model->template_problem()));
        }
      }
    }
    while (!ended) ended = signals.came(std::chrono::seconds(3600));
    if (!quiet) fmt::print(stderr, "imago: ending; requests under way have {} s\n", options.stop_timeout);
    listener.stop();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(options.stop_timeout);
    while (serving.wait_for(std::chrono::seconds(0)) != std::future_status::ready &&
           std::chrono::steady_clock::now() < deadline && !signals.came(std::chrono::milliseconds(20))) {
    }
  }
  serving.get();
}

}  // namespace

Command add_serve(CLI::App& program) {
  CLI::App* command = program.add_subcommand("serve", "Serve language models over HTTP, with a page to talk to them");
  const auto options = std::make_shared<ServeCommand>();
  constexpr int kMost = 1 << 30;
  add_generation(*command, options->generation, -1);
  command->get_option("-n")->description("Most tokens of an answer, unless a request says; -1: no limit (default: -1)");
  command->get_option("-c")->description(
      "Tokens of a request, prompt and answer (default: 0, the context of the model, at most 32768)");
  add_value(*command, "--host", options->listen.host, "HOST", "Address to listen on (default: 127.0.0.1)");
  add_number(*command, "--port", options->listen.port, 0, 65535, "Port to listen on; 0: a free one (default: 8080)");
  add_value(*command, "-a,--alias", options->models.name, "NAME", "Name of the model (default: that of its file)");
  add_value(*command, "--model-dir,--models-dir", options->models.folder, "FOLDER",
            "Also serve the GGUF files and model folders in it, loaded when a request names them (default: none)");
  add_number(*command, "--models-max", options->models.most_loaded, 1, 1000,
             "Most models loaded besides MODEL; the least recently used one goes (default: 2)");
  add_number(*command, "--parallel", options->parallel, 1, 4096,
             "Most requests that run at a time, also as -np (default: 64)");
  add_number(*command, "--queue", options->queue, 0, kMost, "Most requests that wait; others get 429 (default: 1024)");
  add_number(*command, "--cache-ram", options->cache_mebibytes, 0, kMost,
             "MiB for keys and values of all requests and of cached prefixes (default: what they need, at most half of "
             "the free memory)",
             "MIB");
  add_value(*command, "--api-key", options->keys, "KEY", "Clients must send this key (repeatable; default: none)")
      ->delimiter(',')
      ->allow_extra_args(false);
  add_file(*command, "--api-key-file", options->key_file, "A file with a key on each line (default: none)");
  command->add_flag("--no-auth", options->no_auth, "Serve other machines without a key (default: refuse to)");
  add_value(*command, "--allowed-host", options->service.hosts, "NAME",
            "Name by which clients without a key may call the server (repeatable; default: names of this machine)")
      ->allow_extra_args(false);
  add_value(*command, "--cors-origin,--cors-origins", options->service.cors_origins, "ORIGIN",
            "Site whose pages may call the server; localhost, or * for all (repeatable; default: none)")
      ->delimiter(',')
      ->allow_extra_args(false);
  add_file(*command, "--tls-cert,--ssl-cert-file", options->listen.tls_certificate,
           "Certificate for https, PEM (default: none)");
  add_file(*command, "--tls-key,--ssl-key-file", options->listen.tls_key, "Its private key (default: none)");
  add_number(*command, "--timeout", options->timeout, 1, kMost, "Seconds an answer may take (default: 3600)");
  add_number(*command, "--stop-timeout", options->stop_timeout, 0, kMost,
             "Seconds that requests under way get after SIGTERM or Ctrl-C (default: 60)");
  add_value(*command, "--chat-template", options->chat_template, "JINJA",
            "Chat template instead of the model's (default: the model's, else ChatML)");
  add_file(*command, "--chat-template-file", options->chat_template_file, "The same from a file (default: none)");
  add_value(*command, "--slot-save-path", options->service.slot_folder, "FOLDER",
            "Where POST /slots/N?action=save writes (default: nowhere)");
  command->add_flag("--metrics", options->service.metrics, "Answer GET /metrics for Prometheus (default: 501)");
  command->add_flag("--no-slots", options->no_slots, "Answer GET /slots with 501 (default: answer it)");
  command->add_flag("--no-morph", options->no_morph,
                    "Clients may not change types of the model's matrices (default: they may)");
  command->add_flag("--no-ui,--no-webui", options->no_page, "No page at / (default: there is one)");
  command->add_flag("-v,--verbose", options->service.verbose,
                    "Answers to chats show their prompt as __verbose (default: where a request says so)");
  command->add_flag("--jinja,--slots,--cont-batching,--kv-unified", options->accepted,
                    "Accepted for llama-server's sake: this is how it works (default: on)");
  command->footer(
      "Endpoints: OpenAI's, Anthropic's, Ollama's and llama-server's; docs/serve.md lists them. The page is at /.\n"
      "SIGTERM and Ctrl-C end it once the requests under way have ended.\n"
      "Examples:\n  imago serve\n  imago serve model.gguf --port 0 -c 8192\n  imago serve --model-dir models --api-key "
      "secret --host 0.0.0.0");
  return {command, [options] { serve(*options); }};
}

}  // namespace imago::cli
