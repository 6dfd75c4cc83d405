// Finds accesses to the same bytes that no chain of stream order, events and host waits orders, by vector clocks (Fidge 1988,
// Mattern 1989). Works on the order in which work is issued and needs no luck with timing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.h"

namespace treadle {

/// Clocks of the host (timeline 0) and of streams; thread-safe. Several devices may share one, so that events between them count.
class AccessChecker {
 public:
  /// Entry t: how much of timeline t has happened before.
  using Clock = std::vector<uint64_t>;
  static constexpr int kHost = 0;

  AccessChecker();

  int add_timeline(std::string name);
  /// Its stream is gone, and the host has waited for it: a later stream may go on with the timeline.
  void remove_timeline(int timeline);
  /// One more piece of work of `timeline`; it comes after everything that the host has done and seen so far.
  void issue(int timeline);
  Clock now(int timeline) const;
  /// What comes next on `timeline` happens after `clock`.
  void join(int timeline, const Clock& clock);
  /// The host has waited for all of `timeline`, declared accesses of work that did not come about included. Allocates nothing.
  void join_host(int timeline) noexcept;

  void add_memory(const void* data, size_t size_bytes);
  /// @param check  whether to find out if work that uses the memory may still be under way.
  /// @return false if it may; then the next check reports it.
  bool remove_memory(const void* data, bool check = true);
  bool has_memory(const void* data) const;

  /// An access by the work that is issued next. @throws Error(internal) if it races with an earlier one, naming both, or touches memory
  /// that is not there.
  void check(int timeline, const void* data, size_t size_bytes, Access access, std::string_view name);
  /// @throws Error(internal) if memory was freed too early.
  void report_pending();

 private:
  struct Record {
    int timeline = -1;  // -1: none
    uint64_t tick = 0;
    std::string name;
  };
  struct Segment {  // bytes with the same history
    uintptr_t end = 0;
    Record write;
    std::vector<Record> reads;  // since the write; one a timeline
  };
  struct Block {
    size_t size = 0;
    std::map<uintptr_t, Segment> segments;  // by first byte; they cover the block
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
  std::vector<int> free_;  // timelines of streams that are gone
  std::map<uintptr_t, Block> blocks_;
  std::string pending_;
};

}  // namespace treadle
