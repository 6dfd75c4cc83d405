// Inexpensive nodes run at once, on the thread that made them ready. If a thread makes several expensive nodes ready, it runs one itself
// and puts the others into a queue. The run's own thread and idle threads of the pool take nodes from the queue.
#include "exec/run/parallel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/threads/float_mode.h"
#include "core/threads/thread_pool.h"
#include "core/trace/recorder.h"
#include "core/values/allocation.h"
#include "exec/run/first_error.h"
#include "exec/run/run_budget.h"
#include "graph/custom_ops.h"
#include "sharing/turn.h"

namespace treadle::exec {

class ParallelRun final : public TaskSource {
 public:
  ParallelRun(NodeRunner& nodes, ParallelState& state, const RunBudget* budget, size_t first, size_t end)
      : nodes_(nodes),
        program_(nodes.state().program()),
        binding_(nodes.state().binding()),
        state_(state),
        control_(nodes.control()),
        limit_(ParallelState::nodes_at_once(control_)),
        budget_(budget),
        first_(first),
        end_(end) {}

  size_t run() {
    run_all();
    if (!interrupted_) return end_;
    // The limit has changed. Finishes, in the present arena, all instructions before the last one that has run, and stops after it.
    while (end_ > first_ && !state_.cursor.is_noted(id_at<InstructionId>(end_ - 1))) --end_;
    interrupted_ = false;
    budget_ = nullptr;
    run_all();
    return end_;
  }

  bool run_one() override {
    InstructionId instruction = claim();
    if (instruction == kNoInstruction) return false;
    try {
      auto worker = take_worker();
      work(*worker, instruction);
      give_back(std::move(worker));
    } catch (...) {
      error_.note(std::current_exception());
    }
    leave();
    return true;
  }

 private:
  // Runs the instructions up to end_ that have not run yet.
  void run_all() {
    state_.queue.clear();
    state_.head = 0;
    state_.begin_with.clear();
    int64_t left = 0;
    for (InstructionId i : IdRange(id_at<InstructionId>(first_), id_at<InstructionId>(end_))) {
      left += !state_.cursor.is_noted(i);
      if (state_.cursor.is_ready(i)) state_.begin_with.push_back(i);
    }
    if (left == 0) return;
    auto worker = take_worker();  // comes first, because it may throw and nothing has to be undone yet
    sharing::Turn turn(control_.job, control_.recording.recorder, control_.recording.run,
                       control_.stop.interruption());  // the job counts as running while any thread works
    remaining_ = left;
    attached_ = limit_ > 1 && left > 1 && control_.threads.pool->attach(*this);
    ++active_;
    InstructionId kept = kNoInstruction;
    bool news = false;
    for (InstructionId instruction : state_.begin_with) news |= offer(instruction, *worker, kept);
    if (news) tell();
    work(*worker, kept);
    give_back(std::move(worker));
    leave();
    for (;;) {
      while (run_one()) {
      }
      if (over()) break;
      if (!attached_) {  // no thread of the pool helps: remaining nodes are queued, or wait for kernels on other threads
        std::unique_lock lock(pending_mutex_);
        pending_changed_.wait_for(lock, std::chrono::milliseconds(1), [&] { return queued_.load() > 0 || over(); });
        continue;
      }
      control_.threads.pool->help_until([](void* self) { return static_cast<ParallelRun*>(self)->something_for_the_owner(); }, this);
    }
    wait_for_pending();
    if (attached_) control_.threads.pool->detach(*this);
    wait_for_pending();  // a thread may have started more kernels while the run was stopping
    queued_ = 0;
    state_.failed_at = error_.at();
    if (const std::exception_ptr error = error_.take()) std::rethrow_exception(error);
  }

  bool over() const { return remaining_.load() == 0 || stopped(); }
  bool stopped() const { return error_.stopped() || interrupted_.load(); }
  bool something_for_the_owner() const { return over() || (queued_.load() > 0 && active_.load() < limit_); }

  // Takes an expensive node from the queue. Returns kNoInstruction if the queue is empty, or if limit_ nodes are running already.
  InstructionId claim() {
    if (queued_.load() == 0 || stopped()) return kNoInstruction;
    int active = active_.load();
    do {
      if (active >= limit_) return kNoInstruction;  // an active thread takes the next node when it is done
    } while (!active_.compare_exchange_weak(active, active + 1));
    InstructionId instruction = kNoInstruction;
    bool more = false;
    {
      std::lock_guard lock(mutex_);
      if (state_.head < state_.queue.size()) instruction = state_.queue[state_.head++];
      more = state_.head < state_.queue.size();
      queued_.store(static_cast<int>(state_.queue.size() - state_.head));
    }
    if (instruction == kNoInstruction) {
      leave();
      return kNoInstruction;
    }
    if (more && attached_) control_.threads.pool->announce(*this);
    return instruction;
  }

