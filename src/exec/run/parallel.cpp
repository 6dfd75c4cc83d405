// A node that becomes ready and is inexpensive runs at once, on the thread that made it ready. Of the expensive ones that a thread makes
// ready it keeps one for itself; the others go to a queue, from which the run's own thread and idle workers of the pool take them.
#include "exec/run/parallel.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/allocation.h"
#include "core/float_mode.h"
#include "core/recorder.h"
#include "core/thread_pool.h"
#include "exec/memory/budget.h"
#include "exec/schedule/parallel_plan.h"
#include "graph/custom_ops.h"
#include "graph/deferred.h"
#include "memory/spill_file.h"
#include "sharing/turn.h"

namespace treadle::exec {

class ParallelRun final : public TaskSource {
 public:
  explicit ParallelRun(Frame& frame)
      : frame_(frame),
        plan_(*frame.program().parallel()),
        state_(frame.parallel_state()),
        control_(frame.control()),
        limit_(control_.inter_op_threads > 0 ? control_.inter_op_threads : control_.pool->num_threads()),
        remaining_(static_cast<int64_t>(frame.program().instructions().size())) {
    state_.prepare(frame.program().instructions().size(), std::clamp(limit_, 1, control_.pool->num_threads()));
    if (!plan_.counters.empty()) std::memcpy(state_.counters.data(), plan_.counters.data(), plan_.counters.size() * sizeof(int32_t));
    state_.queue.clear();
    state_.head = 0;
    if (limited_) state_.done.assign(frame.program().instructions().size(), 0);
  }

  void run() {
    if (remaining_.load() == 0) return;
    auto worker = take_worker();                                                   // before there is anything to undo
    sharing::Turn turn(control_.job, control_.recorder, control_.interruption());  // for as long as any thread works
    attached_ = limit_ > 1 && control_.pool->attach(*this);
    ++active_;
    int32_t kept = -1;
    bool news = false;
    for (int32_t root : plan_.roots) news |= offer(root, *worker, kept);
    if (news) tell();
    work(*worker, kept);
    give_back(std::move(worker));
    leave();
    for (;;) {
      while (run_one()) {
      }
      if (over()) break;
      if (!attached_) {  // nobody else is there: what is left is in the queue, or with kernels that go on elsewhere
        std::unique_lock lock(pending_mutex_);
        pending_changed_.wait_for(lock, std::chrono::milliseconds(1), [&] { return queued_.load() > 0 || over(); });
        continue;
      }
      control_.pool->help_until([](void* self) { return static_cast<ParallelRun*>(self)->something_for_the_owner(); }, this);
    }
    wait_for_pending();
    if (attached_) control_.pool->detach(*this);
    wait_for_pending();  // for those that a thread began while the run was being stopped
    if (error_) std::rethrow_exception(error_);
    if (interrupted_) go_on_in_order();
  }

  bool run_one() override {
    int32_t instruction = claim();
    if (instruction < 0) return false;
    try {
      auto worker = take_worker();
      work(*worker, instruction);
      give_back(std::move(worker));
    } catch (...) {
      fail(std::current_exception());
    }
    leave();
    return true;
  }

 private:
  bool over() const { return remaining_.load() == 0 || stopped(); }
  bool stopped() const { return failed_.load() || interrupted_.load(); }

  // Another memory limit holds now: what is under way ends, and nothing else begins.
  bool limit_changed() const { return limited_ && frame_.is_limit_outdated(); }

  // Everything before the last node that has run, in the arena as it is; the rest goes node by node, as any run that follows its limit.
  void go_on_in_order() {
    const auto instructions = frame_.program().instructions();
    size_t end = instructions.size();
    while (end > 0 && !state_.done[end - 1]) --end;
    auto worker = take_worker();
    sharing::Turn turn(control_.job, control_.recorder, control_.interruption());
    for (size_t i = 0; i < end; ++i) {
      if (state_.done[i]) continue;
      frame_.run_one(instructions[i], i, worker->evaluator, turn);
      release(static_cast<int32_t>(i));
    }
    give_back(std::move(worker));
    frame_.go_on_from(end);
    frame_.advance();
  }
  bool something_for_the_owner() const { return over() || (queued_.load() > 0 && active_.load() < limit_); }

  // The right to run a node, and an expensive node; -1 if there is either no node or no right.
  int32_t claim() {
    if (queued_.load() == 0 || stopped()) return -1;
    int active = active_.load();
    do {
      if (active >= limit_) return -1;  // one of those looks again when it is done
    } while (!active_.compare_exchange_weak(active, active + 1));
    int32_t instruction = -1;
    bool more = false;
    {
      std::lock_guard lock(mutex_);
      if (state_.head < state_.queue.size()) instruction = state_.queue[state_.head++];
      more = state_.head < state_.queue.size();
      queued_.store(static_cast<int>(state_.queue.size() - state_.head));
    }
    if (instruction < 0) {
      leave();
      return -1;
    }
    if (more && attached_) control_.pool->announce(*this);
    return instruction;
  }

