// Measures the cost of the profiler: for each node of a chain of 200 nodes, recorded in several ways; for each range that the program
// marks; and for files of 1,000,000 events. Each round measures all ways, and the minimum over the rounds counts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/chain.h"
#include "treadle/metrics.h"
#include "treadle/profile_report.h"

using namespace treadle;

namespace {

constexpr int kNodes = 200, kRuns = 200, kRounds = 41;

double now_ns() { return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Bound {
  Session session;
  IoBinding binding;
};

struct Way {
  const char* name;
  Bound& bound;
  std::vector<ProfilerOptions> profilers;  // these profilers record at the same time
  double best_ns = std::numeric_limits<double>::infinity();
};

void measure_nodes(Bound& plain, Bound& counting) {
  const std::string recording = (std::filesystem::temp_directory_path() / "bench_profiler_recording").string();
  std::vector<Way> ways{{"not recorded", plain, {}},
                        {"not recorded (again: the noise)", plain, {}},
                        {"counters", counting, {}},
                        {"events", plain, {{}}},
                        {"events, the last 100,000", plain, {{.max_events = 100'000, .keep_last = true}}},
                        {"events and memory", plain, {{.memory = true}}},
                        {"events and kernel phases", plain, {{.kernel_phases = true}}},
                        {"events, written to a file", plain, {{.stream_to = recording}}},
                        {"two profiles at once", plain, {{}, {}}},
                        {"counters and events", counting, {{}}}};
  for (int round = 0; round < kRounds; ++round)
    for (Way& way : ways) {
      std::vector<Profiler> profilers;
      auto& [session, binding] = way.bound;
      for (const ProfilerOptions& options : way.profilers) profilers.push_back(session.profiler(options));
      session.run(binding);
      const double start = now_ns();
      for (int i = 0; i < kRuns; ++i) session.run(binding);
      way.best_ns = std::min(way.best_ns, (now_ns() - start) / (kRuns * kNodes));
    }
  std::filesystem::remove(recording);
  std::printf("%-34s %10s %10s\n", "a node of a chain of 200", "ns", "above");
  for (const Way& way : ways) std::printf("%-34s %10.2f %10.2f\n", way.name, way.best_ns, way.best_ns - ways[0].best_ns);
}

// Measures what profiling costs per node in a run without a profile: one branch, which an executor without a profiler would not have. The
// loop around the branch does nothing else that could hide the branch's time.
void measure_off() {
  constexpr int kSteps = 1'000'000;
  bool watched = false;
  int64_t done = 0;
  const auto step = [&] { asm volatile("" : "+r"(done)); };
  const auto without = [&] {
    for (int i = 0; i < kSteps; ++i) step();
  };
  const auto with = [&] {
    for (int i = 0; i < kSteps; ++i) {
      asm volatile("" : "+m"(watched));  // makes the compiler read `watched` again in each iteration, as if another thread might change it
      if (watched) [[unlikely]]
        std::abort();
      step();
    }
  };
  double plain = std::numeric_limits<double>::infinity(), checked = plain;
  for (int round = 0; round < kRounds; ++round)
    for (auto [work, best] : {std::pair<std::function<void()>, double*>{without, &plain}, {with, &checked}}) {
      const double start = now_ns();
      work();
      *best = std::min(*best, (now_ns() - start) / kSteps);
    }
  std::printf("%-34s %10.2f %10.2f\n", "off: the branch of a node alone", checked, checked - plain);
}

void measure_ranges(Session& session) {
  auto best_of = [](const std::function<void()>& work) {
    double best = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kRounds; ++round) {
      const double start = now_ns();
      work();
      best = std::min(best, now_ns() - start);
    }
    return best;
  };
  constexpr int kRanges = 10'000;
  auto mark = [] {
    for (int i = 0; i < kRanges; ++i) ProfileRange range("load batch");
  };
  std::printf("%-34s %10.2f\n", "a range, nobody records", best_of(mark) / kRanges);
  const Profiler profiler = session.profiler({});
  std::printf("%-34s %10.2f\n", "a range, recorded", best_of(mark) / kRanges);
}

// Measures what counting a run for the metrics of the process costs, and what it costs while it is off, which is the noise.
void measure_metrics() {
  constexpr int kCounted = 20'000;
  const Session session(bench::chain(1, /*dynamic=*/false));
  IoBinding binding(session);
  binding.bind_input("v0", Tensor(DType::float32, {8}));
  binding.bind_output("v1");
  struct Counted {
    const char* name;
    bool on;
    double best_ns = std::numeric_limits<double>::infinity();
  } ways[]{{"off", false}, {"off (again: the noise)", false}, {"counted for the metrics", true}};
  for (int round = 0; round < kRounds; ++round)
    for (Counted& way : ways) {
      count_metrics(way.on);
      session.run(binding);
      const double start = now_ns();
      for (int i = 0; i < kCounted; ++i) session.run(binding);
      way.best_ns = std::min(way.best_ns, (now_ns() - start) / kCounted);
    }
  count_metrics(false);
  std::printf("%-34s %10s %10s\n", "a run of one node", "ns", "above");
  for (const Counted& way : ways) std::printf("%-34s %10.2f %10.2f\n", way.name, way.best_ns, way.best_ns - ways[0].best_ns);
}

void measure_files(Session& session, IoBinding& binding) {
  Profiler profiler = session.profiler({});
  for (int i = 0; i < 1'000'000 / kNodes; ++i) session.run(binding);
  profiler.pause();
  std::printf("%-34s %10s %10s %10s\n", "of 1,000,000 events", "wall s", "CPU s", "MB");
  std::optional<Profile> profile;
  auto timed = [&](const char* name, const std::function<size_t()>& work) {
    double wall = std::numeric_limits<double>::infinity(), cpu = wall;
    size_t bytes = 0;
    for (int round = 0; round < 5; ++round) {
      const double start_ns = now_ns(), start = cpu_seconds();
      bytes = work();
      cpu = std::min(cpu, cpu_seconds() - start), wall = std::min(wall, (now_ns() - start_ns) / 1e9);
    }
    std::printf("%-34s %10.3f %10.3f %10.2f\n", name, wall, cpu, static_cast<double>(bytes) / 1e6);
  };
  ProfileReport report;
  timed("collect and analyse", [&] {
    profile.emplace(profiler.profile());
    return size_t{0};
  });
  timed("report", [&] {
    report = report_profile(*profile);
    return size_t{0};
  });
  timed(".json", [&] { return profile_to_json(report).size(); });
  timed("table", [&] { return profile_to_table(report).size(); });
  timed(".html", [&] { return profile_to_html(report).size(); });
  timed(".pftrace", [&] { return profile_to_trace(*profile, TraceFormat::perfetto).size(); });
  timed(".trace.json", [&] { return profile_to_trace(*profile, TraceFormat::chrome).size(); });
  timed(".folded", [&] { return profile_to_trace(*profile, TraceFormat::folded).size(); });
  double sum = 0, wall = 0;
  for (const ProfiledRun& run : profile->runs) {
    sum += run.kernel_ns + run.wait_ns + run.before_ns + run.between_ns + run.after_ns;
    wall += run.duration_ns;
  }
  std::printf("parts of the runs over their time: %.6f (%zu runs, %lu events lost)\n", sum / wall, profile->runs.size(),
              static_cast<unsigned long>(profile->events_lost));
}

Bound make_bound(bool counts) {
  SessionOptions options;
  options.intra_op_num_threads = 1;
  options.graph_optimization_level = GraphOptimizationLevel::disable_all;
  options.node_counters = counts;
  Session session(bench::chain(kNodes, false), options);
  IoBinding binding(session);
  Tensor input(DType::float32, {8});
  std::fill_n(input.data<float>(), 8, 1.0F);
  binding.bind_input("v0", input);
  binding.bind_output("v" + std::to_string(kNodes));
  return {std::move(session), std::move(binding)};
}

}  // namespace

int main() {
  Bound plain = make_bound(false), counting = make_bound(true);
  measure_nodes(plain, counting);
  measure_off();
  measure_ranges(plain.session);
  measure_metrics();
  measure_files(plain.session, plain.binding);
}