  void leave() {
    active_.fetch_sub(1);
    if (attached_ && (queued_.load() > 0 || over())) control_.threads.pool->nudge();
  }

  void publish(InstructionId instruction) {
    std::lock_guard lock(mutex_);
    state_.queue.push_back(instruction);
    queued_.store(static_cast<int>(state_.queue.size() - state_.head));
  }

  // Wakes threads of the pool. Called once, after all nodes that became ready together have been published. A thread woken earlier might
  // take this thread's CPU, find a single node, and sleep again before the next node is published.
  void tell() {
    if (attached_) control_.threads.pool->announce(*this);
  }

  void tell_observer(InstructionId instruction) {
    try {
      control_.stop.call([&] { control_.observer->ready(nodes_.state(), program_.instructions()[instruction]); });
    } catch (...) {
      error_.note(std::current_exception());
    }
  }

  // Gives a ready instruction to this worker or to the queue. @return true if it is in the queue now, so that tell() must be called
  bool offer(InstructionId instruction, ParallelState::Worker& worker, InstructionId& kept) {
    if (control_.observer) tell_observer(instruction);
    if (!binding_.costs().expensive(instruction)) {
      worker.ready.push_back(instruction);
    } else if (kept == kNoInstruction) {
      kept = instruction;
    } else {
      publish(instruction);
      return true;
    }
    return false;
  }

  void work(ParallelState::Worker& worker, InstructionId kept) {
    const auto instructions = program_.instructions();
    AllocationScope scope(control_.memory.context, MemoryClass::activations);
    sharing::Turn turn(control_.job, control_.recording.recorder, control_.recording.run, control_.stop.interruption());
    ParallelLimit limit(control_.threads.intra_op > 0 ? control_.threads.intra_op : INT32_MAX);
    std::optional<DenormalsAsZero> mode;
    if (control_.threads.denormals_as_zero) mode.emplace();
    int64_t done = 0;  // subtracted from remaining_ only at the end, so that remaining_ is never 0 while a thread works
    while (!error_.stopped()) {
      if (budget_ && (interrupted_.load(std::memory_order_relaxed) || budget_->is_outdated())) {
        interrupted_.store(true);
        break;
      }
      InstructionId index = kept;
      if (!worker.ready.empty()) {
        index = worker.ready.back();
        worker.ready.pop_back();
      } else {
        kept = kNoInstruction;
      }
      if (index == kNoInstruction) break;
      const Instruction& instruction = instructions[index];
      try {
        if (!instruction.dynamic || !instruction.kernel || !is_custom_op(*instruction.node->op) || nodes_.has_cache())
          nodes_.run(index, worker.evaluator, turn);
        else if (!execute_custom(instruction, index, turn))
          continue;
      } catch (...) {
        error_.note(std::current_exception(), index);
        break;
      }
      bool news = false;
      finish(index, [&](InstructionId next) { news |= offer(next, worker, kept); });
      if (news) tell();
      ++done;
    }
    remaining_.fetch_sub(done);
    worker.ready.clear();
  }

  // Starts a custom operator's kernel, which may continue on another thread. @return true if the kernel has ended already
  bool execute_custom(const Instruction& instruction, InstructionId index, sharing::Turn& turn) {
    struct Shared {
      std::mutex mutex;
      bool left = false, ended = false;  // `left`: this function has returned before the kernel's end; `ended`: the kernel has ended before
      std::vector<Datum> outputs;
      std::exception_ptr error;
    };
    auto shared = std::make_shared<Shared>();
    uint64_t start = 0;
    enter_pending();
    try {
      nodes_.check_before(index);
      std::optional<LoopBreakScope> breaks;
      if (turn.has_duty()) nodes_.take_turn(index, turn, breaks);
      start = nodes_.begin_watched(instruction);
      if (control_.stop.caller) control_.stop.caller->under_way = instruction.node;
      const auto done = [this, shared, &instruction, index, start](std::vector<Datum> outputs, std::exception_ptr error) {
        {
          std::lock_guard lock(shared->mutex);
          if (!shared->left) {
            shared->outputs = std::move(outputs);
            shared->error = std::move(error);
            shared->ended = true;
            return;
          }
        }
        end_pending(instruction, index, std::move(outputs), std::move(error), start);
      };
      nodes_.execute_deferred(
          instruction, [this] { return error_.stopped() || control_.stop.stopping(); }, done);
      {
        std::lock_guard lock(shared->mutex);
        if (!shared->ended) {
          shared->left = true;
          return false;
        }
      }
      if (shared->error) std::rethrow_exception(std::exchange(shared->error, nullptr));
      take(instruction, std::move(shared->outputs), start);
    } catch (...) {
      leave_pending(instruction);
      nodes_.rethrow_from(instruction);
    }
    leave_pending(instruction);
    return true;
  }

