// Executes a program with independent nodes at once, on the pool that the nodes' own loops use.
#pragma once

#include <memory>
#include <vector>

#include "exec/run/frame.h"
#include "exec/schedule/parallel_plan.h"

namespace treadle::exec {

/// Memory of parallel runs, kept with the frame.
struct ParallelState {
  struct Worker {
    std::vector<int32_t> ready;  // inexpensive ones
    Evaluator evaluator;
  };

  // A run allocates nothing of its own: room for every instruction, and for every thread that may take part.
  ParallelState(const ParallelPlan& plan, size_t num_instructions, int num_threads) : counters(plan.counters.size()) {
    queue.reserve(num_instructions);
    prepare(num_instructions, num_threads);
  }
  void prepare(size_t num_instructions, int num_threads) {
    idle.reserve(static_cast<size_t>(num_threads));
    while (num_workers < num_threads) {
      auto worker = std::make_unique<Worker>();
      worker->ready.reserve(num_instructions);
      idle.push_back(std::move(worker));
      ++num_workers;
    }
  }

  std::vector<int32_t> counters;
  std::vector<uint8_t> done;   // per instruction, of a run with a memory limit
  std::vector<int32_t> queue;  // expensive ones, taken from `head` on
  size_t head = 0;
  std::vector<std::unique_ptr<Worker>> idle;
  int num_workers = 0;
};

/// True if the run has something to gain: two expensive instructions that need not wait for each other.
bool worth_parallel(const Program& program, const Binding& binding, const RunControl& control);

/// Runs a started frame to its end. The first error wins; what is under way ends, nothing else begins, and the frame can be used again.
/// @pre program().parallel() and no Yield.
void run_parallel(Frame& frame);

}  // namespace treadle::exec
