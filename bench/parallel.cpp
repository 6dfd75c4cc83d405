// Measures what an additional node costs in the parallel executor if nothing can run in parallel: (time of a chain of 1,010 elementwise
// nodes - time of a chain of 10) / 1,000, on 8 floats. Also measures the sequential executor on the same program, for comparison.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "core/threads/thread_pool.h"
#include "exec/program/program.h"
#include "exec/run/frame.h"
#include "graph/graph.h"
#include "graph/infer.h"
#include "tests/exec/host_program.h"

using namespace treadle;

namespace {

std::shared_ptr<Graph> chain(int num_nodes) {
  auto graph = std::make_shared<Graph>(std::make_shared<SymbolTable>());
  ValueId value = graph->add_input("x", Type::tensor(DType::float32, Shape{8}));
  ValueId one = graph->add_constant("one", Tensor::scalar(1.0F));
  for (int i = 0; i < num_nodes; ++i) {
    NodeSpec spec;
    spec.op_type = i % 2 ? "Mul" : "Add";
    spec.inputs = {value, one};
    NodeId node = graph->add_node(std::move(spec));
    infer_node(*graph, node);
    value = graph->node(node).outputs[0];
  }
  graph->outputs = {value};
  graph->output_names = {"y"};
  return graph;
}

double run_ns(int num_nodes, int inter_op_threads, ThreadPool& pool) {
  testing::HostProgram program(chain(num_nodes), {.parallel = true, .always_parallel = true});
  std::vector<Datum> feeds{Tensor(DType::float32, {8})}, bound{Tensor(DType::float32, {8})}, outputs(1);
  exec::RunControl control;
  control.threads.pool = &pool;
  control.threads.inter_op = inter_op_threads;
  std::vector<double> times;
  for (int round = 0; round < 15; ++round) {
    auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 500; ++i) program.run(feeds, outputs, control, bound);
    times.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / 500);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main() {
  ThreadPool pool(2);
  std::printf("dispatch, in order: %.1f ns a node\n", (run_ns(1010, 1, pool) - run_ns(10, 1, pool)) / 1000);
  std::printf("dispatch, parallel: %.1f ns a node\n", (run_ns(1010, 0, pool) - run_ns(10, 0, pool)) / 1000);
  return 0;
}
