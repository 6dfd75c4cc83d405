// Everything that controls a run: threads, stop conditions, observers, memory and outputs.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "core/trace/recorder.h"

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

/// Observes a run. Called before and after every instruction, including those of bodies, on the thread that runs the instruction. If
/// instructions run in parallel, several threads call it at the same time. If it throws an exception, the run ends.
class Observer {
 public:
  virtual ~Observer() = default;
  /// Called when the instruction is ready, that is when all instructions that it depends on have run.
  virtual void ready(const RunState& state, const Instruction& instruction) = 0;
  virtual void before(const RunState& state, const Instruction& instruction) = 0;
  /// @param device  the device that the instruction ran on; null: the host
  virtual void after(const RunState& state, const Instruction& instruction, const Device* device) = 0;
};

/// State that a run and its caller share if the caller may return before the run ends, for example at a deadline while a kernel still runs.
struct Caller {
  std::mutex mutex;         ///< held while the run uses the caller's flags and callbacks
  bool left = false;        ///< true once the caller has returned; the run no longer uses its flags and callbacks
  bool committing = false;  ///< true once updates of state have begun: the caller then waits for the run's end, so that it misses no update
  std::atomic<const Node*> under_way{nullptr};  ///< a node that is running now (any of them, if there are several); null: none
};

/// While this object exists, Caller::under_way is this node. @param caller  null: the caller waits until the run's end
class UnderWay {
 public:
  UnderWay(Caller* caller, const Node* node) : caller_(caller), node_(node) {
    if (caller_) before_ = caller_->under_way.exchange(node);
  }
  ~UnderWay() {
    const Node* node = node_;
    if (caller_) caller_->under_way.compare_exchange_strong(node, before_);  // does nothing if another node has begun in the meantime
  }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

 private:
  Caller* const caller_;
  const Node* const node_;
  const Node* before_ = nullptr;
};

/// The conditions that end a run early: flags that other threads set, a deadline, a caller that returns before the run has ended.
struct RunStop {
  // If one of these flags is true, the run stops before the next instruction or loop iteration. The flags belong to the run's options, its
  // cancellation token and its session.
  const std::atomic<bool>* cancel = nullptr;
  const std::atomic<bool>* token = nullptr;
  const std::atomic<bool>* closing = nullptr;
  std::optional<std::chrono::steady_clock::time_point> deadline;
  Caller* caller = nullptr;                ///< null: the caller waits until the run's end
  std::atomic<bool>* committed = nullptr;  ///< set to true when updates of state begin

  /// Calls a callback of the caller. @throws Error(timed_out) if the caller has already returned
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
  /// Returns true if check() would throw. For kernels on threads outside of the run. Also returns true if the caller of the run has already
  /// returned.
  bool stopping() const {
    auto now = [&] { return requested() || (deadline && std::chrono::steady_clock::now() > *deadline); };
    if (!caller) return now();
    std::lock_guard lock(caller->mutex);
    return caller->left || now();
  }
  /// Throws if the run has to stop. @throws Error(cancelled or timed_out)
  void check() const {
    if (caller)
      call([&] { check_closely(); });
    else if (requested() || deadline)
      check_closely();
  }
  /// Called before updates of state: checks for the last time, and records that updates have begun. @throws Error(cancelled or timed_out)
  void commit() const;
  /// Returns a function that calls check(), for code that waits and calls it from time to time. The function refers to this object.
  sharing::Interruption interruption() const;

 private:
  void check_closely() const;
  [[noreturn]] static void throw_left();
};

/// The recorder of a run, and what it records.
struct RunRecording {
  Recorder* recorder = nullptr;  ///< null: the run is not recorded
  uint16_t run = 0;              ///< the run's number in the recorder
  bool kernel_phases = false;    ///< true: the phases of kernels are recorded too

  /// @pre there is a recorder
  void record_node(uint32_t name, uint64_t start, uint64_t end, double flops = 0, double bytes = 0) const {
    recorder->record(name, RecordKind::node, start, end, static_cast<int64_t>(flops), static_cast<int64_t>(bytes), run);
  }
};

/// The threads that a run may use.
struct RunThreads {
  ThreadPool* pool = nullptr;      ///< null: only the caller's thread runs nodes
  int max_threads = 0;             ///< number of threads for which kernels are bound, at least as many as any run uses; 0: those of `pool`
  int intra_op = 0;                ///< maximum number of threads per node, if nodes run in parallel; 0: all threads of the pool
  int inter_op = 0;                ///< maximum number of nodes in parallel; 0: as many as the pool has threads, 1: nodes run in sequence
  bool denormals_as_zero = false;  ///< true: set this mode on the pool's threads; the run's own thread has it already

  /// Returns the number of threads that kernels are bound for.
  int most() const;
};

/// The allocator of a run's memory, and the access to its memory limit.
struct RunRoom {
  const AllocationContext* context = nullptr;  ///< for the pool's threads; the run's own thread already has an AllocationScope
  MemoryPass* pass = nullptr;                  ///< access to the limited memory; null: there is no limit

  /// The account to which the run's memory is charged; null: none.
  const MemoryAccount* account() const;
};

/// Rules for a run's feeds.
struct FeedRules {
  bool later = false;       ///< true: feeds may be undefined at the start, and follow by Run::feed()
  bool on_devices = false;  ///< true: feeds on devices are used there if possible; false: they are copied to the host
  bool kept = false;        ///< true: no output may overwrite a feed, because feeds may be read until the run's end
};

/// Everything that the caller decides about a run, except feeds and outputs.
struct RunControl {
  RunStop stop;
  RunThreads threads;
  RunRoom memory;
  RunRecording recording;
  FeedRules feeds;
  Observer* observer = nullptr;
  sharing::JobState* job = nullptr;  ///< the job of the run, which decides when the run may use shared devices; null: none
  uint64_t run_id = 0;               ///< seeds random operators, together with their own seed and the node
  bool counts_nodes = false;         ///< true: add the times of nodes to the program's counters (Plans::counters)

  bool watched() const { return recording.recorder || observer || stop.deadline || stop.caller || counts_nodes; }
};

/// The memory that the caller wants for an output without bound memory. Most members apply only if the extents are known before the run.
struct OutputMemory {
  std::shared_ptr<Storage> storage;      ///< memory to use if it is large enough
  bool reusable = false;                 ///< true: allocate extra bytes; the caller will pass the memory again for an output that grows
  std::shared_ptr<Allocator> allocator;  ///< allocator for new memory; null: the run's own
  int appends_to = -1;                   ///< index of a feed that the output begins with, and in whose memory it may be stored; -1: none
  std::shared_ptr<Device> device;        ///< device on which the output is wanted after the run; null: the host
  bool stays = false;                    ///< true: the output may remain on the device that makes it
  bool made_in_run = false;              ///< true: the memory is allocated when the output is made, rather than by place() before the run
  /// Index of a feed that only this run uses, so that its rows may be moved within its memory to become the output (Slide); -1: none.
  int grows_from = -1;
};

}  // namespace treadle::exec
