// A thread that notices when another process changes a job's memory limit. It serves jobs that hold memory but compute nothing.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "core/base/fork_mutex.h"
#include "sharing/turn.h"

namespace treadle::sharing {

class MemoryWatch {
 public:
  /// An object that uses memory of a job.
  class Client {
   public:
    /// Called after a limit has changed.
    /// @param may_wait  false: must not wait for a running node. If it cannot act without waiting, a call with true follows
    virtual void limit_changed(bool may_wait) = 0;

   protected:
    Client() = default;
    virtual ~Client() = default;
  };

  static MemoryWatch& get();
  /// Starts the client's thread, if there is none in this process. It calls the client at least once, since the limit may have changed
  /// after the client read it.
  void add(Client& client, JobState& job);
  void remove(Client& client);
  /// Must be called by a thread that has changed the limits of a job of this process. The limits take effect at once if nothing is running.
  void tell(int slot);

 private:
  struct Watched {
    Watched(Client& of, JobState& in) : client(of), job(in) {}
    Client& client;
    JobState& job;
    const uint32_t generation = fork_generation();  // identifies the process, since a forked child does not have the thread
    std::atomic<bool> stop{false};
    std::thread thread;
  };
  MemoryWatch();
  static void listen(Watched& watched, uint32_t seen);
  std::list<Watched>::iterator find(const Client& client);

  std::mutex mutex_;
  std::list<Watched> all_;
  ForkMutex list_mutex_;  // fork() waits until the list is consistent
  const ForkReset reset_;
};

}  // namespace treadle::sharing
