// What the runs that share limits of memory have in common: the mutex, who holds memory that can be freed, and who waits for it.
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

/// Holds memory that it can free while nobody uses it.
class MemoryKeeper {
 public:
  /// Frees idle memory that is charged to `full`, first what is used last, until enough(). Called under the governor's mutex. What a run
  /// under way uses stays: the run itself keeps to the limits before its next node.
  /// @return the last enough(), which is not called again once it was true; false if it was never called.
  virtual bool give_way(const MemoryAccount& full, const std::function<bool()>& enough) = 0;

 protected:
  ~MemoryKeeper() = default;
};

/// True if what is charged to `account` is charged to `full` as well.
bool counts_for(const MemoryAccount& account, const MemoryAccount& full);
/// Returns the uppermost account, of this one and those above it, that has no room for so many bytes more. Null: all have.
const MemoryAccount* account_without_room(const MemoryAccount& account, size_t size_bytes);

/// One per session, or one for all sessions of a job. Where there is no limit nobody takes the mutex.
class Governor {
 public:
  std::mutex mutex;     ///< held by whoever looks for memory, frees some for others, or changes a limit
  Admission admission;  ///< under the mutex, but for what takes none

  /// @param frames  the keeper holds idle frames. They cost the least, and are asked first.
  void add(MemoryKeeper& keeper, bool frames);
  void remove(MemoryKeeper& keeper);
  /// Under the mutex: asks all keepers but `asking` to free memory until enough(), which is not called again then. @return the last
  /// enough()
  bool make_room(const MemoryAccount& full, const std::function<bool()>& enough, const MemoryKeeper* asking = nullptr);

  /// Runs under way notice the new limit at their next node. Any thread may call it.
  void set_limit(MemoryAccount& account, size_t limit_bytes);
  /// Under the mutex: idle memory is freed until the account keeps its limit.
  void keep_limit(const MemoryAccount& account);
  /// A number that changes with every limit. Any thread may ask.
  uint64_t generation() const { return generation_.load(std::memory_order_relaxed); }

  /// Waits until ready(), which may throw as well. @throws what ends the run meanwhile
  template <typename Ready>
  void wait(std::unique_lock<std::mutex>& lock, const sharing::Interruption& interruption, Ready&& ready) {
    constexpr std::chrono::milliseconds kLook{5};  // nobody tells of what else may end the run, nor of runs that have no limit
    for (; !ready(); interruption.check(interruption.context)) changed_.wait_for(lock, kLook);
  }
  /// Tells those who wait that memory may be free. Any thread may call it.
  void notify() { changed_.notify_all(); }

  /// A run that goes on while no other one of the same owner, a program or a session, does. Runs on devices are exclusive, and have no
  /// pass: Admission does not count them.
  class Exclusive {
   public:
    /// @throws what ends the run while it waits
    Exclusive(Governor& governor, const void* owner, const sharing::Interruption& interruption);
    ~Exclusive();
    Exclusive(const Exclusive&) = delete;
    Exclusive& operator=(const Exclusive&) = delete;

   private:
    Governor& governor_;
    const void* const owner_;
  };

 private:
  std::condition_variable changed_;  // a run has left, or a limit is another one
  std::atomic<uint64_t> generation_{0};
  std::list<MemoryKeeper*> keepers_;
  ForkMutex keepers_mutex_;  // a fork waits until the list is whole
  std::set<const void*> exclusive_owners_;
  // A forked child lacks the threads whose runs were counted, and the one that held the mutex.
  const ForkReset reset_{[this] {
    renew_in_child(mutex);
    renew_in_child(changed_);
    renew_in_child(admission);
    renew_in_child(exclusive_owners_);
  }};
};

}  // namespace treadle::exec
