// How a run is done, apart from what it computes: threads, what may end it, who watches it, and where its outputs go.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "core/recorder.h"

namespace treadle {
class Allocator;
class Device;
class MemoryAccount;
class Storage;
class ThreadPool;
struct AllocationContext;
struct Node;
namespace sharing {
class JobState;
struct Interruption;
}  // namespace sharing
}  // namespace treadle

namespace treadle::exec {

class MemoryPass;
class RunState;
struct Instruction;

/// Watches a run: called around every instruction, those of bodies included, on the thread that runs it; by several threads at once where
/// the executor is parallel. What it throws ends the run.
class Observer {
 public:
  virtual ~Observer() = default;
  /// The instruction may run: nothing that it waits for is left but its turn.
  virtual void ready(const RunState& state, const Instruction& instruction) = 0;
  virtual void before(const RunState& state, const Instruction& instruction) = 0;
  /// @param device  that it ran on; null: the host
  virtual void after(const RunState& state, const Instruction& instruction, const Device* device) = 0;
};

/// Between a run and a caller who may leave before it ends, because a kernel does not return.
struct Caller {
  std::mutex mutex;                             ///< held while anything is touched that belongs to the caller: flags, callbacks
  bool left = false;                            ///< from then on nothing is
  bool committing = false;                      ///< from then on it stays: what is left is short, and not to be left half done
  std::atomic<const Node*> under_way{nullptr};  ///< a node that has begun and not ended
};

/// A node that runs, for a caller that may leave it; null: it stays.
class UnderWay {
 public:
  UnderWay(Caller* caller, const Node* node) : caller_(caller), node_(node) {
    if (caller_) before_ = caller_->under_way.exchange(node);
  }
  ~UnderWay() {
    const Node* node = node_;
    if (caller_) caller_->under_way.compare_exchange_strong(node, before_);  // another one may have begun meanwhile
  }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

 private:
  Caller* const caller_;
  const Node* const node_;
  const Node* before_ = nullptr;
};

/// What may end a run before its end: flags that others set, a deadline, a caller who leaves.
struct RunStop {
  // True: the run stops before the next instruction, or the next iteration of a loop. The flags are those of the run's options, of its
  // token and of the session.
  const std::atomic<bool>* cancel = nullptr;
  const std::atomic<bool>* token = nullptr;
  const std::atomic<bool>* closing = nullptr;
  std::optional<std::chrono::steady_clock::time_point> deadline;
  Caller* caller = nullptr;                ///< null: the caller stays until the end
  std::atomic<bool>* committed = nullptr;  ///< set when updates begin

  /// Calls what belongs to the caller, unless it has left. @throws Error(timed_out)
  template <typename Callback>
  void call(Callback&& callback) const {
    if (!caller) return callback();
    std::lock_guard lock(caller->mutex);
    if (caller->left) throw_left();
    callback();
  }
  bool requested() const {
    return (cancel && cancel->load(std::memory_order_relaxed)) || (token && token->load(std::memory_order_relaxed)) ||
           (closing && closing->load(std::memory_order_relaxed));
  }
  /// What check() looks at, as an answer, for who must not throw: kernels that go on elsewhere. True once the caller has left.
  bool stopping() const {
    auto now = [&] { return requested() || (deadline && std::chrono::steady_clock::now() > *deadline); };
    if (!caller) return now();
    std::lock_guard lock(caller->mutex);
    return caller->left || now();
  }
  /// @throws Error(cancelled or timed_out)
  void check() const {
    if (caller)
      call([&] { check_closely(); });
    else if (requested() || deadline)
      check_closely();
  }
  /// Before what must not be left half done: from then on nobody checks. @throws Error(cancelled or timed_out)
  void commit() const;
  /// For waits: check(), called from time to time. Holds a pointer to this.
  sharing::Interruption interruption() const;

 private:
  void check_closely() const;
  [[noreturn]] static void throw_left();
};

/// Where a run is recorded.
struct RunRecording {
  Recorder* recorder = nullptr;  ///< null: nowhere
  uint16_t run = 0;              ///< the run's number in the recorder
  bool kernel_phases = false;    ///< parts of kernels are recorded too

  /// @pre there is a recorder
  void record_node(uint32_t name, uint64_t start, uint64_t end, double flops = 0, double bytes = 0) const {
    recorder->record(name, RecordKind::node, start, end, static_cast<int64_t>(flops), static_cast<int64_t>(bytes), run);
  }
};

/// Threads that a run may use.
struct RunThreads {
  ThreadPool* pool = nullptr;      ///< null: the caller's thread alone
  int max_threads = 0;             ///< what bindings are made for: of the largest pool that runs may use; 0: of `pool`
  int intra_op = 0;                ///< of one node, where nodes run at once; 0: all of the pool
  int inter_op = 0;                ///< nodes at once, by readiness; 0: as many as the pool has threads, 1: in order
  bool denormals_as_zero = false;  ///< for threads other than the run's own, which is in that mode

  /// What bindings are made for.
  int most() const;
};

/// Where a run's memory comes from.
struct RunRoom {
  const AllocationContext* context = nullptr;  ///< for threads other than the run's own, which has a scope
  MemoryPass* pass = nullptr;                  ///< of a session with a memory limit; null: there is none

  /// That the run's memory is charged to; null: to nobody.
  const MemoryAccount* account() const;
};

/// How a run takes its feeds.
struct FeedRules {
  bool later = false;       ///< they may be undefined at the start: Run::feed()
  bool on_devices = false;  ///< those that lie on devices are taken as they are; otherwise copied to the host
  bool kept = false;        ///< no output is made where a feed lies: feeds may be read until the end
};

/// How a run is done, apart from what it computes.
struct RunControl {
  RunStop stop;
  RunThreads threads;
  RunRoom memory;
  RunRecording recording;
  FeedRules feeds;
  Observer* observer = nullptr;
  sharing::JobState* job = nullptr;  ///< what the run gives way for, and how much time it may take
  uint64_t run_id = 0;               ///< what randomness depends on, besides seed and node
  bool counts_nodes = false;         ///< how long they take, in the program's counters

  bool watched() const { return recording.recorder || observer || stop.deadline || stop.caller || counts_nodes; }
};

/// Where a run may put an output whose extents the feeds' shapes determine, if it is not bound.
struct OutputMemory {
  std::shared_ptr<Storage> storage;      ///< used if it is large enough
  bool reusable = false;                 ///< new memory is made larger than needed: it will come back for outputs that grow
  std::shared_ptr<Allocator> allocator;  ///< where new memory comes from; null: from where all memory of the run comes
  int appends_to = -1;                   ///< a feed that the output begins with, in memory that may be written behind its end
  std::shared_ptr<Device> device;        ///< where the output is to be after the run; null: on the host
  bool stays = false;                    ///< it may stay on the device that makes it
  bool made_in_run = false;              ///< nobody makes it ahead
  int grows_from = -1;  ///< a feed whose memory nobody else has: its rows may be moved within it if they are the output's (Slide)
};

}  // namespace treadle::exec
