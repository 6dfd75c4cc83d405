// Implements the command `treadle bench`.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/bench_load.h"
#include "cli/commands.h"
#include "cli/given_options.h"
#include "cli/inputs.h"
#include "cli/numbers.h"
#include "cli/peer.h"
#include "cli/terminal.h"
#include "core/threads/thread_pool.h"
#include "session/model.h"
#include "treadle/error.h"

namespace treadle::cli {
namespace {

struct Options {
  std::string model, python = "python3";
  std::vector<std::string> peers;
  InputOptions inputs;
  SessionOptions session;
  LoadOptions load;
  int streams = 1;
  bool json = false;
};

double now_ms() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double peak_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

struct Measurement {
  int threads = 0;  // of each stream
  double load_ms = 0, first_ms = 0, peak_mb = 0, before_mb = 0;
  LoadResult load;
  MemoryReport memory;
  MadeFeeds feeds;

  double latency(double p) const { return percentile(load.latencies_ms, p); }
};

LoadResult load_with_progress(const std::vector<Session>& sessions, const Measurement& m, const Options& options) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  LoadResult result = run_load(sessions, m.feeds.values, options.load, [&](int64_t runs, double seconds) {
    if (!terminal) return;
    clear_line(stderr);
    const std::string of = options.load.runs > 0 ? fmt::format(" of {}", options.load.runs) : "";
    const std::string until = options.load.runs > 0 ? "" : fmt::format(" of {:g}", options.load.seconds);
    show_on(stderr, "{}{} runs, {:.1f}{} s", runs, of, seconds, until);
  });
  if (terminal) clear_line(stderr);
  return result;
}

// Threads of each stream: those asked for, or an equal part of those of the process.
int threads_per_stream(const Options& options) {
  const int asked = options.session.intra_op_num_threads;
  return asked > 0 ? asked : std::max(ThreadPool::shared()->num_threads() / options.streams, 1);
}

Measurement measure(const Options& options) {
  Measurement m{.before_mb = peak_mb()};
  m.threads = threads_per_stream(options);
  SessionOptions session_options = options.session;
  if (options.streams > 1) session_options.intra_op_num_threads = m.threads;  // a pool for each
  double start = now_ms();
  std::vector<Session> sessions;
  sessions.emplace_back(options.model, session_options);
  m.load_ms = now_ms() - start;
  for (int i = 1; i < options.streams; ++i) sessions.emplace_back(options.model, session_options);
  m.feeds = make_feeds(sessions[0].inputs(), options.inputs);
  start = now_ms();
  with_assumed_extents(m.feeds.assumed, options.inputs, [&] { sessions[0].run(m.feeds.values); });
  m.first_ms = now_ms() - start;
  m.load = load_with_progress(sessions, m, options);
  m.peak_mb = peak_mb() - m.before_mb;
  m.memory = sessions[0].memory();
  return m;
}

// Measures another runtime. Its failure is told in `error`, so that it does not cost our own result.
PeerTimes measured_peer(const std::string& name, const Options& options, const Measurement& m) {
  try {
    return time_peer(name, options.python, options.model, m.feeds.values,
                     {.threads = options.session.intra_op_num_threads,
                      .clients = options.load.clients,
                      .warmup = options.load.warmup,
                      .runs = static_cast<int64_t>(m.load.latencies_ms.size()),
                      .most_seconds = 10 + 5 * m.load.wall_ms / 1e3});
  } catch (const Error& error) {
    return {.error = error.what()};
  }
}

nlohmann::json to_json(const PeerTimes& peer) {
  if (!peer.error.empty()) return {{"error", peer.error}};
  return {{"version", peer.version},
          {"median_ms", peer.median_ms},
          {"p90_ms", peer.p90_ms},
          {"p99_ms", peer.p99_ms},
          {"runs_per_second", peer.runs_per_second},
          {"load_ms", peer.load_ms}};
}

int print_json(const Options& options, const Measurement& m) {
  nlohmann::json inputs = nlohmann::json::object(), peers = nlohmann::json::object();
  for (const auto& [name, value] : m.feeds.values) inputs[name] = describe(value);
  bool failed = false;
  for (const std::string& name : options.peers) {
    const PeerTimes peer = measured_peer(name, options, m);
    failed |= !peer.error.empty();
    peers[name] = to_json(peer);
  }
  const LoadResult& load = m.load;
  nlohmann::json out{{"model", options.model},
                     {"threads", m.threads},
                     {"clients", options.load.clients},
                     {"streams", options.streams},
                     {"runs", load.latencies_ms.size()},
                     {"inputs", inputs},
                     {"assumed_extents", joined(m.feeds.assumed)},
                     {"latency_ms",
                      {{"median", m.latency(0.5)},
                       {"p90", m.latency(0.9)},
                       {"p95", m.latency(0.95)},
                       {"p99", m.latency(0.99)},
                       {"p99.9", m.latency(0.999)},
                       {"min", load.latencies_ms.front()},
                       {"max", load.latencies_ms.back()}}},
                     {"runs_per_second", load.runs_per_second()},
                     {"warmup_runs", load.warmup_runs},
                     {"warmup_ms", load.warmup_ms},
                     {"load_ms", m.load_ms},
                     {"first_run_ms", m.first_ms},
                     {"peak_mb", m.peak_mb},
                     {"weight_bytes", m.memory.weight_bytes},
                     {"packed_bytes", m.memory.packed_bytes},
                     {"arena_bytes", m.memory.arena_bytes},
                     {"peers", peers}};
  if (options.load.rate > 0) {
    out["arrivals_per_second"] = options.load.rate;
    out["waiting_ms"] = {
        {"median", percentile(load.waits_ms, 0.5)}, {"p99", percentile(load.waits_ms, 0.99)}, {"max", load.waits_ms.back()}};
    out["unserved"] = load.unserved;
  }
  show_json(out);
  return failed ? 1 : 0;
}

void print_load(const Options& options, const Measurement& m) {
  const LoadResult& load = m.load;
  if (options.load.clients > 1 || options.streams > 1)
    show("  clients     {} on {} stream{}\n", options.load.clients, options.streams, options.streams == 1 ? "" : "s");
  if (options.load.rate > 0) {
    show("  arrivals    {:g} a second, {}{}\n", options.load.rate, options.load.regular ? "at equal distances" : "independent (Poisson)",
         load.unserved > 0 ? fmt::format("; {} were never served: it is too much", load.unserved) : "");
    show("  waiting     median {:.3f} ms, p99 {:.3f}, max {:.3f}: from arrival to the run, a part of the latency\n",
         percentile(load.waits_ms, 0.5), percentile(load.waits_ms, 0.99), load.waits_ms.back());
  }
  constexpr size_t kEnoughForP999 = 1000;
  const std::string p999 = load.latencies_ms.size() >= kEnoughForP999 ? fmt::format(", p99.9 {:.3f}", m.latency(0.999)) : "";
  show("  latency     median {:.3f} ms, p90 {:.3f}, p95 {:.3f}, p99 {:.3f}{}, min {:.3f}, max {:.3f}\n", m.latency(0.5), m.latency(0.9),
       m.latency(0.95), m.latency(0.99), p999, load.latencies_ms.front(), load.latencies_ms.back());
  show("  throughput  {:.1f} runs/s\n", load.runs_per_second());
  show("  warm-up     {} runs in {:.1f} ms behind the first run, not counted\n", load.warmup_runs, load.warmup_ms);
}

int bench(const Options& options) {
  const Measurement m = measure(options);
  if (options.json) return print_json(options, m);
  show("{}  ({} thread{}{}, {} runs)\n", styled(options.model, Style::bold), m.threads, m.threads == 1 ? "" : "s",
       options.streams > 1 ? " a stream" : "", m.load.latencies_ms.size());
  for (const auto& [name, value] : m.feeds.values) show("  input       {} {}\n", name, describe(value));
  if (!m.feeds.assumed.empty()) show("  assumed     {}\n", assumed_text(m.feeds.assumed, options.inputs));
  print_load(options, m);
  show("  load        {:.2f} ms, first run {:.3f} ms\n", m.load_ms, m.first_ms);
  show("  memory      peak {:.1f} MB over the program's {:.1f}; weights {:.2f} MB, packed {:.2f} MB, arena {:.2f} MB\n", m.peak_mb,
       m.before_mb, static_cast<double>(m.memory.weight_bytes) / 1e6, static_cast<double>(m.memory.packed_bytes) / 1e6,
       static_cast<double>(m.memory.arena_bytes) / 1e6);
  std::fflush(stdout);
  bool failed = false;
  for (const std::string& name : options.peers) {
    const PeerTimes peer = measured_peer(name, options, m);
    failed |= !peer.error.empty();
    if (!peer.error.empty())
      show_on(stderr, "treadle bench: {}\n", peer.error);
    else
      show("  {} {}  median {:.3f} ms ({:.2f}x ours), p99 {:.3f}, {:.1f} runs/s, load {:.2f} ms ({:.2f}x ours)\n", name, peer.version,
           peer.median_ms, peer.median_ms / m.latency(0.5), peer.p99_ms, peer.runs_per_second, peer.load_ms, peer.load_ms / m.load_ms);
  }
  return failed ? 1 : 0;
}

}  // namespace

