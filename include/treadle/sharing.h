// Sharing a device between jobs. docs/sharing.md defines the terms.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "treadle/export.h"

namespace treadle {

/// guaranteed: runs as if alone. opportunistic: runs in the time that guaranteed jobs leave, and gives way within one node.
enum class JobClass : int { guaranteed = 0, opportunistic = 1 };

struct JobOptions {
  std::string name;  ///< shown to people; at most 47 bytes, without spaces and control characters; empty: the program's name
  JobClass job_class = JobClass::guaranteed;
  double share_percent = 100;       ///< 0 to 100; 0 suspends the job
  uint64_t memory_limit_bytes = 0;  ///< limit for memory of its sessions' device, or host memory if that is `cpu`; 0: no limit
  uint64_t host_limit_bytes = 0;    ///< limit for host memory, including values that do not fit on a device; 0: no limit
};

/// Changes to a job. Unset members stay unchanged.
struct JobChange {
  std::optional<double> share_percent;
  std::optional<bool> suspended;
  std::optional<JobClass> job_class;
  std::optional<uint64_t> memory_limit_bytes, host_limit_bytes;
};

/// The present state of a job. Times are sums over the job's life, except the durations of steps.
struct JobStatus {
  uint64_t id = 0;
  std::string name;
  int64_t pid = 0;
  JobClass job_class = JobClass::guaranteed;
  double share_percent = 100;    ///< the share that was set
  double granted_percent = 100;  ///< the share that the coordinator's policy allows; the smaller of both applies
  bool suspended = false;
  uint32_t running = 0;  ///< number of runs that are under way
  uint32_t active = 0;   ///< threads of running runs that compute now; in a suspended job, those whose node has not ended yet
  int threads = 0;       ///< number of threads that its runs may use
  uint64_t runs = 0;     ///< number of ended runs
  uint64_t run_ns = 0;   ///< duration of all ended runs
  uint64_t idle_ns = 0;  ///< time that runs slept to keep to the share, or because the job was suspended
  uint64_t gave_way_ns = 0;
  uint64_t last_step_ns = 0;     ///< duration of the last run, in ns
  uint64_t average_step_ns = 0;  ///< average over recent runs, in ns
  uint64_t memory_limit_bytes = 0, host_limit_bytes = 0;
  /// host_bytes: values of sessions on `cpu`, and values that did not fit into a device's memory.
  uint64_t device_bytes = 0, host_bytes = 0;
  uint64_t disk_bytes = 0;  ///< values of a device in a file, because they exceeded the host limit
  uint64_t peak_bytes = 0;  ///< maximum of device and host bytes together
  /// Transfers between device, host and files: bytes, number, and the time that runs waited for them.
  uint64_t moved_bytes = 0, moves = 0, moving_ns = 0;
};

namespace sharing {
class JobState;
}

/// A named job that sessions can run in (SessionOptions::job). Thread-safe. Other processes of the same user see the job until this object
/// and all sessions that use it are destroyed.
class TREADLE_API Job {
 public:
  /// @throws Error(invalid_argument) for an invalid name or share; Error(resource_exhausted) if the table is full
  explicit Job(const JobOptions& options = {});
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  uint64_t id() const;
  /// Changes the share; running runs follow at their next node. @throws Error(invalid_argument) for a share outside 0 to 100, or NaN
  void set_share(double percent);
  void suspend();
  void resume();
  void set_class(JobClass job_class);
  void set_memory_limit(uint64_t bytes);
  void set_host_limit(uint64_t bytes);
  void set(const JobChange& change);
  JobStatus status() const;

  const std::shared_ptr<sharing::JobState>& state() const { return state_; }

 private:
  std::shared_ptr<sharing::JobState> state_;
};

/// Returns the job described by the environment (TREADLE_JOB_CLASS, _NAME, _SHARE, _MEMORY, _HOST_MEMORY), in which sessions without a job
/// of their own run. Null if TREADLE_JOB_CLASS is not set.
/// @throws Error(invalid_argument) naming the variable
TREADLE_API std::shared_ptr<Job> environment_job();

/// Lists all jobs of this user on this machine, ordered by id.
TREADLE_API std::vector<JobStatus> list_jobs();
/// Changes a job, which may belong to another process. @throws Error(not_found) if there is no such job; Error(invalid_argument) as in Job
TREADLE_API void set_job(uint64_t id, const JobChange& change);

/// Returns the folder of the job table and the coordinator's socket: TREADLE_SHARING_DIR, or /dev/shm/treadle-<user id>.
TREADLE_API std::string sharing_folder();

}  // namespace treadle
