// Measures the CPU time, in seconds, that the graph optimizer needs for graphs of several kinds with tens of thousands of nodes. With `-v`,
// the program also prints the wall-clock time of each pass.
//   bench_optimizer [-v] [KIND [NODES]]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "passes/pipeline.h"
#include "tests/passes/large_graphs.h"

using namespace treadle;
using testing::LargeGraph;

namespace {

struct Figures {
  double infer_s = 0, optimize_s = 0;
  size_t before = 0, after = 0;
};

/// Returns the thread's CPU time, which does not include waiting for a core.
double seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

Figures measure(const LargeGraph::Kind& kind, int64_t nodes, bool verbose) {
  std::unique_ptr<Graph> graph = LargeGraph::make(kind, nodes);
  Figures figures;
  figures.before = graph->num_nodes();
  double start = seconds();
  infer(*graph);
  figures.infer_s = seconds() - start;
  std::map<std::string, int64_t> passes;
  passes::PipelineOptions options;
  if (verbose) options.log = [&](std::string_view pass, const std::string&, int64_t us) { passes[std::string(pass)] += us; };
  start = seconds();
  passes::optimize(*graph, options);
  figures.optimize_s = seconds() - start;
  figures.after = graph->num_nodes();
  for (const auto& [pass, us] : passes) std::printf("    %-32s %8.1f ms\n", pass.c_str(), static_cast<double>(us) / 1e3);
  return figures;
}

}  // namespace

int main(int argc, char** argv) {
  bool verbose = false;
  std::string only;
  std::vector<int64_t> sizes{10'000, 20'000, 40'000};
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "-v") == 0)
      verbose = true;
    else if (only.empty())
      only = argv[i];
    else
      sizes = {std::atol(argv[i])};
  }
  std::printf("%-14s %8s %8s %12s %12s %14s\n", "graph", "nodes", "after", "inference s", "optimiser s", "us a node");
  for (const LargeGraph::Kind& kind : LargeGraph::kinds()) {
    if (!only.empty() && kind.name != only) continue;
    for (int64_t nodes : sizes) {
      const Figures f = measure(kind, nodes, verbose);
      std::printf("%-14s %8zu %8zu %12.3f %12.3f %14.1f\n", std::string(kind.name).c_str(), f.before, f.after, f.infer_s, f.optimize_s,
                  f.optimize_s * 1e6 / static_cast<double>(f.before));
      std::fflush(stdout);
    }
  }
}
