// The clients (sessions, trainers, joint modules) of the process, for its metrics.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/fork_mutex.h"
#include "session/in_flight.h"
#include "treadle/metrics.h"

namespace treadle {

struct Runtime;

/// Thread-safe.
class Clients {
 public:
  /// Never destroyed, since clients may outlive static objects.
  static Clients& of_process();

  /// From here on, read() may call the client's const methods from any thread.
  /// @param model  name of its model's graph
  void add(const Runtime& client, std::string model);
  /// Keeps the counts of the client. Does nothing if the client was not added.
  void remove(const Runtime& client) noexcept;
  Metrics read();

 private:
  using Labels = std::pair<std::string, std::string>;  // kind of client, and model
  struct Counts {
    RunCounts runs;
    CacheStatistics caches;
  };
  struct Client {
    const Runtime* runtime;
    Labels labels;
  };
  static Counts counts_of(const Runtime& client);

  std::mutex mutex_;      // locked before the mutexes of clients; while it is locked, all listed clients exist
  ForkMutex list_mutex_;  // guards the members below: fork() waits until no thread changes them
  std::list<Client> clients_;
  std::map<Labels, Counts> past_;  // counts of clients that have been removed
  const ForkReset reset_{[this] { renew_in_child(mutex_); }};
};

}  // namespace treadle
