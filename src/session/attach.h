// Profiles that another process asks for (`treadle profile --attach`), of clients that run in a job. The job's slot in the shared table has
// the request. Each client that begins a run meanwhile writes a recording to the sharing folder, which the asker reads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "treadle/profile.h"

namespace treadle {

struct Runtime;

/// What a client does about such requests. Nothing watches for them: they are looked at where a run begins. The recording ends on the
/// thread that writes it, whether there are further runs or not. Thread-safe.
class AttachedProfile {
 public:
  AttachedProfile();
  ~AttachedProfile();

  /// Before a run, of a client with a job: begins what was asked for. Costs two loads where nothing was.
  void follow(const Runtime& runtime);
  /// Before the client goes: what it has recorded is complete.
  void end() noexcept;

 private:
  bool take_turn() noexcept;
  void begin(const Runtime& runtime, uint64_t request);

  std::atomic<uint64_t> followed_{0};  // the last request
  std::atomic<uint32_t> made_in_{0};   // fork_generation() + 1 that profiler_ was made in; 0: there is none
  std::atomic<uint32_t> busy_in_{0};   // likewise, of the thread that changes profiler_; 0: nobody does
  std::unique_ptr<Profiler::Impl> profiler_;
};

struct AttachOptions {
  double seconds = 5;
  bool memory = false, kernel_phases = false;
};

/// A profile that this process has asked a job for. When it goes, so does what was recorded for it.
class AttachRequest {
 public:
  /// @throws Error(not_found) if there is no such job; Error(resource_exhausted) while another process asks it for a profile
  AttachRequest(uint64_t job, const AttachOptions& options);
  ~AttachRequest();
  AttachRequest(const AttachRequest&) = delete;
  AttachRequest& operator=(const AttachRequest&) = delete;

  /// No more runs are to be recorded.
  void stop() noexcept;
  /// Whether the job's process is still there, and its job.
  bool is_alive() const;
  /// Whether all that was begun is written.
  bool is_complete() const { return files(kPart).empty(); }
  /// By sessions, trainers and modules: a profile each.
  /// @param cut_off  also those whose process has ended before they were complete
  /// @throws Error(io_error) if one could not be written
  std::vector<Profile> profiles(bool cut_off) const;

  static constexpr const char* kPart = ".part";

 private:
  void ask(uint64_t request, double seconds);
  void end_asking() noexcept;
  std::vector<std::string> files(const std::string& end) const;

  const uint64_t job_;
  int slot_ = -1;
  uint64_t until_ns_ = 0;
  std::string folder_, begin_;  // of the files' names
  std::string asker_path_;
  int asker_ = -1;  // locked as long as this process waits
};

}  // namespace treadle
