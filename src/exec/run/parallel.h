// Runs by readiness: independent instructions at once, on the pool that the nodes' own loops use.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "core/thread_pool.h"
#include "exec/run/node_runner.h"
#include "exec/run/ready_cursor.h"
#include "exec/run/run_budget.h"

namespace treadle::exec {

/// What a run by readiness keeps from stop to stop, and its memory from run to run.
struct ParallelState {
  struct Worker {
    std::vector<InstructionId> ready;  // inexpensive ones
    Evaluator evaluator;
  };

  explicit ParallelState(const ParallelPlan& plan) : cursor(plan) {}
  /// A run begins: it allocates nothing of its own.
  void begin(size_t num_instructions, const RunControl& control) {
    cursor.begin();
    failed_at = kNoInstruction;
    queue.reserve(num_instructions);
    begin_with.reserve(num_instructions);
    prepare(num_instructions, std::clamp(nodes_at_once(control), 1, control.threads.pool->num_threads()));
  }
  static int nodes_at_once(const RunControl& control) {
    return control.threads.inter_op > 0 ? control.threads.inter_op : control.threads.pool->num_threads();
  }
  /// Room for every instruction, and for every thread that may take part.
  void prepare(size_t num_instructions, int num_threads) {
    idle.reserve(static_cast<size_t>(num_threads));
    while (num_workers < num_threads) {
      auto worker = std::make_unique<Worker>();
      worker->ready.reserve(num_instructions);
      idle.push_back(std::move(worker));
      ++num_workers;
    }
  }

  ReadyCursor cursor;
  std::vector<InstructionId> begin_with;  // after a stop
  std::vector<InstructionId> queue;       // expensive ones, taken from `head` on
  size_t head = 0;
  std::vector<std::unique_ptr<Worker>> idle;
  int num_workers = 0;
  InstructionId failed_at = kNoInstruction;  // the instruction whose error ended the run, if one did
};

/// True if the run has something to gain: two expensive instructions that need not wait for each other.
bool worth_parallel(const Program& program, const Binding& binding, const RunControl& control);

/// Runs the instructions [first, end), where all before have run and none is a Yield. The first error wins: what is under way ends, and
/// nothing else begins.
/// @param budget  of a run that is to stop when there is another memory limit; null: none.
/// @return how far it has come: `end`, or less for another limit. Everything before has run, and nothing behind.
size_t run_parallel(NodeRunner& nodes, ParallelState& state, const RunBudget* budget, size_t first, size_t end);

}  // namespace treadle::exec