  void take(const Instruction& instruction, std::vector<Datum> outputs, uint64_t start) {
    nodes_.take(instruction, std::move(outputs));
    nodes_.end_watched(instruction, start);
  }

  // Called on the thread on which a deferred kernel ends. That thread runs no other node, so nodes that become ready go to the queue.
  void end_pending(const Instruction& instruction, InstructionId index, std::vector<Datum> outputs, std::exception_ptr error,
                   uint64_t start) {
    try {
      try {
        // std::exchange() releases this thread's reference to the error. The run's own thread rethrows the error to the caller.
        if (error) std::rethrow_exception(std::exchange(error, nullptr));
        if (!error_.stopped()) take(instruction, std::move(outputs), start);
      } catch (...) {
        nodes_.rethrow_from(instruction);
      }
    } catch (...) {
      error_.note(std::current_exception(), index);
    }
    if (!error_.stopped()) {
      bool news = false;
      finish(index, [&](InstructionId next) {
        if (control_.observer) tell_observer(next);
        publish(next);
        news = true;
      });
      if (news) tell();
      remaining_.fetch_sub(1);
    }
    leave_pending(instruction);
  }

  // Waits for custom kernels that are still running on other threads, because they use the frame.
  void wait_for_pending() {
    std::unique_lock lock(pending_mutex_);
    pending_changed_.wait(lock, [&] { return pending_ == 0; });
  }

  void enter_pending() {
    std::lock_guard lock(pending_mutex_);
    ++pending_;
  }
  // The last call on the thread of a deferred kernel, because the run may be destroyed afterwards.
  void leave_pending(const Instruction& instruction) {
    const Node* ended = instruction.node;
    if (control_.stop.caller) control_.stop.caller->under_way.compare_exchange_strong(ended, nullptr);
    std::lock_guard lock(pending_mutex_);
    if (attached_) control_.threads.pool->nudge();
    --pending_;
    pending_changed_.notify_all();
  }

  template <typename Ready>
  void finish(InstructionId index, Ready&& ready) {
    if (budget_) state_.cursor.note_run(index);
    state_.cursor.finish(
        index, [&](SlotId slot) { nodes_.state().drop(slot); },
        [&](InstructionId next) {
          if (index_of(next) < end_) ready(next);
        });
  }

  // Takes an idle worker. One per thread usually suffices, but a thread that waits within a node may run another node, with another worker.
  std::unique_ptr<ParallelState::Worker> take_worker() {
    std::lock_guard lock(mutex_);
    if (state_.idle.empty()) state_.prepare(program_.instructions().size(), state_.num_workers + 1);
    auto worker = std::move(state_.idle.back());
    state_.idle.pop_back();
    return worker;
  }
  void give_back(std::unique_ptr<ParallelState::Worker> worker) {
    std::lock_guard lock(mutex_);
    state_.idle.push_back(std::move(worker));
  }

  NodeRunner& nodes_;
  const Program& program_;
  const Binding& binding_;
  ParallelState& state_;
  const RunControl& control_;
  const int limit_;          // maximum number of nodes in parallel
  const RunBudget* budget_;  // tells when the memory limit has changed; null: no limit
  const size_t first_;
  size_t end_;
  bool attached_ = false;
  std::atomic<int> active_{0}, queued_{0};
  std::atomic<int64_t> remaining_{0};
  std::atomic<bool> interrupted_{false};
  std::mutex pending_mutex_;
  std::condition_variable pending_changed_;
  int pending_ = 0;   // number of kernels that may still run on other threads
  std::mutex mutex_;  // guards the queue and the idle workers
  FirstError error_;
};

size_t run_parallel(NodeRunner& nodes, ParallelState& state, const RunBudget* budget, size_t first, size_t end) {
  return ParallelRun(nodes, state, budget, first, end).run();
}

bool worth_parallel(const Program& program, const Binding& binding, const RunControl& control) {
  return program.parallel() && (program.planning().always_parallel || binding.costs().wide()) && control.threads.pool &&
         control.threads.inter_op != 1;
}

}  // namespace treadle::exec
