// What the runs that share limits of memory have in common: who is under way, who waits, and who can let go of what.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <set>

#include "core/fork_mutex.h"
#include "sharing/turn.h"
#include "treadle/allocator.h"

namespace treadle::exec {

/// Holds memory that it can do without while nobody uses it.
class MemoryKeeper {
 public:
  /// Lets go of idle memory that is charged to `full`, first of what is used last, until enough(). Under the governor's mutex. What a run
  /// under way uses stays: the run itself keeps to the limits before its next node.
  /// @return the last enough(), which is not called again once it was true; false if it was never called.
  virtual bool give_way(const MemoryAccount& full, const std::function<bool()>& enough) = 0;

 protected:
  ~MemoryKeeper() = default;
};

/// True if what is charged to `account` is charged to `full`.
bool counts_for(const MemoryAccount& account, const MemoryAccount& full);
/// Of the account and those above it the uppermost that has no room for so many bytes more; null: all have.
const MemoryAccount* account_without_room(const MemoryAccount& account, size_t size_bytes);

/// Of a session, or of all sessions of a job. Where there is no limit nobody takes the mutex.
struct Governor {
  std::mutex mutex;
  std::condition_variable left;         // told when a run has left, or a limit is another one
  std::atomic<int> arriving{0};         // runs on their way in: their frames may hold memory that they let go, or come in with
  std::atomic<int> inside{0};           // runs that will leave by themselves
  int waiting_inside = 0;               // of those, runs with a node that waits for the others. Under the mutex
  int waiting_exclusive = 0;            // runs on their way in that a run under way may keep from it. Under the mutex
  int going_on = 0;                     // waiting nodes that take their memory all the same when nobody leaves any more. Under the mutex
  std::atomic<uint64_t> generation{0};  // of the limits: another one tells runs to look at them
  // By session's account: what runs that were let in may yet take; some of it may be in use already. Under the mutex.
  std::map<const MemoryAccount*, size_t> later_bytes;

  /// @param frames  it holds idle frames, which cost the least: those are asked first.
  void add(MemoryKeeper& holder, bool frames);
  void remove(MemoryKeeper& holder);
  /// Under the mutex: asks the holders but for `asking` until enough(), which is not called again then. @return the last enough()
  bool make_room(const MemoryAccount& full, const std::function<bool()>& enough, const MemoryKeeper* asking = nullptr);
  /// Runs under way see it at their next node. Any thread may call it.
  void set_limit(MemoryAccount& account, size_t limit_bytes);
  /// Under the mutex: who is idle keeps to the account's limit now.
  void keep_limit(const MemoryAccount& account);
  /// Until ready(), which may throw as well. @throws what ends the run meanwhile
  template <typename Ready>
  void wait(std::unique_lock<std::mutex>& lock, const sharing::Interruption& interruption, Ready&& ready) {
    constexpr std::chrono::milliseconds kLook{5};  // at what else may end the run: nobody tells of it
    for (; !ready(); interruption.check(interruption.context)) left.wait_for(lock, kLook);
  }
  /// A node waits for runs that leave by themselves. Made and ended under the mutex.
  class Waiting {
   public:
    /// @param nodes    of the run that wait; null: it is none that leaves by itself
    /// @param goes_on  all the same, when nobody leaves any more
    Waiting(Governor& governor, int* nodes, bool goes_on) : governor_(governor), nodes_(nodes), goes_on_(goes_on) {
      if (nodes_ && (*nodes_)++ == 0) ++governor_.waiting_inside;
      if (goes_on_) ++governor_.going_on;
    }
    ~Waiting() {
      if (nodes_ && --*nodes_ == 0) --governor_.waiting_inside;
      if (goes_on_) --governor_.going_on;
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Governor& governor_;
    int* const nodes_;
    const bool goes_on_;
  };
  /// A run that goes on while no other one of the same owner, a program or a session, does.
  class Exclusive {
   public:
    /// @throws Error(cancelled or timed_out)
    Exclusive(Governor& governor, const void* owner, const sharing::Interruption& interruption);
    ~Exclusive();
    Exclusive(const Exclusive&) = delete;
    Exclusive& operator=(const Exclusive&) = delete;

   private:
    Governor& governor_;
    const void* const owner_;
  };

 private:
  std::list<MemoryKeeper*> holders_;
  std::set<const void*> alone_;  // owners of runs that are exclusive
  ForkMutex holders_mutex_;      // a fork waits until the list is whole
  // A forked child lacks the threads whose runs were counted, and the one that held the mutex.
  const ForkReset reset_{[this] {
    renew_in_child(mutex);
    renew_in_child(left);
    renew_in_child(later_bytes);
    renew_in_child(alone_);
    arriving = inside = waiting_inside = waiting_exclusive = going_on = 0;
  }};
};

}  // namespace treadle::exec
