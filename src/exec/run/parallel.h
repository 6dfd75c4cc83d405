// Runs instructions as soon as they are ready: independent ones in parallel, on the thread pool that the kernels' own loops use.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "core/threads/thread_pool.h"
#include "exec/run/node_runner.h"
#include "exec/run/ready_cursor.h"
#include "exec/run/run_budget.h"

namespace treadle::exec {

/// The state of a parallel run between two stops. Keeps its memory from run to run.
struct ParallelState {
  struct Worker {
    std::vector<InstructionId> ready;  // ready instructions that are inexpensive
    Evaluator evaluator;
  };

  explicit ParallelState(const ParallelPlan& plan) : cursor(plan) {}
  /// Called at the start of a run. Afterwards, the run allocates no memory in this object.
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
  /// Reserves memory for every instruction, and makes a worker for every thread that may take part.
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
  std::vector<InstructionId> begin_with;  // instructions that are ready when the run continues after a stop
  std::vector<InstructionId> queue;       // ready expensive instructions; those before `head` have been taken
  size_t head = 0;
  std::vector<std::unique_ptr<Worker>> idle;
  int num_workers = 0;
  InstructionId failed_at = kNoInstruction;  // the instruction whose error ended the run; kNoInstruction: there is none
};

/// Returns true if a parallel run may be faster: at least two expensive instructions do not depend on each other.
bool worth_parallel(const Program& program, const Binding& binding, const RunControl& control);

/// Runs the instructions [first, end). All instructions before `first` have run, and none in the range is a Yield. After the first error,
/// no other instruction begins, and the error is thrown when the running instructions have ended.
/// @param budget  tells when the memory limit has changed; the run then stops; null: no limit
/// @return where the run has stopped: at `end`, or earlier if the limit has changed. All instructions before that point have run, and no
/// later one has.
size_t run_parallel(NodeRunner& nodes, ParallelState& state, const RunBudget* budget, size_t first, size_t end);

}  // namespace treadle::exec
