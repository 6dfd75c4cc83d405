// The coordinator: runs a policy that steers a user's jobs, and can be controlled from outside by a local socket, a status file and a
// control file. It only writes to the job table, so jobs continue without it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace treadle::sharing {

struct CoordinatorOptions {
  std::string policy = "give-way";
  int64_t period_ms = 100;   ///< time between two decisions of the policy
  std::string control_file;  ///< read when it changes; one line per job, such as "NAME-or-ID share=30 memory=2GiB"; empty: none
  std::string status_file;   ///< JSON file that is written once a second; empty: none
};

/// Requests are lines: `list`, `set NAME-or-ID share=30 memory=2GiB class=opportunistic suspend|resume`, `policy [NAME]`, `ping`. The
/// answer is "ok N" followed by N lines, or "error MESSAGE".
class Coordinator {
 public:
  /// Listens on sharing_folder()/coordinator, which only this user can access.
  /// @throws Error(invalid_argument) for an unknown policy or invalid period; Error(io_error) if another coordinator runs (naming its
  ///         process), or the socket cannot be made
  explicit Coordinator(const CoordinatorOptions& options);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// Runs until `stop` is true, which is checked at least once per period.
  void run(const std::atomic<bool>& stop);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string coordinator_socket();

/// Sends a request to the coordinator. @return the lines after "ok N". @throws Error(not_found) if no coordinator runs;
/// Error(invalid_argument) if the coordinator's answer is an error
std::string ask_coordinator(const std::string& request);

}  // namespace treadle::sharing
