// A load for servers that speak OpenAI's language, imago's or another: several clients at a time, each with one request
// after the other, and what they see of it. Prompts are random token ids, so that every server reads the same and none
// finds them in its cache, but for a part that all may share.
//
//   imago_bench_serve http://127.0.0.1:8080 --clients 1,4,16,32 --prompt 128 --tokens 64

#include <fmt/format.h>
#include <httplib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Load {
  std::string url;
  std::vector<std::size_t> clients = {1, 4, 16, 32};
  std::size_t requests = 4;  ///< of each client
  std::size_t prompt = 128, shared = 0, tokens = 64, vocabulary = 8000;
  std::string key;
};

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// What one request saw.
struct Seen {
  bool whole = false;
  std::size_t tokens = 0;
  double first = 0;               ///< seconds until the first token
  std::vector<double> gaps = {};  ///< between two pieces of text
};

std::string body_of(const Load& load, std::uint64_t seed) {
  std::vector<std::uint32_t> ids;
  const auto add = [&](std::uint64_t from, std::size_t count) {
    std::mt19937_64 random(from);
    // The first ids of most vocabularies are bytes and control tokens.
    std::uniform_int_distribution<std::uint32_t> id(300, static_cast<std::uint32_t>(load.vocabulary) - 1);
    for (std::size_t i = 0; i < count; ++i) ids.push_back(id(random));
  };
  add(0, std::min(load.shared, load.prompt));
  add(seed, load.prompt - ids.size());
  return nlohmann::json{{"prompt", ids},
                        {"max_tokens", load.tokens},
                        {"temperature", 0},
                        {"ignore_eos", true},
                        {"stream", true},
                        {"cache_prompt", true},
                        {"stream_options", {{"include_usage", true}}}}
      .dump();
}

Seen ask(httplib::Client& client, const Load& load, std::uint64_t seed) {
  Seen seen;
  httplib::Request request;
  request.method = "POST";
  request.path = "/v1/completions";
  request.headers = {{"Content-Type", "application/json"}};
  if (!load.key.empty()) request.headers.emplace("Authorization", "Bearer " + load.key);
  request.body = body_of(load, seed);
  const auto start = Clock::now();
  Clock::time_point before = start;
  std::string text;
  request.content_receiver = [&](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
    const auto now = Clock::now();
    if (before == start) {
      seen.first = seconds_between(start, now);
    } else {
      seen.gaps.push_back(seconds_between(before, now));
    }
    before = now;
    text.append(data, size);
    return true;
  };
  const auto reply = client.send(request);
  const std::size_t usage = text.rfind("\"completion_tokens\":");
  if (usage != std::string::npos) seen.tokens = std::strtoull(text.c_str() + usage + 20, nullptr, 10);
  seen.whole = reply && reply->status == 200 && seen.tokens == load.tokens;
  return seen;
}

/// The value that `part` of all are below.
double quantile(std::vector<double>& values, double part) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(part * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

/// Runs so many clients and prints a line. False if a reply was not whole.
bool run(const Load& load, std::size_t clients, std::uint64_t seed) {
  std::vector<std::vector<Seen>> seen(clients);
  std::vector<std::thread> threads;
  const auto start = Clock::now();
  for (std::size_t c = 0; c < clients; ++c) {
    threads.emplace_back([&, c] {
      httplib::Client client(load.url);
      client.set_keep_alive(true);
      client.set_tcp_nodelay(true);
      client.set_read_timeout(600);
      for (std::size_t r = 0; r < load.requests; ++r) {
        seen[c].push_back(ask(client, load, seed + c * load.requests + r));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = seconds_between(start, Clock::now());

  std::vector<double> firsts, gaps;
  std::size_t tokens = 0, broken = 0;
  for (const std::vector<Seen>& of_client : seen) {
    for (const Seen& one : of_client) {
      tokens += one.tokens;
      broken += one.whole ? 0 : 1;
      firsts.push_back(one.first);
      gaps.insert(gaps.end(), one.gaps.begin(), one.gaps.end());
    }
  }
  const auto in_ms = [](double value) { return 1e3 * value; };
  fmt::print("{:>7} {:>10.1f} {:>12.1f} {:>12.1f} {:>10.2f} {:>10.2f}{}\n", clients,
             static_cast<double>(tokens) / seconds, in_ms(quantile(firsts, 0.5)), in_ms(quantile(firsts, 0.99)),
             in_ms(quantile(gaps, 0.5)), in_ms(quantile(gaps, 0.99)),
             broken == 0 ? "" : fmt::format("   {} replies were not whole", broken));
  std::fflush(stdout);
  return broken == 0;
}

}  // namespace

int main(int argc, char** argv) {
  Load load;
  CLI::App program("Puts a server under load: clients, each with one request after the other");
  program.add_option("URL", load.url, "Where it listens: http://127.0.0.1:8080")->required();
  program.add_option("--clients", load.clients, "Clients at a time, a line for each number (default: 1,4,16,32)")
      ->delimiter(',');
  program.add_option("--requests", load.requests, "Requests of each client (default: 4)");
  program.add_option("--prompt", load.prompt, "Tokens of a prompt (default: 128)");
  program.add_option("--shared", load.shared, "How many of them all prompts share (default: 0)");
  program.add_option("--tokens", load.tokens, "Tokens of an answer (default: 64)");
  program.add_option("--vocabulary", load.vocabulary, "Prompts have ids below (default: 8000)")
      ->check(CLI::Range(301, 1 << 30));
  program.add_option("--key", load.key, "API key (default: none)");
  CLI11_PARSE(program, argc, argv);

  httplib::Client warm(load.url);
  warm.set_read_timeout(600);
  if (!ask(warm, load, 1).whole) {
    fmt::print(stderr, "{} does not answer as expected\n", load.url);
    return 1;
  }
  fmt::print("prompts of {} tokens, {} of them shared; answers of {}; {} requests of each client\n", load.prompt,
             load.shared, load.tokens, load.requests);
  fmt::print("clients   tokens/s  first ms p50 first ms p99 next ms p50 next ms p99\n");
  bool whole = true;
  std::uint64_t seed = 1000;
  for (const std::size_t clients : load.clients) {
    whole = run(load, clients, seed) && whole;
    seed += clients * load.requests;
  }
  return whole ? 0 : 1;
}
