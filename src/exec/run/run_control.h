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

/// Watches a run. Called before and after every instruction, including those of bodies, on the thread that runs it. If instructions run in
/// parallel, several threads call it at the same time. An exception that it throws ends the run.
class Observer {
 public:
  virtual ~Observer() = default;
  /// The instruction is ready: everything that it depends on has run.
  virtual void ready(const RunState& state, const Instruction& instruction) = 0;
  virtual void before(const RunState& state, const Instruction& instruction) = 0;
  /// @param device  the device that it ran on; null: the host
  virtual void after(const RunState& state, const Instruction& instruction, const Device* device) = 0;
};

/// Shared by a run and its caller, if the caller may return before the run ends, for example at a deadline while a kernel still runs.
struct Caller {
  std::mutex mutex;         ///< held while the run accesses the caller's flags and callbacks
  bool left = false;        ///< the caller has returned: the run no longer accesses them
  bool committing = false;  ///< updates of state have begun: the caller now waits until the run ends, so that none of them is missing
  std::atomic<const Node*> under_way{nullptr};  ///< a node that is running (one of them, if there are several); null: none
};

/// Sets Caller::under_way while a node runs. @param caller  null: the caller waits until the run's end
class UnderWay {
 public:
  UnderWay(Caller* caller, const Node* node) : caller_(caller), node_(node) {
    if (caller_) before_ = caller_->under_way.exchange(node);
  }
  ~UnderWay() {
    const Node* node = node_;
    if (caller_) caller_->under_way.compare_exchange_strong(node, before_);  // another node may have begun meanwhile
  }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

 private:
  Caller* const caller_;
  const Node* const node_;
  const Node* before_ = nullptr;
};

/// The conditions that end a run early: flags that other threads set, a deadline, a caller that leaves.
struct RunStop {
  // If one of these flags is true, the run stops before the next instruction or loop iteration. They belong to the run's options, its token
  // and its session.
  const std::atomic<bool>* cancel = nullptr;
  const std::atomic<bool>* token = nullptr;
  const std::atomic<bool>* closing = nullptr;
  std::optional<std::chrono::steady_clock::time_point> deadline;
  Caller* caller = nullptr;                ///< null: the caller stays until the run's end
  std::atomic<bool>* committed = nullptr;  ///< set to true when updates of state begin

  /// Calls a callback of the caller. @throws Error(timed_out) if the caller has returned already
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
  /// Returns true where check() would throw, for kernels that run on threads outside of the run. Also returns true if the caller of the run
  /// has returned already.
  bool stopping() const {
    auto now = [&] { return requested() || (deadline && std::chrono::steady_clock::now() > *deadline); };
    if (!caller) return now();
    std::lock_guard lock(caller->mutex);
    return caller->left || now();
  }
  /// Stops a run that must end. @throws Error(cancelled or timed_out)
  void check() const {
    if (caller)
      call([&] { check_closely(); });
    else if (requested() || deadline)
      check_closely();
  }
  /// Called before updates of state: checks a last time, and records that they begin. @throws Error(cancelled or timed_out)
  void commit() const;
  /// Returns a function that calls check(), for code that waits and calls it from time to time. It refers to this object.
  sharing::Interruption interruption() const;

 private:
  void check_closely() const;
  [[noreturn]] static void throw_left();
};

/// The recorder of a run, and which events it records.
struct RunRecording {
  Recorder* recorder = nullptr;  ///< null: the run is not recorded
  uint16_t run = 0;              ///< the run's number in the recorder
  bool kernel_phases = false;    ///< true: also records the phases of kernels

  /// @pre there is a recorder
  void record_node(uint32_t name, uint64_t start, uint64_t end, double flops = 0, double bytes = 0) const {
    recorder->record(name, RecordKind::node, start, end, static_cast<int64_t>(flops), static_cast<int64_t>(bytes), run);
  }
};

/// The threads that a run may use.
struct RunThreads {
  ThreadPool* pool = nullptr;  ///< null: only the caller's thread runs
  int max_threads = 0;         ///< threads that kernels are bound for: those of the largest pool that any run may use; 0: those of `pool`
  int intra_op = 0;            ///< maximum number of threads per node, if nodes run in parallel; 0: all of the pool
  int inter_op = 0;            ///< maximum number of nodes in parallel; 0: as many as the pool has threads, 1: nodes run in order
  bool denormals_as_zero = false;  ///< set this mode on the pool's threads; the run's own thread is in it already

  /// Returns the number of threads that kernels are bound for.
  int most() const;
};

/// The allocator and limit of a run's memory.
struct RunRoom {
  const AllocationContext* context = nullptr;  ///< allocation context for the pool's threads; the run's own thread has a scope already
  MemoryPass* pass = nullptr;                  ///< the run's admission under a memory limit; null: there is no limit

  /// The account that the run's memory is charged to; null: none.
  const MemoryAccount* account() const;
};

/// Rules for a run's feeds.
struct FeedRules {
  bool later = false;       ///< feeds may be undefined at the start, and come later by Run::feed()
  bool on_devices = false;  ///< feeds on devices are taken as they are; false: they are copied to the host
  bool kept = false;        ///< no output may overwrite a feed, as feeds may be read until the run's end
};

/// Everything about a run that its caller decides, except feeds and outputs.
struct RunControl {
  RunStop stop;
  RunThreads threads;
  RunRoom memory;
  RunRecording recording;
  FeedRules feeds;
  Observer* observer = nullptr;
  sharing::JobState* job = nullptr;  ///< the job that the run belongs to, which decides when it may use shared devices; null: none
  uint64_t run_id = 0;               ///< seeds random operators, together with their seed and node
  bool counts_nodes = false;         ///< count the times of nodes in the program's counters (Plans::counters)

  bool watched() const { return recording.recorder || observer || stop.deadline || stop.caller || counts_nodes; }
};

/// The caller's wishes for the memory of an output that is not bound. Most apply only if its extents are known before the run.
struct OutputMemory {
  std::shared_ptr<Storage> storage;      ///< memory to use if it is large enough
  bool reusable = false;                 ///< allocate headroom: the caller will offer the memory again for an output that grows
  std::shared_ptr<Allocator> allocator;  ///< allocator for new memory; null: the run's own
  int appends_to = -1;                   ///< index of a feed with which the output begins, and whose memory it may continue; -1: none
  std::shared_ptr<Device> device;        ///< device that the output is to be on after the run; null: the host
  bool stays = false;                    ///< the output may remain on the device that makes it
  bool made_in_run = false;              ///< the run makes the memory when it makes the output, instead of place() before the run
  /// Index of a feed whose memory belongs to nobody else, so that its rows may be moved within it to become the output's (Slide); -1: none.
  int grows_from = -1;
};

}  // namespace treadle::exec
