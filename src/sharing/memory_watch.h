// A thread of the process that hears when another process changes a job's memory limit, for jobs that hold memory but do not run.
#pragma once

#include <atomic>
#include <list>
#include <mutex>
#include <thread>

#include "core/fork_mutex.h"
#include "sharing/turn.h"

namespace treadle::sharing {

class MemoryWatch {
 public:
  /// Holds memory for a job.
  class Client {
   public:
    /// @param may_wait  false: the caller does not wait for a node that is under way; it is called again if this did nothing.
    virtual void limit_changed(bool may_wait) = 0;

   protected:
    Client() = default;
    virtual ~Client() = default;
  };

  static MemoryWatch& get();
  /// Starts the job's thread with its first client, and ends it with the last one.
  void add(Client& client, JobState& job);
  void remove(Client& client);
  /// On the thread that has changed the limits of a job of this process: at once, where nothing is under way.
  void tell(int slot);
  /// Asks the job's clients but for one to keep to its limits.
  void ask_others(const Client& client, JobState& job);

 private:
  struct Watched {
    JobState* job;
    std::list<Client*> clients;
    std::atomic<bool> stop{false};
    std::mutex mutex;  // of clients
    std::thread thread;
    uint32_t generation;  // of forks: a child lacks the thread
  };
  MemoryWatch();
  static void start(Watched& watched);
  template <typename Visit>
  void visit_clients(int slot, Visit&& visit);
  static void listen(Watched& watched, uint32_t seen);

  std::mutex mutex_;
  std::list<std::unique_ptr<Watched>> jobs_;
  ForkMutex lists_mutex_;  // a fork waits until the lists of jobs and clients are whole
  const ForkReset reset_;
};

}  // namespace treadle::sharing
