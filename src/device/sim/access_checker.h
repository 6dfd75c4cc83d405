// Finds data races: accesses to the same bytes that streams, events and waits of the host do not order. Uses vector clocks (Fidge 1988,
// Mattern 1989) and only the order in which work is issued, so results do not depend on timing.
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

/// Keeps a vector clock for each timeline: for the host (timeline 0) and for each stream. Thread-safe. Devices must share a checker if
/// events order work of one device after work of another.
class AccessChecker {
 public:
  /// A vector clock: entry t is the number of steps of timeline t that have happened before.
  using Clock = std::vector<uint64_t>;
  static constexpr int kHost = 0;

  AccessChecker();

  int add_timeline(std::string name);
  /// Must be called when a stream has been destroyed, after the host has waited for its work. Another stream may reuse the timeline.
  void remove_timeline(int timeline);
  /// Adds a piece of work to a stream's timeline. The work comes after everything that the host has done and seen so far.
  void issue(int timeline);
  Clock now(int timeline) const;
  /// Records that all later work of `timeline` happens after everything in `clock`.
  void join(int timeline, const Clock& clock);
  /// Records that the host has waited for all work of `timeline`. This includes accesses that were declared for work that then was not
  /// enqueued. Allocates no memory.
  void join_host(int timeline) noexcept;

  void add_memory(const void* data, size_t size_bytes);
  /// Removes a block of memory. @param check  whether to test if work that uses the memory may still be running @return false if it may;
  /// the next call of check() then reports this
  bool remove_memory(const void* data, bool check = true);
  bool has_memory(const void* data) const;

  /// Declares an access by the work that is issued next. @throws Error(internal) if the access races with an earlier one (the error names
  /// both), or touches memory that does not exist
  void check(int timeline, const void* data, size_t size_bytes, Access access, std::string_view name);
  /// Throws the pending error, if there is one. @throws Error(internal) if memory was freed while work could still use it
  void report_pending();

 private:
  struct Record {
    int timeline = -1;  // -1: no access yet
    uint64_t tick = 0;
    std::string name;
  };
  struct Segment {  // a range of bytes with the same last accesses
    uintptr_t end = 0;
    Record write;
    std::vector<Record> reads;  // latest read of each timeline since the last write
  };
  struct Block {
    size_t size = 0;
    std::map<uintptr_t, Segment> segments;  // by address; together they cover the block
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
