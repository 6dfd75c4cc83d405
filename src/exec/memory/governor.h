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

/// An owner of memory that it can free while the memory is idle.
class MemoryKeeper {
 public:
  /// Frees idle memory that is charged to `full`, until enough() returns true; memory that is needed last goes first. Called under the
  /// governor's mutex. Does not touch memory of a run in progress, which itself keeps to the limits before its next node.
  /// @return the last result of enough(), which is not called again after true; false if it was never called.
  virtual bool give_way(const MemoryAccount& full, const std::function<bool()>& enough) = 0;

 protected:
  ~MemoryKeeper() = default;
};

/// True if bytes charged to `account` are charged to `full` too.
bool counts_for(const MemoryAccount& account, const MemoryAccount& full);
/// Returns the account without room for this many more bytes that is highest in the hierarchy, from this one upwards. Null: all have room.
const MemoryAccount* account_without_room(const MemoryAccount& account, size_t size_bytes);

/// Serialises how runs get memory. Each session has a governor; all sessions of a job share one. Without a limit, the mutex is not used.
class Governor {
 public:
  std::mutex mutex;     ///< held while looking for memory, freeing it for others, or changing a limit
  Admission admission;  ///< guarded by `mutex`, except for methods that need none

  /// @param frames  the keeper owns idle frames, which are asked first because they cost least to free.
  void add(MemoryKeeper& keeper, bool frames);
  void remove(MemoryKeeper& keeper);
  /// Asks all keepers, except the one that calls this function, to free memory until enough() returns true. @pre the caller holds `mutex`
  /// @return the last result of enough()
  bool make_room(const MemoryAccount& full, const std::function<bool()>& enough, const MemoryKeeper* asking = nullptr);

  /// Changes a limit; runs in progress notice it at their next node. Any thread may call it.
  void set_limit(MemoryAccount& account, size_t limit_bytes);
  /// Frees idle memory until the account is within its limit. @pre the caller holds `mutex`
  void keep_limit(const MemoryAccount& account);
  /// Returns a number that changes with every limit. Any thread may call it.
  uint64_t generation() const { return generation_.load(std::memory_order_relaxed); }

  /// Waits until ready() returns true; ready() may throw. @throws the interruption's error, such as Error(cancelled)
  template <typename Ready>
  void wait(std::unique_lock<std::mutex>& lock, const sharing::Interruption& interruption, Ready&& ready) {
    // Maximum time until ready() is called again, since interruptions and runs without a limit do not notify.
    constexpr std::chrono::milliseconds kLook{5};
    for (; !ready(); interruption.check(interruption.context)) changed_.wait_for(lock, kLook);
  }
  /// Wakes the waiting runs because memory may be free. Any thread may call it.
  void notify() { changed_.notify_all(); }

  /// Lets a run proceed only while no other run of the same owner (a program or a session) does. For runs on devices, which have no pass
  /// and are not counted by Admission.
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
  // A forked child lacks the threads whose runs were counted, and the thread that had locked the mutex.
  const ForkReset reset_{[this] {
    renew_in_child(mutex);
    renew_in_child(changed_);
    renew_in_child(admission);
    renew_in_child(exclusive_owners_);
  }};
};

}  // namespace treadle::exec
