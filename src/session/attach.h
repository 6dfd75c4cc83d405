// `treadle profile --attach`: one process asks for a profile of the clients (sessions, trainers, joint modules) that run in another
// process's job.
// The request is written to the job's slot in the shared table. Each client that begins a run during the requested time writes a recording
// to the sharing folder, and the asking process reads these files.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "treadle/profile.h"

namespace treadle {

struct Runtime;

/// Answers requests of other processes for a profile of one client. No thread watches for requests: the client looks for one at the start
/// of each run. The recording is closed by the thread that writes it, even if no further run begins. Thread-safe.
class AttachedProfile {
 public:
  AttachedProfile();
  ~AttachedProfile();

  /// Must be called at the start of each run of a client with a job. Starts the recording if one is requested. Costs two atomic loads if
  /// none is.
  void follow(const Runtime& runtime);
  /// Completes the recording. Must be called before the client is destroyed.
  void end() noexcept;

 private:
  bool take_turn() noexcept;
  void begin(const Runtime& runtime, uint64_t request);

  std::atomic<uint64_t> followed_{0};  // number of the last request that was followed
  std::atomic<uint32_t> made_in_{0};   // fork_generation() + 1 of the process that made profiler_; 0: there is no profiler
  std::atomic<uint32_t> busy_in_{0};   // fork_generation() + 1 of the process whose thread is changing profiler_; 0: none is
  std::unique_ptr<Profiler::Impl> profiler_;
};

struct AttachOptions {
  double seconds = 5;
  bool memory = false, kernel_phases = false;
};

/// A profile that this process has requested of a job. The destructor deletes the files recorded for it.
class AttachRequest {
 public:
  /// @throws Error(not_found) if there is no such job; Error(resource_exhausted) if another process is already profiling it
  AttachRequest(uint64_t job, const AttachOptions& options);
  ~AttachRequest();
  AttachRequest(const AttachRequest&) = delete;
  AttachRequest& operator=(const AttachRequest&) = delete;

  /// Ends the recording early: runs that begin after this call are not recorded.
  void stop() noexcept;
  /// True while the job and its process exist.
  bool is_alive() const;
  /// True if every recording that was begun has been completed.
  bool is_complete() const { return files(kPart).empty(); }
  /// Returns one profile for each client that recorded any run.
  /// @param cut_off  true: also reads incomplete recordings, for a process that ended before completing them
  /// @throws Error(io_error) if the job could not write a recording
  std::vector<Profile> profiles(bool cut_off) const;

  static constexpr const char* kPart = ".part";

 private:
  void ask(uint64_t request, double seconds);
  void end_asking() noexcept;
  std::vector<std::string> files(const std::string& end) const;

  const uint64_t job_;
  int slot_ = -1;
  uint64_t until_ns_ = 0;
  std::string folder_, begin_;  // begin_: common prefix of the names of this request's files
  std::string asker_path_;
  int asker_ = -1;  // descriptor of the asker file, locked while this process waits for the profile
};

}  // namespace treadle
