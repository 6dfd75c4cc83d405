// A profile as a file that grows while it is taken: what a process has written is there, however it ends.
//
// The file is a sequence of sections, each with its kind and its size: a header, plans (profile/plan.h) and names whenever there are new
// ones, events as they lie in memory, and behind all that was written at once a mark. What stands behind the last mark is not read.
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

/// A recording that another process waits for: it ends by itself, nobody else can read it, and it gets its name when it is complete.
struct AwaitedFile {
  std::function<bool()> is_over;     ///< asked on the writer's thread, ten times a second; empty: nobody waits
  std::function<bool()> is_wanted;   ///< asked at the end: the file is removed if the process that waited is gone
  std::function<void()> stop;        ///< called once: no more runs are to be recorded
  std::string complete, incomplete;  ///< names of the file when all of it is written, and when there was no room for the rest
};

/// Writes what a window's profile wants, a few times a second, and gives the memory back.
class StreamWriter {
 public:
  /// What the writer asks for when it meets names that it does not know, and at the end. From the writer's thread.
  using Describe = std::function<ProfilePlan()>;
  using Intervals = std::function<std::vector<std::pair<uint64_t, uint64_t>>()>;

  /// @throws Error(io_error) if the file cannot be written
  StreamWriter(std::string path, RecordWindow& window, Describe describe, Intervals intervals, AwaitedFile awaited = {});
  /// Ends the thread, and writes what is left.
  ~StreamWriter();
  StreamWriter(const StreamWriter&) = delete;
  StreamWriter& operator=(const StreamWriter&) = delete;

  const std::string& path() const { return path_; }
  /// Everything so far is in the file when it returns. @throws Error(io_error) if recording has stopped: the disk is full
  void flush();
  /// An AwaitedFile has its last name: the thread does nothing any more.
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
  const uint32_t process_;  // fork_generation(): the child of a fork has no such thread, and leaves the file alone
  int file_ = -1;

  std::mutex mutex_;  // of what follows; while it is held, nobody else drains the window
  std::string out_, events_, error_;
  ProfilePlan plan_;
  std::unordered_set<uint32_t> strangers_;  // names of others
  size_t num_names_ = 0;                    // of the program's own, that are in the file
  uint64_t dropped_ = 0, from_ = 0, num_events_ = 0;
  uint64_t num_parts_ = 0, next_plan_ = 1;  // parts with events, and the one that is to have a new plan
  bool described_ = false;

  // The child of a fork cannot destroy these: there they still have a thread that waits.
  std::condition_variable* wake_;
  std::thread* thread_;
  bool ending_ = false;
  std::atomic<bool> has_ended_{false};
};

/// Whether a file begins as one of these.
bool is_stream(std::string_view contents);
/// Up to the last mark. @throws Error(not_found, io_error, invalid_argument)
Profile read_stream(const std::string& path);

}  // namespace treadle::profile
