// Sharing a device between jobs: see docs/sharing.md for the words.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "treadle/export.h"

namespace treadle {

/// guaranteed: runs as if alone. opportunistic: takes the time that guaranteed jobs leave, and gives way within one node.
enum class JobClass : int { guaranteed = 0, opportunistic = 1 };

struct JobOptions {
  std::string name;  ///< for people; at most 47 bytes, no spaces or control characters; empty: the program's name
  JobClass job_class = JobClass::guaranteed;
  double share_percent = 100;       ///< 0 to 100; 0 suspends
  uint64_t memory_limit_bytes = 0;  ///< of the memory of the device that its sessions are on; on `cpu` of the host's; 0: what there is
  uint64_t host_limit_bytes = 0;    ///< of the host's memory, also for what has no room on a device; 0: none
};

/// What is to change; what is not set stays.
struct JobChange {
  std::optional<double> share_percent;
  std::optional<bool> suspended;
  std::optional<JobClass> job_class;
  std::optional<uint64_t> memory_limit_bytes, host_limit_bytes;
};

/// A job as it is now. Times are sums over the job's life but for the steps.
struct JobStatus {
  uint64_t id = 0;
  std::string name;
  int64_t pid = 0;
  JobClass job_class = JobClass::guaranteed;
  double share_percent = 100;    ///< as set
  double granted_percent = 100;  ///< as the coordinator's policy leaves it; the smaller of both counts
  bool suspended = false;
  uint32_t running = 0;  ///< runs under way
  uint32_t active = 0;   ///< threads of theirs that compute now: of a suspended job, those whose node has not ended yet
  int threads = 0;       ///< that its runs may use
  uint64_t runs = 0;     ///< that have ended
  uint64_t run_ns = 0;   ///< from begin to end, of all runs that have ended
  uint64_t idle_ns = 0;  ///< slept for the share, and suspended
  uint64_t gave_way_ns = 0;
  uint64_t last_step_ns = 0;     ///< the last run, from begin to end
  uint64_t average_step_ns = 0;  ///< over recent runs
  uint64_t memory_limit_bytes = 0, host_limit_bytes = 0;
  uint64_t device_bytes = 0, host_bytes = 0;  ///< held in the device's memory; in the host's, by sessions on `cpu` or for want of room
  uint64_t disk_bytes = 0;                    ///< a device's values in a file, because the host's limit is reached
  uint64_t peak_bytes = 0;                    ///< the most of device and host together
  uint64_t moved_bytes = 0, moves = 0, moving_ns = 0;  ///< between device, host and files, and what the runs waited for it
};

namespace sharing {
class JobState;
}

/// A name under which sessions run (SessionOptions::job). Thread-safe. Other processes of the same user see it until it is destroyed,
/// which happens when the last session that runs in it is gone as well.
class TREADLE_API Job {
 public:
  /// @throws Error(invalid_argument) for a name or share that is not allowed; Error(resource_exhausted) if the table is full.
  explicit Job(const JobOptions& options = {});
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  uint64_t id() const;
  /// Acted on within one node. @throws Error(invalid_argument) for a share outside of 0 to 100, or NaN.
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

/// The job that the environment asks for (TREADLE_JOB_CLASS, TREADLE_JOB_NAME, TREADLE_JOB_SHARE, TREADLE_JOB_MEMORY): sessions run in it
/// that are given no other. Null if none is asked for.
/// @throws Error(invalid_argument) naming the variable.
TREADLE_API std::shared_ptr<Job> environment_job();

/// All jobs of this user on this machine, in the order of their ids.
TREADLE_API std::vector<JobStatus> list_jobs();
/// @throws Error(not_found) if there is no such job; Error(invalid_argument) as Job.
TREADLE_API void set_job(uint64_t id, const JobChange& change);

/// Where the job table and the coordinator's socket are: TREADLE_SHARING_DIR, else /dev/shm/treadle-<user id>.
TREADLE_API std::string sharing_folder();

}  // namespace treadle