  void leave() {
    active_.fetch_sub(1);
    if (attached_ && (queued_.load() > 0 || over())) control_.pool->nudge();
  }

  void publish(int32_t instruction) {
    std::lock_guard lock(mutex_);
    state_.queue.push_back(instruction);
    queued_.store(static_cast<int>(state_.queue.size() - state_.head));
  }

  // Something has been published. Once for all that became ready together: a worker that is woken may take the CPU of this thread at once,
  // and would find one node, spin and sleep, before the next one is published.
  void tell() {
    if (attached_) control_.pool->announce(*this);
  }

  void note_ready(int32_t instruction) {
    if (!control_.observer) return;
    try {
      control_.call([&] { control_.observer->ready(frame_, frame_.program().instructions()[static_cast<size_t>(instruction)]); });
    } catch (...) {
      fail(std::current_exception());
    }
  }

  // Somewhere for a ready instruction. @return true if it was published, and others are to be told.
  bool offer(int32_t instruction, ParallelState::Worker& worker, int32_t& kept) {
    note_ready(instruction);
    if (!frame_.binding().expensive(instruction)) {
      worker.ready.push_back(instruction);
    } else if (kept < 0) {
      kept = instruction;
    } else {
      publish(instruction);
      return true;
    }
    return false;
  }

  void work(ParallelState::Worker& worker, int32_t kept) {
    const auto instructions = frame_.program().instructions();
    AllocationScope scope(control_.memory, MemoryClass::activations);
    sharing::Turn turn(control_.job, control_.recorder, control_.interruption());
    ParallelLimit limit(control_.intra_op_threads > 0 ? control_.intra_op_threads : INT32_MAX);
    std::optional<DenormalsAsZero> mode;
    if (control_.denormals_as_zero) mode.emplace();
    while (!failed_.load(std::memory_order_relaxed)) {
      if (limited_ && (interrupted_.load(std::memory_order_relaxed) || limit_changed())) {
        interrupted_.store(true);
        break;
      }
      int32_t index = kept;
      if (!worker.ready.empty()) {
        index = worker.ready.back();
        worker.ready.pop_back();
      } else {
        kept = -1;
      }
      if (index < 0) return;
      const Instruction& instruction = instructions[static_cast<size_t>(index)];
      try {
        if (!instruction.dynamic || !instruction.kernel || !is_custom_op(*instruction.node->op))
          frame_.run_one(instruction, static_cast<size_t>(index), worker.evaluator, turn);
        else if (!execute_custom(instruction, index, turn))
          continue;
      } catch (...) {
        fail(std::current_exception());
        break;
      }
      release(index);
      if (limited_) state_.done[static_cast<size_t>(index)] = 1;
      const uint32_t last = plan_.first_successor[static_cast<size_t>(index) + 1];
      bool news = false;
      for (uint32_t k = plan_.first_successor[static_cast<size_t>(index)]; k < last; ++k)
        if (count_down(plan_.successors[k])) news |= offer(plan_.successors[k], worker, kept);
      if (news) tell();
      remaining_.fetch_sub(1);
    }
    worker.ready.clear();
  }

