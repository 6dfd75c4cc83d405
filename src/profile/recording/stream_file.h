// Writes a profile to a file while it is recorded, so that the recorded part exists even if the process crashes.
//
// The file is a sequence of sections, each with a kind and a size: a header, then repeatedly plans (profile/plan.h) and names if they are
// new, events as in memory, and a mark. Anything after the last mark is ignored.
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

/// A recording that another process waits for. It ends by itself, only this user can read it, and it is renamed when it is complete.
struct AwaitedFile {
  /// Called ten times a second by the writer's thread; returns true when the recording must end; empty: no process waits for the file.
  std::function<bool()> is_over;
  std::function<bool()> is_wanted;   ///< called at the end; false: the waiting process does not exist any more, so the file is removed
  std::function<void()> stop;        ///< called once, so that no more runs are recorded
  std::string complete, incomplete;  ///< names of the file: when it is complete, and when the disk was full
};

/// Writes the records in a profile's window to a file a few times a second, and frees their memory.
class StreamWriter {
 public:
  /// Returns the current plan. The writer's thread calls it for unknown names, and at the end.
  using Describe = std::function<ProfilePlan()>;
  using Intervals = std::function<std::vector<std::pair<uint64_t, uint64_t>>()>;

  /// Begins to write. @throws Error(io_error) if the file cannot be written
  StreamWriter(std::string path, RecordWindow& window, Describe describe, Intervals intervals, AwaitedFile awaited = {});
  /// Ends the thread, after writing the remaining records.
  ~StreamWriter();
  StreamWriter(const StreamWriter&) = delete;
  StreamWriter& operator=(const StreamWriter&) = delete;

  const std::string& path() const { return path_; }
  /// Waits until all records so far are in the file. @throws Error(io_error) if recording has stopped because the disk is full
  void flush();
  /// True if an AwaitedFile has been renamed; the thread then does nothing more.
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
  const uint32_t process_;  // value of fork_generation(): a forked child does not have the thread and must not touch the file
  int file_ = -1;

  std::mutex mutex_;  // guards the members below; only its holder drains the window
  std::string out_, events_, error_;
  ProfilePlan plan_;
  std::unordered_set<uint32_t> strangers_;  // names that belong to other clients of the recorder
  size_t num_names_ = 0;                    // number of the program's own names that are in the file
  uint64_t dropped_ = 0, from_ = 0, num_events_ = 0;
  uint64_t num_parts_ = 0, next_plan_ = 1;  // number of parts with events; the part number at which the next plan is written
  bool described_ = false;

  // These are pointers, because a forked child must not destroy the objects: in the child, a thread still seems to wait for them.
  std::condition_variable* wake_;
  std::thread* thread_;
  bool ending_ = false;
  std::atomic<bool> has_ended_{false};
};

/// Returns true if the contents begin like a file of StreamWriter.
bool is_stream(std::string_view contents);
/// Reads the file up to its last mark. @throws Error(not_found, io_error, invalid_argument)
Profile read_stream(const std::string& path);

}  // namespace treadle::profile
