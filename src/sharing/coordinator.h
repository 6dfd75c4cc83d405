// The coordinator: a policy that steers the jobs of a user, and ways to steer them from outside: a local socket, a file to read, a file
// that tells. All that it does is write to the job table; jobs go on without it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace treadle::sharing {

struct CoordinatorOptions {
  std::string policy = "give-way";
  int64_t period_ms = 100;   ///< between two looks of the policy
  std::string control_file;  ///< read when it changes: a line per job, "NAME-or-ID share=30 memory=2GiB"; empty: none
  std::string status_file;   ///< written once a second, as JSON; empty: none
};

/// Requests are lines: `list`, `set NAME-or-ID share=30 memory=2GiB class=opportunistic suspend|resume`, `policy [NAME]`, `ping`. The
/// answer is "ok N" and N lines, or "error MESSAGE".
class Coordinator {
 public:
  /// Listens on sharing_folder()/coordinator, which only this user can reach.
  /// @throws Error(invalid_argument) for a policy or period that does not exist; Error(io_error) if another coordinator runs (naming its
  ///         process), or the socket cannot be made.
  explicit Coordinator(const CoordinatorOptions& options);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// Works until `stop` is true; looks at it at least once a period.
  void run(const std::atomic<bool>& stop);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string coordinator_socket();

/// Sends a request to the coordinator. @return the lines behind "ok N". @throws Error(not_found) if there is none; what it answers as an
/// error: Error(invalid_argument).
std::string ask_coordinator(const std::string& request);

}  // namespace treadle::sharing
