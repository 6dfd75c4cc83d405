// Measures what a run costs more per additional node: (time of a chain of 1,010 elementwise nodes - time of a chain of 10) / 1,000, on 8
// floats, without the graph optimizer. Also measures the costs of new extents of an input, of stopping at a Yield node and resuming, of
// finding the program for other outputs than the model's, and of hooks.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "bench/chain.h"
#include "treadle/treadle.hpp"

using namespace treadle;
using bench::chain;

namespace {

double median_ns(const std::function<void()>& run, int rounds, int repeats) {
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) run();
    times.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / repeats);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

SessionOptions plain_options() {
  SessionOptions options;
  options.intra_op_num_threads = 1;
  options.graph_optimization_level = GraphOptimizationLevel::disable_all;
  return options;
}

double run_ns(int num_nodes) {
  Session session(chain(num_nodes, false), plain_options());
  IoBinding binding(session);
  binding.bind_input("v0", Tensor(DType::float32, {8}));
  binding.bind_output("v" + std::to_string(num_nodes), Tensor(DType::float32, {8}));
  session.run(binding);
  return median_ns([&] { session.run(binding); }, 15, 2000);
}

double bind_ns(int num_nodes) {
  Session session(chain(num_nodes, true), plain_options());
  IoBinding binding(session);
  Tensor memory(DType::float32, {2048});
  std::string output = "v" + std::to_string(num_nodes);
  binding.bind_output(output);
  int64_t extent = 1025;
  auto step = [&] {
    binding.bind_input("v0", Tensor(DType::float32, {extent}, memory.storage()));
    session.run(binding);
    extent = extent == 1150 ? 1025 : extent + 1;  // all extents lie in one bucket, but their number exceeds the capacity of the cache
  };
  for (int i = 0; i < 200; ++i) step();
  double changing = median_ns(step, 15, 200);
  double steady = median_ns([&] { session.run(binding); }, 15, 200);
  return changing - steady;
}

// Returns the time of a run that stops at `num_yields` Yield nodes. The caller resumes the run each time, and reads no yielded values.
double stopping_ns(int num_yields) {
  Session session(chain(2 * num_yields + 1, false, true), plain_options());
  const std::map<std::string, Datum> feeds{{"v0", Tensor(DType::float32, {8})}};
  const Datum handed_in = Tensor(DType::float32, {8});
  return median_ns(
      [&] {
        PartialRun run = session.partial_run(feeds);
        run.advance();
        while (!run.finished()) run.resume({&handed_in, 1});
      },
      15, 200);
}

// Returns the median over the rounds of the time of `b` minus the time of `a`. Each round measures both functions, so that other work on
// the machine affects both of them.
double difference_ns(const std::function<void()>& a, const std::function<void()>& b, int rounds, int repeats) {
  std::vector<double> differences;
  for (int round = 0; round < rounds; ++round) {
    const double first = median_ns(a, 1, repeats);
    differences.push_back(median_ns(b, 1, repeats) - first);
  }
  std::sort(differences.begin(), differences.end());
  return differences[differences.size() / 2];
}

// Returns the time of a run with a named output minus the time of a run that computes the model's output. Both runs execute the same node,
// but the former run first searches for the program by the name of the output, which is an inner value.
double lookup_ns() {
  Session session(chain(2, false), plain_options()), shorter(chain(1, false), plain_options());
  const std::map<std::string, Datum> feeds{{"v0", Tensor(DType::float32, {8})}};
  const std::string inner[] = {"v1"};
  return difference_ns([&] { shorter.run(feeds); }, [&] { session.run(feeds, inner); }, 201, 500);
}

// Prints how much more a run costs after hooks and a monitor have been registered and removed again, compared with a session that never had
// hooks or a monitor. Also prints the cost of a registered hook that does nothing.
void print_hooks() {
  auto bound = [](Session& session) {
    IoBinding binding(session);
    binding.bind_input("v0", Tensor(DType::float32, {8}));
    binding.bind_output("v1", Tensor(DType::float32, {8}));
    session.run(binding);
    return binding;
  };
  Session plain(chain(1, false), plain_options()), watched(chain(1, false), plain_options());
  IoBinding a = bound(plain), b = bound(watched);
  watched.set_monitor({.callback = [](const MonitorEvent&) {}});
  const HookId passing = register_hook(HookPoint::pre_run, 0, [](const HookedRun&) {});
  watched.run(b);
  unregister_hook(passing);
  watched.set_monitor({});
  watched.run(b);
  const std::function<void()> run_plain = [&] { plain.run(a); }, run_watched = [&] { watched.run(b); };
  std::printf("a run of one node: %.0f ns; after a hook and a monitor came and went: %+.1f ns\n", median_ns(run_plain, 101, 500),
              difference_ns(run_plain, run_watched, 201, 500));
}

}  // namespace

int main() {
  std::printf("dispatch: %.1f ns a node\n", (run_ns(1010) - run_ns(10)) / 1000);
  std::printf("bind, a new extent in a known bucket: %.1f ns a node\n", (bind_ns(1010) - bind_ns(10)) / 1000);
  std::printf("a stop at a Yield, one node and the resumption: %.0f ns\n", (stopping_ns(210) - stopping_ns(10)) / 200);
  std::printf("finding the program of a run with other outputs: %.0f ns\n", lookup_ns());
  print_hooks();
  return 0;
}