  // A kernel from outside may go on elsewhere when this returns. @return true if it has ended.
  bool execute_custom(const Instruction& instruction, int32_t index, sharing::Turn& turn) {
    struct Shared {
      std::mutex mutex;
      bool left = false, ended = false;  // whichever comes first
      std::vector<Datum> outputs;
      std::exception_ptr error;
    };
    auto shared = std::make_shared<Shared>();
    uint64_t start = 0;
    enter_pending();
    try {
      control_.check();
      if (turn.has_duty()) turn.before_node(frame_.binding().hint(static_cast<size_t>(index)));
      if (control_.observer) control_.call([&] { control_.observer->before(frame_, instruction); });
      if (control_.caller) control_.caller->under_way = instruction.node;
      start = control_.recorder ? read_ticks() : 0;
      const auto operands = frame_.program().operands(instruction);
      DeferredNode node{.node = instruction.node,
                        .kernel = instruction.kernel,
                        .packed = instruction.packed.get(),
                        .pool = control_.pool,
                        .run_id = control_.run_id};
      for (int32_t slot : operands.first(instruction.num_inputs))
        node.inputs.push_back(slot < 0 ? Datum() : frame_.state().value(slot, /*shared=*/true));
      for (int32_t slot : operands.subspan(instruction.num_inputs))
        node.output_dtypes.push_back(slot < 0 ? DType::undefined : frame_.program().slots()[static_cast<size_t>(slot)].dtype);
      node.stop_requested = [this] { return failed_.load() || control_.stopping(); };
      node.done = [this, shared, &instruction, index, start](std::vector<Datum> outputs, std::exception_ptr error) {
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
      evaluate_deferred(std::move(node));
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
      leave_pending();
      frame_.rethrow_from(instruction);
    }
    leave_pending();
    return true;
  }

  void take(const Instruction& instruction, std::vector<Datum> outputs, uint64_t start) {
    const auto slots = frame_.program().operands(instruction).subspan(instruction.num_inputs);
    for (size_t i = 0; i < slots.size(); ++i)
      if (slots[i] >= 0) frame_.state().hold(slots[i], std::move(outputs[i]));
    if (control_.recorder) control_.recorder->record(instruction.record_name, RecordKind::node, start, read_ticks());
    if (control_.observer) control_.call([&] { control_.observer->after(frame_, instruction); });
  }

  // On whatever thread the kernel ended: nothing else is run here, ready nodes go to the queue.
  void end_pending(const Instruction& instruction, int32_t index, std::vector<Datum> outputs, std::exception_ptr error, uint64_t start) {
    try {
      try {
        // Nothing of the error may be left here when the run's own thread has it.
        if (error) std::rethrow_exception(std::exchange(error, nullptr));
        if (!failed_.load()) take(instruction, std::move(outputs), start);
      } catch (...) {
        frame_.rethrow_from(instruction);
      }
    } catch (...) {
      fail(std::current_exception());
    }
    if (!failed_.load()) {
      release(index);
      if (limited_) state_.done[static_cast<size_t>(index)] = 1;
      const uint32_t last = plan_.first_successor[static_cast<size_t>(index) + 1];
      bool news = false;
      for (uint32_t k = plan_.first_successor[static_cast<size_t>(index)]; k < last && !interrupted_.load(); ++k)
        if (count_down(plan_.successors[k])) {
          note_ready(plan_.successors[k]);
          publish(plan_.successors[k]);
          news = true;
        }
      if (news) tell();
      remaining_.fetch_sub(1);
    }
    leave_pending();
  }

  // A kernel that goes on elsewhere still has the frame.
  void wait_for_pending() {
    std::unique_lock lock(pending_mutex_);
    pending_changed_.wait(lock, [&] { return pending_ == 0; });
  }

  void enter_pending() {
    std::lock_guard lock(pending_mutex_);
    ++pending_;
  }
  // The last thing that a thread does here: the run may be gone afterwards.
  void leave_pending() {
    std::lock_guard lock(pending_mutex_);
    if (attached_) control_.pool->nudge();
    --pending_;
    pending_changed_.notify_all();
  }

  bool count_down(int32_t counter) {
    std::atomic_ref<int32_t> left(state_.counters[static_cast<size_t>(counter)]);
    // The last one needs no atomic subtraction: all others have done theirs.
    if (left.load(std::memory_order_acquire) == 1) return true;
    return left.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }

  void release(int32_t index) {
    const uint32_t last = plan_.first_touch[static_cast<size_t>(index) + 1];
    for (uint32_t k = plan_.first_touch[static_cast<size_t>(index)]; k < last; ++k)
      if (count_down(plan_.touches[k].counter)) frame_.state().drop(plan_.touches[k].slot);
  }

  void fail(std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    if (failed_.load()) return;
    error_ = std::move(error);
    failed_.store(true);
  }

  // There is one for every thread; a thread that waits inside a node may take a second node.
  std::unique_ptr<ParallelState::Worker> take_worker() {
    std::lock_guard lock(mutex_);
    if (state_.idle.empty()) state_.prepare(frame_.program().instructions().size(), state_.num_workers + 1);
    auto worker = std::move(state_.idle.back());
    state_.idle.pop_back();
    return worker;
  }
  void give_back(std::unique_ptr<ParallelState::Worker> worker) {
    std::lock_guard lock(mutex_);
    state_.idle.push_back(std::move(worker));
  }

  Frame& frame_;
  const ParallelPlan& plan_;
  ParallelState& state_;
  const RunControl& control_;
  const int limit_;  // nodes at once
  const bool limited_ = control_.pass && !frame_.program().is_body();
  bool attached_ = false;
  std::atomic<int> active_{0}, queued_{0};
  std::atomic<int64_t> remaining_;
  std::atomic<bool> failed_{false}, interrupted_{false};
  std::mutex pending_mutex_;
  std::condition_variable pending_changed_;
  int pending_ = 0;  // kernels that may go on elsewhere
  std::mutex mutex_;
  std::exception_ptr error_;
};

void run_parallel(Frame& frame) { ParallelRun(frame).run(); }

bool worth_parallel(const Program& program, const Binding& binding, const RunControl& control) {
  return program.parallel() && (program.always_parallel() || binding.wide()) && control.pool && control.inter_op_threads != 1;
}

ParallelState& Frame::parallel_state() {
  if (!parallel_state_) parallel_state_ = std::make_unique<ParallelState>(*program_.parallel(), program_.instructions().size(), 1);
  return *parallel_state_;
}

}  // namespace treadle::exec
