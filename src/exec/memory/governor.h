// Coordinates runs that share memory limits: their mutex, the owners of memory that can be freed, and the waiting runs.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <set>

#include "core/base/fork_mutex.h"
#include "exec/memory/admission.h"
#include "sharing/turn.h"
#include "treadle/allocator.h"

namespace treadle::exec {

/// An object that owns memory and can free it while no run uses it.
class MemoryKeeper {
 public:
  /// Frees idle memory that is charged to `full`, until enough() returns true; memory that will be needed last is freed first. Called under
  /// the governor's mutex. Does not free memory of a run in progress: such a run checks the limits itself before its next node.
  /// @return the last result of enough(), which is not called again after true; false if it was never called.
  virtual bool give_way(const MemoryAccount& full, const std::function<bool()>& enough) = 0;

 protected:
  ~MemoryKeeper() = default;
};

/// True if bytes charged to `account` are charged to `full` too.
bool counts_for(const MemoryAccount& account, const MemoryAccount& full);
/// Returns the topmost account, among this one and its parents, whose limit does not permit this many more bytes; null if all permit them.
const MemoryAccount* account_without_room(const MemoryAccount& account, size_t size_bytes);

/// Lets runs take memory one after the other. Each session has a governor; a job's sessions share one. Without a limit, no run locks it.
class Governor {
 public:
  std::mutex mutex;     ///< held while looking for memory, freeing it for others, or changing a limit
  Admission admission;  ///< guarded by `mutex`, except for methods that need none

  /// @param frames  true if the keeper owns idle frames (memory of finished runs). They are freed first, because they cost least to free.
  void add(MemoryKeeper& keeper, bool frames);
  void remove(MemoryKeeper& keeper);
  /// Asks all keepers, except the one that calls this function, to free memory until enough() returns true. @pre the caller holds `mutex`
  /// @return the last result of enough()
  bool make_room(const MemoryAccount& full, const std::function<bool()>& enough, const MemoryKeeper* asking = nullptr);

  /// Changes a limit; runs in progress notice it at their next node. Any thread may call it.
  void set_limit(MemoryAccount& account, size_t limit_bytes);
  /// Frees idle memory until the account is within its limit. @pre the caller holds `mutex`
  void keep_limit(const MemoryAccount& account);
  /// Returns a number that changes whenever a limit changes. Any thread may call it.
  uint64_t generation() const { return generation_.load(std::memory_order_relaxed); }

  /// Waits until ready() returns true; ready() may throw. @throws the interruption's error, such as Error(cancelled)
  template <typename Ready>
  void wait(std::unique_lock<std::mutex>& lock, const sharing::Interruption& interruption, Ready&& ready) {
    // ready() is called at least this often, because interruptions and runs without a limit do not wake this thread.
    constexpr std::chrono::milliseconds kLook{5};
    for (; !ready(); interruption.check(interruption.context)) changed_.wait_for(lock, kLook);
  }
  /// Wakes the waiting runs because memory may be free. Any thread may call it.
  void notify() { changed_.notify_all(); }

  /// Lets a run proceed only while no other run of the same owner (a program or a session) is in progress. Runs on devices use it, because
  /// they have no MemoryPass and Admission does not count them.
  class Exclusive {
   public:
    /// @throws the interruption's error, such as Error(cancelled), while waiting
    Exclusive(Governor& governor, const void* owner, const sharing::Interruption& interruption);
    ~Exclusive();
    Exclusive(const Exclusive&) = delete;
    Exclusive& operator=(const Exclusive&) = delete;

   private:
    Governor& governor_;
    const void* const owner_;
  };

 private:
  std::condition_variable changed_;  // signalled when a run has left or a limit has changed
  std::atomic<uint64_t> generation_{0};
  std::list<MemoryKeeper*> keepers_;
  ForkMutex keepers_mutex_;  // fork() waits until no thread changes the list
  std::set<const void*> exclusive_owners_;
  // In a forked child, the threads of the counted runs do not exist, nor does a thread that had locked the mutex. So all state starts anew.
  const ForkReset reset_{[this] {
    renew_in_child(mutex);
    renew_in_child(changed_);
    renew_in_child(admission);
    renew_in_child(exclusive_owners_);
  }};
};

}  // namespace treadle::exec