Command add_bench(CLI::App& app) {
  app.description("Measure latency, throughput, load time and memory");
  auto options = std::make_shared<Options>();
  app.add_option("model", options->model, "ONNX file")->required();
  add_input_options(app, options->inputs);
  add_session_options(app, options->session);
  auto* runs =
      app.add_option("--runs", options->load.runs, "Number of counted runs; by default as many as --seconds holds")->check(at_least(1));
  app.add_option("--seconds", options->load.seconds, "Length of the measurement")->check(above(0))->capture_default_str();
  app.add_option("--warmup", options->load.warmup, "Runs of each client that are not counted, behind the first")
      ->check(at_least(0))
      ->capture_default_str();
  app.add_option("--clients", options->load.clients, "Clients that send runs at once; by default one for each stream")
      ->check(between(1, 1000));
  app.add_option("--streams", options->streams, "Sessions that the clients use in turn, each with --threads threads of its own")
      ->check(between(1, 256))
      ->capture_default_str();
  auto* rate =
      app.add_option("--rate", options->load.rate,
                     "Requests that arrive in a second, whether or not those before are answered; the latency counts from the arrival. By "
                     "default each client sends the next request when it has the answer")
          ->check(above(0));
  app.add_flag("--regular", options->load.regular, "Of --rate: arrivals at equal distances; by default independent ones (Poisson)")
      ->needs(rate);
  app.add_option("--compare", options->peers, "Measure this runtime as well, right after; may be repeated")
      ->allow_extra_args(false)
      ->take_all()
      ->check(CLI::IsMember(peer_names()));
  app.add_option("--python", options->python, "Interpreter that has the runtimes of --compare")->capture_default_str();
  app.add_flag("--json", options->json, "Print JSON");
  app.footer(
      "Examples:\n"
      "  treadle bench model.onnx --dim batch=8 --threads 1 --compare onnxruntime\n"
      "  treadle bench model.onnx --threads 1 --streams 4          # throughput of four copies\n"
      "  treadle bench model.onnx --clients 8 --rate 200           # latency under the load of a service\n"
      "Exit status 1 if a runtime of --compare fails; our own result is printed before.");
  return [options, runs, &app] {
    const GivenOptions given(app);
    given.need(runs->count() == 0, "no --runs, which says how many", {"--seconds"});
    given.need(!options->peers.empty(), "--compare", {"--python"});
    given.need(options->peers.empty(), "no --compare, whose runtimes have one session and no arrivals", {"--streams", "--rate"});
    if (app.count("--clients") == 0) options->load.clients = options->streams;
    if (options->load.clients < options->streams)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} clients use no more than {} streams", options->load.clients, options->load.clients));
    options->load.seed = options->inputs.seed.value_or(0);
    if (!options->peers.empty()) Model::load(options->model).impl().need_original();  // the runtimes read ONNX files
    return bench(*options);
  };
}

}  // namespace treadle::cli
