// A thread of the process that hears when another process changes a job's memory limit, for jobs that hold memory but do not run.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "core/fork_mutex.h"
#include "sharing/turn.h"

namespace treadle::sharing {

class MemoryWatch {
 public:
  /// Holds the memory of a job.
  class Client {
   public:
    /// @param may_wait  false: the caller does not wait for a node that is under way; it is called again if this did nothing.
    virtual void limit_changed(bool may_wait) = 0;

   protected:
    Client() = default;
    virtual ~Client() = default;
  };

  static MemoryWatch& get();
  /// Starts the client's thread, if there is none in this process. It tells the client once in any case, which may have read a limit that
  /// has changed since.
  void add(Client& client, JobState& job);
  void remove(Client& client);
  /// On the thread that has changed the limits of a job of this process: at once, where nothing is under way.
  void tell(int slot);

 private:
  struct Watched {
    Watched(Client& of, JobState& in) : client(of), job(in) {}
    Client& client;
    JobState& job;
    const uint32_t generation = fork_generation();  // a child lacks the thread
    std::atomic<bool> stop{false};
    std::thread thread;
  };
  MemoryWatch();
  static void listen(Watched& watched, uint32_t seen);
  std::list<Watched>::iterator find(const Client& client);

  std::mutex mutex_;
  std::list<Watched> all_;
  ForkMutex list_mutex_;  // a fork waits until the list is whole
  const ForkReset reset_;
};

}  // namespace treadle::sharing
