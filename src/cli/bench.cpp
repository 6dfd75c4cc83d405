// Implements the command `treadle bench`.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/given_options.h"
#include "cli/inputs.h"
#include "cli/peer.h"
#include "cli/terminal.h"
#include "core/threads/thread_pool.h"

namespace treadle::cli {
namespace {

struct Options {
  std::string model, python = "python3";
  std::vector<std::string> peers;
  InputOptions inputs;
  SessionOptions session;
  int runs = 0;
  double seconds = 2;
  bool json = false;
};

double now_ms() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double peak_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

struct Measurement {
  int threads = 0;
  std::vector<double> times_ms;  // times of the runs, in ascending order
  double total_ms = 0, load_ms = 0, first_ms = 0, peak_mb = 0, before_mb = 0;
  MemoryReport memory;
  MadeFeeds feeds;
  std::vector<std::pair<std::string, PeerTimes>> peers;

  double percentile(double p) const {
    return times_ms[std::min(times_ms.size() - 1, static_cast<size_t>(p * static_cast<double>(times_ms.size())))];
  }
  double runs_per_second() const { return 1e3 * static_cast<double>(times_ms.size()) / total_ms; }
};

void time_runs(Session& session, const Options& options, Measurement& m) {
  IoBinding binding(session);
  for (const auto& [name, value] : m.feeds.values) binding.bind_input(name, value);
  for (const ValueInfo& info : session.outputs()) binding.bind_output(info.name);
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const double begin = now_ms();
  while (options.runs > 0 ? static_cast<int>(m.times_ms.size()) < options.runs
                          : (now_ms() - begin < options.seconds * 1e3 || m.times_ms.size() < 5)) {
    const double t = now_ms();
    session.run(binding);
    m.times_ms.push_back(now_ms() - t);
    if (terminal && m.times_ms.size() % 64 == 0) show_on(stderr, "\r{} runs", m.times_ms.size());
  }
  if (terminal) clear_line(stderr);
  for (const double time : m.times_ms) m.total_ms += time;
  std::sort(m.times_ms.begin(), m.times_ms.end());
}

Measurement measure(const Options& options) {
  Measurement m{.before_mb = peak_mb()};
  double start = now_ms();
  Session session(options.model, options.session);
  m.load_ms = now_ms() - start;
  const std::vector<ValueInfo> inputs = session.inputs();
  m.feeds = make_feeds(inputs, options.inputs);
  start = now_ms();
  with_assumed_extents(m.feeds.assumed, options.inputs, [&] { session.run(m.feeds.values); });
  m.first_ms = now_ms() - start;
  time_runs(session, options, m);
  m.peak_mb = peak_mb() - m.before_mb;
  m.memory = session.memory();
  m.threads = options.session.intra_op_num_threads ? options.session.intra_op_num_threads : ThreadPool::shared()->num_threads();
  for (const std::string& name : options.peers)
    m.peers.emplace_back(name, time_peer(name, options.python, options.model, m.feeds.values,
                                         options.session.intra_op_num_threads ? m.threads : 0, static_cast<int>(m.times_ms.size())));
  return m;
}

void print_json(const Options& options, const Measurement& m) {
  nlohmann::json inputs = nlohmann::json::object(), peers = nlohmann::json::object();
  for (const auto& [name, value] : m.feeds.values) inputs[name] = describe(value);
  for (const auto& [name, peer] : m.peers)
    peers[name] = {{"version", peer.version}, {"median_ms", peer.median_ms}, {"load_ms", peer.load_ms}};
  const nlohmann::json out{{"model", options.model},
                           {"threads", m.threads},
                           {"runs", m.times_ms.size()},
                           {"inputs", inputs},
                           {"assumed_extents", joined(m.feeds.assumed)},
                           {"latency_ms",
                            {{"median", m.percentile(0.5)},
                             {"p90", m.percentile(0.9)},
                             {"p99", m.percentile(0.99)},
                             {"min", m.times_ms.front()},
                             {"max", m.times_ms.back()}}},
                           {"runs_per_second", m.runs_per_second()},
                           {"load_ms", m.load_ms},
                           {"first_run_ms", m.first_ms},
                           {"peak_mb", m.peak_mb},
                           {"weight_bytes", m.memory.weight_bytes},
                           {"packed_bytes", m.memory.packed_bytes},
                           {"arena_bytes", m.memory.arena_bytes},
                           {"peers", peers}};
  show_json(out);
}

int bench(const Options& options) {
  const Measurement m = measure(options);
  if (options.json) {
    print_json(options, m);
    return 0;
  }
  show("{}  ({} thread{}, {} runs)\n", styled(options.model, Style::bold), m.threads, m.threads == 1 ? "" : "s", m.times_ms.size());
  for (const auto& [name, value] : m.feeds.values) show("  input       {} {}\n", name, describe(value));
  if (!m.feeds.assumed.empty()) show("  assumed     {}\n", assumed_text(m.feeds.assumed, options.inputs));
  show("  latency     median {:.3f} ms, p90 {:.3f}, p99 {:.3f}, min {:.3f}, max {:.3f}\n", m.percentile(0.5), m.percentile(0.9),
       m.percentile(0.99), m.times_ms.front(), m.times_ms.back());
  show("  throughput  {:.1f} runs/s\n", m.runs_per_second());
  show("  load        {:.2f} ms, first run {:.3f} ms\n", m.load_ms, m.first_ms);
  show("  memory      peak {:.1f} MB over the program's {:.1f}; weights {:.2f} MB, packed {:.2f} MB, arena {:.2f} MB\n", m.peak_mb,
       m.before_mb, static_cast<double>(m.memory.weight_bytes) / 1e6, static_cast<double>(m.memory.packed_bytes) / 1e6,
       static_cast<double>(m.memory.arena_bytes) / 1e6);
  for (const auto& [name, peer] : m.peers)
    show("  {} {}  median {:.3f} ms ({:.2f}x ours), load {:.2f} ms ({:.2f}x ours)\n", name, peer.version, peer.median_ms,
         peer.median_ms / m.percentile(0.5), peer.load_ms, peer.load_ms / m.load_ms);
  return 0;
}

}  // namespace

Command add_bench(CLI::App& app) {
  app.description("Measure latency, throughput, load time and memory");
  auto options = std::make_shared<Options>();
  app.add_option("model", options->model, "ONNX file")->required();
  add_input_options(app, options->inputs);
  add_session_options(app, options->session);
  app.add_option("--runs", options->runs, "Number of timed runs; by default as many as --seconds holds")->check(CLI::NonNegativeNumber);
  app.add_option("--seconds", options->seconds, "Length of the measurement")->capture_default_str();
  app.add_option("--compare", options->peers, "Measure this runtime as well, right after; may be repeated")
      ->allow_extra_args(false)
      ->take_all()
      ->check(CLI::IsMember(peer_names()));
  app.add_option("--python", options->python, "Interpreter that has the runtimes of --compare")->capture_default_str();
  app.add_flag("--json", options->json, "Print JSON");
  app.footer("Example: treadle bench model.onnx --dim batch=8 --threads 1 --compare onnxruntime");
  return [options, &app] {
    const GivenOptions given(app);
    given.need(options->runs <= 0, "no --runs, which says how many", {"--seconds"});
    given.need(!options->peers.empty(), "--compare", {"--python"});
    return bench(*options);
  };
}

}  // namespace treadle::cli
