// What the runs that share limits of memory have in common: who is under way, who waits, and who can let go of what.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <mutex>

#include "core/fork_mutex.h"
#include "exec/run/run_control.h"
#include "treadle/allocator.h"

namespace treadle::exec {

/// Of a session, or of all sessions of a job. Where there is no limit nobody takes the mutex.
struct Governor {
  std::mutex mutex;
  std::condition_variable left;    // told when a run has left, or a limit is another one
  std::atomic<int> arriving{0};    // runs on their way in: their frames may hold memory that they let go, or come in with
  std::atomic<int> inside{0};      // runs that will leave by themselves
  std::atomic<bool> alone{false};  // one of those that go on one at a time does
  std::atomic<uint64_t> generation{0};
  std::list<const std::function<void()>*> trims;  // free what idle frames hold
  // By session's account: what runs that were let in may yet take; some of it may be in use already. Under the mutex.
  std::map<const MemoryAccount*, size_t> later_bytes;

  void trim_all() const {
    for (const auto* trim : trims) (*trim)();
  }
  void add(const std::function<void()>& trim);
  void remove(const std::function<void()>& trim);
  /// Until ready(), which may throw as well. @throws what ends the run meanwhile
  template <typename Ready>
  void wait(std::unique_lock<std::mutex>& lock, const RunControl& control, Ready&& ready) {
    constexpr std::chrono::milliseconds kLook{5};  // at what else may end the run: nobody tells of it
    for (; !ready(); control.check()) left.wait_for(lock, kLook);
  }
  /// A run that goes on while no other one of its kind does.
  class Turn {
   public:
    /// @throws Error(cancelled or timed_out)
    Turn(Governor& governor, const RunControl& control);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Governor& governor_;
  };

 private:
  ForkMutex trims_mutex_;  // a fork waits until the list is whole
  // A forked child lacks the threads whose runs were counted, and the one that held the mutex.
  const ForkReset reset_{[this] {
    renew_in_child(mutex);
    renew_in_child(left);
    renew_in_child(later_bytes);
    arriving = inside = 0;
    alone = false;
  }};
};

}  // namespace treadle::exec
