// Writes a profile to a file while it is recorded, so that the recorded part exists even if the process crashes.
//
// The file is a sequence of sections, each with a kind and a size. A header comes first, then parts: a plan (profile/plan.h) and names if
// they are new, events as in memory, and a mark. Readers ignore what follows the last mark, since it may be incomplete.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/trace/recorder.h"
#include "profile/model/plan.h"
#include "treadle/profile.h"

namespace treadle::profile {

/// A recording file that another process waits for. The recording ends by itself; then the file is renamed. Only this user can read it.
struct AwaitedFile {
  /// Called ten times a second by the writer's thread. Returns true when the recording must end. Empty: no process waits for the file.
  std::function<bool()> is_over;
  std::function<bool()> is_wanted;   ///< called at the end; false: the waiting process has ended, so the file is removed
  std::function<void()> stop;        ///< called once; must stop the recording of runs
  std::string complete, incomplete;  ///< new name of the file if it is complete, and if the disk was full
};

/// Writes the recorded events of a profile to a file ten times a second, and frees their memory.
class StreamWriter {
 public:
  /// A function that returns the current plan. The writer calls it when it meets an unknown name, at intervals, and at the end.
  using Describe = std::function<ProfilePlan()>;
  using Intervals = std::function<std::vector<std::pair<uint64_t, uint64_t>>()>;

  /// Creates the file and starts the thread that writes to it. @throws Error(io_error) if the file cannot be written
  StreamWriter(std::string path, RecordWindow& window, Describe describe, Intervals intervals, AwaitedFile awaited = {});
  /// Writes the remaining records, and ends the writer's thread.
  ~StreamWriter();
  StreamWriter(const StreamWriter&) = delete;
  StreamWriter& operator=(const StreamWriter&) = delete;

  const std::string& path() const { return path_; }
  /// Writes all records so far to the file. @throws Error(io_error) if recording has stopped because of an error, such as a full disk
  void flush();
  /// Returns true if an AwaitedFile is finished (renamed or removed), after which the thread does nothing more.
  bool has_ended() const { return has_ended_.load(std::memory_order_acquire); }

 private:
  void work();
  void end_awaited() noexcept;
  void write_all() noexcept;
  void write_part();
  void write_events(const DrainedThread& thread);
  bool is_wanted(const RecordEvent& event);
  void describe();
  void write_names();
  void section(uint32_t kind, std::string_view payload);
  void write_out();
  void fail(const std::string& why) noexcept;

  const std::string path_;
  RecordWindow& window_;
  const Describe describe_;
  const Intervals intervals_;
  const AwaitedFile awaited_;
  const uint32_t process_;  // fork_generation() of the creator; forked children have another, and must not touch the file
  int file_ = -1;

  std::mutex mutex_;  // protects the members below, and the removal of events from window_
  std::string out_, events_, error_;
  ProfilePlan plan_;
  std::unordered_set<uint32_t> strangers_;  // names of other clients, whose events are skipped
  size_t num_names_ = 0;                    // number of names that are in the file
  uint64_t dropped_ = 0, from_ = 0, num_events_ = 0;
  uint64_t num_parts_ = 0, next_plan_ = 1;  // number of parts with events; number of the part before which the plan is written again
  bool described_ = false;

  // Pointers, so that a forked child does not destroy the objects. There, a thread that does not exist still seems to wait for them.
  std::condition_variable* wake_;
  std::thread* thread_;
  bool ending_ = false;
  std::atomic<bool> has_ended_{false};
};

/// Returns true if the contents begin like a file that StreamWriter has written.
bool is_stream(std::string_view contents);
/// Reads a file of StreamWriter up to its last complete part, which a mark section ends. @throws Error(not_found, io_error,
/// invalid_argument)
Profile read_stream(const std::string& path);

}  // namespace treadle::profile
