// Finds accesses to the same bytes that are not ordered by streams, events and host waits, by vector clocks (Fidge 1988, Mattern 1989). It
// uses the order in which work is issued, so results do not depend on timing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/devices/device.h"

namespace treadle {

/// Keeps a vector clock for the host (timeline 0) and for each stream. Thread-safe. Devices that share a checker can order their work by
/// common events.
class AccessChecker {
 public:
  /// Entry t says how much of timeline t has happened before.
  using Clock = std::vector<uint64_t>;
  static constexpr int kHost = 0;

  AccessChecker();

  int add_timeline(std::string name);
  /// Must be called when the stream has been destroyed and the host has waited for it. Another stream may reuse the timeline.
  void remove_timeline(int timeline);
  /// Adds a piece of work to `timeline`. The work comes after everything that the host has done and seen so far.
  void issue(int timeline);
  Clock now(int timeline) const;
  /// Later work of `timeline` happens after `clock`.
  void join(int timeline, const Clock& clock);
  /// Records that the host has waited for all of `timeline`, including declared accesses of work that was never enqueued. Allocates
  /// nothing.
  void join_host(int timeline) noexcept;

  void add_memory(const void* data, size_t size_bytes);
  /// Removes a block of memory. @param check  test whether work that uses the memory may still be running @return false if such work may be
  /// running; the next check() then reports it
  bool remove_memory(const void* data, bool check = true);
  bool has_memory(const void* data) const;

  /// Declares an access of the work issued next. @throws Error(internal) if it races with an earlier access, naming both, or touches memory
  /// that does not exist
  void check(int timeline, const void* data, size_t size_bytes, Access access, std::string_view name);
  /// Throws pending errors. @throws Error(internal) if memory was freed too early
  void report_pending();

 private:
  struct Record {
    int timeline = -1;  // -1: no access yet
    uint64_t tick = 0;
    std::string name;
  };
  struct Segment {  // a range of bytes with the same history
    uintptr_t end = 0;
    Record write;
    std::vector<Record> reads;  // reads since the last write; one per timeline
  };
  struct Block {
    size_t size = 0;
    std::map<uintptr_t, Segment> segments;  // segments by the address of their first byte; together they cover the block
  };

  bool before(const Record& record, int timeline) const;
  std::string describe(const Record& record, const char* verb) const;
  std::string find_race(const Segment& segment, int timeline, Access access) const;
  std::map<uintptr_t, Block>::iterator block_of(uintptr_t address, size_t size_bytes);
  static void split(Block& block, uintptr_t address);
  void throw_pending();

  mutable std::mutex mutex_;
  std::vector<std::string> names_;
  std::vector<Clock> clocks_;
  std::vector<int> free_;  // timelines of destroyed streams, to be reused
  std::map<uintptr_t, Block> blocks_;
  std::string pending_;
};

}  // namespace treadle
