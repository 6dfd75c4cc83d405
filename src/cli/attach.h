// Profiles other processes. Each profiled process writes a recording file, which this process reads.
#pragma once

#include <string>
#include <vector>

#include "session/attach.h"
#include "treadle/profile.h"

namespace treadle::cli {

struct AttachedClient {
  std::string job;  ///< name and process of a job, such as "serve, process 4711"
  Profile profile;
};
struct AttachedClients {
  std::vector<AttachedClient> clients;  ///< sessions, trainers and modules that ran, the one with the most time first
  double seconds = 0;                   ///< length of the recording
  bool all_ended = false;               ///< true: all recorded processes ended before the requested time was over
};

/// Records one job, or all jobs of a process, until the time is over or SIGINT arrives.
/// @param who  a process id, or a job's id or name, as `treadle jobs` lists them
/// @throws Error(not_found) if there is no such job, or it ended before a run of it was recorded
/// @throws Error(invalid_argument) if no model ran; Error(timed_out) if a process does not end its recording
AttachedClients attach(const std::string& who, const AttachOptions& options);

}  // namespace treadle::cli
