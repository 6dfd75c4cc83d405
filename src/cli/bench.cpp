// treadle bench
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "cli/commands.h"
#include "cli/inputs.h"
#include "cli/peer.h"
#include "core/thread_pool.h"

namespace treadle::cli {
namespace {

struct Options {
  std::string model, python = "python3";
  std::vector<std::string> peers;
  InputOptions inputs;
  SessionOptions session;
  int runs = 0;
  double seconds = 2;
};

double now_ms() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double peak_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

int bench(const Options& options) {
  double memory_before = peak_mb(), start = now_ms();
  Session session(options.model, options.session);
  double loaded = now_ms();
  std::map<std::string, Datum> feeds = make_feeds(session.inputs(), options.inputs);
  double first = now_ms();
  session.run(feeds);
  double after_first = now_ms();
  IoBinding binding(session);
  for (const auto& [name, value] : feeds) binding.bind_input(name, value);
  for (const ValueInfo& info : session.outputs()) binding.bind_output(info.name);
  std::vector<double> times;
  bool terminal = isatty(STDERR_FILENO) != 0;
  double begin = now_ms();
  while (options.runs > 0 ? static_cast<int>(times.size()) < options.runs
                          : (now_ms() - begin < options.seconds * 1e3 || times.size() < 5)) {
    double t = now_ms();
    session.run(binding);
    times.push_back(now_ms() - t);
    if (terminal && times.size() % 64 == 0) fmt::print(stderr, "\r{} runs", times.size());
  }
  if (terminal) fmt::print(stderr, "\r\x1b[K");
  double total = 0;
  for (double time : times) total += time;
  std::sort(times.begin(), times.end());
  auto percentile = [&](double p) { return times[std::min(times.size() - 1, static_cast<size_t>(p * static_cast<double>(times.size())))]; };
  int threads = options.session.intra_op_num_threads ? options.session.intra_op_num_threads : ThreadPool::shared()->num_threads();
  fmt::print("{}  ({} threads, {} runs)\n", options.model, threads, times.size());
  fmt::print("  latency     median {:.3f} ms, p90 {:.3f}, p99 {:.3f}, min {:.3f}, max {:.3f}\n", percentile(0.5), percentile(0.9),
             percentile(0.99), times.front(), times.back());
  fmt::print("  throughput  {:.1f} runs/s\n", 1e3 * static_cast<double>(times.size()) / total);
  fmt::print("  load        {:.2f} ms, first run {:.3f} ms\n", loaded - start, after_first - first);
  MemoryReport memory = session.memory();
  fmt::print("  memory      peak {:.1f} MB over the program's {:.1f}; weights {:.2f} MB, packed {:.2f} MB, arena {:.2f} MB\n",
             peak_mb() - memory_before, memory_before, static_cast<double>(memory.weight_bytes) / 1e6,
             static_cast<double>(memory.packed_bytes) / 1e6, static_cast<double>(memory.arena_bytes) / 1e6);
  for (const std::string& name : options.peers) {
    PeerTimes peer = time_peer(name, options.python, options.model, feeds, options.session.intra_op_num_threads ? threads : 0,
                               static_cast<int>(times.size()));
    fmt::print("  {} {}  median {:.3f} ms ({:.2f}x ours), load {:.2f} ms ({:.2f}x ours)\n", name, peer.version, peer.median_ms,
               peer.median_ms / percentile(0.5), peer.load_ms, peer.load_ms / (loaded - start));
  }
  return 0;
}

}  // namespace

Command add_bench(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("model", options->model, "ONNX file")->required();
  add_input_options(app, options->inputs);
  add_session_options(app, options->session);
  app.add_option("--runs", options->runs, "Number of timed runs; by default as many as --seconds holds");
  app.add_option("--seconds", options->seconds, "Length of the measurement")->capture_default_str();
  app.add_option("--compare", options->peers, "Measure this runtime as well, right after; may be repeated")
      ->allow_extra_args(false)
      ->take_all()
      ->check(CLI::IsMember(peer_names()));
  app.add_option("--python", options->python, "Interpreter that has the runtimes of --compare")->capture_default_str();
  app.footer("Example: treadle bench model.onnx --dim batch=8 --threads 1 --compare onnxruntime");
  return [options] { return bench(*options); };
}

}  // namespace treadle::cli
