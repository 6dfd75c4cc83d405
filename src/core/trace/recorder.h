// The write side of the profiler: each thread appends fixed-size records, with cycle-counter times, to its own blocks. There is one
// recorder per process, and a profile is a window on it (an interval of time). Any number of simultaneous profiles cost as much as one.
// Records that no window needs are freed. Code that records holds a `Recorder*`; null means off and costs one well-predicted branch.
//   RecordScope scope(recorder, name_of_node, RecordKind::node);
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/fork_mutex.h"
#include "core/trace/kernel_phases.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace treadle {

enum class RecordKind : uint8_t {
  run,            ///< a call of the session
  node,           ///< a node's kernel; arguments, if the run bound its extents and they are known: floating-point operations, bytes
  chunk,          ///< a helper's part in the loops of a node, with the node's name
  copy,           ///< a copy between devices, on the stream that makes it; arg1: bytes
  wait,           ///< a wait for another thread, a stream or a lock
  compile,        ///< import, passes, planning, packing
  user,           ///< a range that the program marked
  instant,        ///< a point in time that the program marked: end = start
  counter,        ///< a value at a point in time, in arg0
  memory,         ///< a block (core/trace/memory_events.h); arg0: bytes, negative if freed; arg1: number and class; name: the holder
  out_of_memory,  ///< arg0: bytes that were unavailable; arg1: class; name: the requester
  phase,          ///< a kernel's phase; arg0: name of its node; arg1: KernelPhase
  python,         ///< a call made by Python's interpreter
  launch,         ///< the host enqueues the named node or copy on a device's stream
  pool,           ///< a PoolState: what a thread of a pool does
  layer,          ///< never recorded: a layer of the model around nodes, when a recording is displayed
  begin,          ///< a range begins; its own record follows at its end; arg0: its kind. RecordPicker completes ranges without an end
};
inline constexpr int kNumRecordKinds = 17;

/// The state of a thread that shares parallel loops, or nodes that run concurrently.
enum class PoolState : uint8_t {
  running,        ///< a helper works on a part of a loop, or on a node
  no_ready_work,  ///< the thread finds no work that can run now
  barrier,        ///< the thread's part of a loop is done, and it waits for the others
  asleep,         ///< the thread sleeps, because there has been no work for a while
};
inline constexpr int kNumPoolStates = 4;
std::string_view name_of(PoolState state);

/// A record as collect() returns it. The name table explains its name and arguments.
struct Record {
  uint64_t start, end;  ///< times in ticks of read_ticks()
  int64_t arg0, arg1;
  uint32_t name;
  RecordKind kind;
  uint16_t run = 0;  ///< number of the run that the record is part of, from Recorder::next_run(); 0: none
};

/// An entry of the name table. Arguments without a label are not shown.
struct RecordName {
  std::string text;
  std::string arg0_label, arg1_label;
};

namespace detail {
/// True if the cycle counter runs at a constant rate, even in sleep states.
extern const bool kTimeStampCounterIsSteady;
}  // namespace detail

/// The clock of records: the cycle counter if it is steady (about 10 ns per reading), on 64-bit ARM the generic timer, otherwise
/// nanoseconds of steady_clock (about 25 ns).
inline uint64_t read_ticks() noexcept {
#if defined(__x86_64__)
  if (detail::kTimeStampCounterIsSteady) return __rdtsc();
#elif defined(__aarch64__)
  uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#endif
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

/// The clock of records and the system's clocks, read at the same moment.
struct ClockAnchor {
  uint64_t ticks = 0;
  int64_t steady_ns = 0, unix_ns = 0;
};

/// Everything that a recorder contained at one moment, or the part of it that a profile selected.
struct Recording {
  struct Thread {
    uint32_t index = 0;           ///< 0, 1, … in the order of first records
    int64_t system_id = 0;        ///< thread id from gettid()
    std::string name;             ///< the thread's name in the system, at its first record
    std::vector<Record> records;  ///< ordered by their ends
  };
  std::vector<RecordName> names;
  std::vector<Thread> threads;
  uint64_t dropped = 0;      ///< number of records that exceeded the limit
  uint64_t unknown = 0;      ///< number of records in a wanted run whose nodes have no known name
  uint64_t start_ticks = 0;  ///< the recording's start, to which times are relative
  double ns_per_tick = 1;
  int64_t start_unix_ns = 0;  ///< wall-clock time of start_ticks
  /// Between these ticks, no record is missing, except in `gaps`.
  uint64_t complete_from = 0, complete_until = UINT64_MAX;
  std::vector<std::pair<uint64_t, uint64_t>> gaps;  ///< ranges of ticks in which records were dropped
  /// About one per second, ascending. Times between two anchors are interpolated, so that the clock may vary in speed.
  std::vector<ClockAnchor> anchors;

  /// Returns the nanoseconds from start_ticks to `ticks`.
  double to_ns(uint64_t ticks) const {
    return anchors.size() < 2 ? linear_ns(start_ticks, ticks) : steady_ns(ticks) - steady_ns(start_ticks);
  }

 private:
  double linear_ns(uint64_t from, uint64_t ticks) const { return static_cast<double>(static_cast<int64_t>(ticks - from)) * ns_per_tick; }
  double steady_ns(uint64_t ticks) const;  // returns nanoseconds since the first anchor
};

/// A record as it is stored. Arguments, which most records lack, are stored in the event that follows.
struct RecordEvent {
  uint64_t start, end;  // in an event that carries arguments, these are arg0 and arg1
  uint32_t name;
  RecordKind kind;
  bool has_arguments : 1;
  uint8_t phase : 7;  // KernelPhase; for RecordKind::begin: kind of the range
  uint16_t run;
};
static_assert(sizeof(RecordEvent) == 24);

/// The events that a thread has written since they were last taken from it.
struct DrainedThread {
  int64_t system_id = 0;
  std::string name;
  std::vector<RecordEvent> events;
};

struct RecordFilter;
class RecordWindow;

/// Collects the records of all threads. Thread-safe. Must outlive the scopes that write to it.
class Recorder {
 public:
  static constexpr uint64_t kDefaultRecords = 50'000'000;

  /// @param max_records  limit for all threads together, rounded up to whole blocks. A record takes 24 bytes, and 24 more for arguments.
  /// Each additional thread may fill one block more. Further records are counted and dropped.
  explicit Recorder(uint64_t max_records = kDefaultRecords);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// The recorder that sessions write to. It keeps no records unless a RecordWindow exists. Never destroyed.
  static Recorder& of_process();

  /// Returns the id of a name. The same text always has the same id and the labels of its first use. Takes a lock, so it must not be called
  /// for every node of a run.
  uint32_t intern(std::string_view text, std::string_view arg0_label = {}, std::string_view arg1_label = {});

  /// Reserves `count` ids, from the returned one on, for objects that know their names themselves, such as a program's nodes. Unique in the
  /// process.
  static uint32_t reserve_names(size_t count) noexcept;

  static constexpr bool is_reserved(uint32_t name) noexcept { return name >= kFirstReservedName; }
  /// Returns the interned names, beginning with the id `first`.
  std::vector<RecordName> names_from(size_t first) const;

  /// Returns a number that distinguishes the run's records from those of concurrent runs. Numbers repeat after 65,535 runs.
  static uint16_t next_run() noexcept;

  void record(uint32_t name, RecordKind kind, uint64_t start, uint64_t end, int64_t arg0 = 0, int64_t arg1 = 0, uint16_t run = 0) noexcept {
    if (ThreadLog* log = own_log()) append(*log, name, kind, start, end, arg0, arg1, run);
  }
  void record_phase(uint32_t node, KernelPhase phase, uint64_t start, uint64_t end, uint16_t run) noexcept {
    if (ThreadLog* log = own_log()) append(*log, node, RecordKind::phase, start, end, 0, 0, run, phase);
  }
  /// Records that a range begins, so that profiles include it while it is open. Its record follows at its end, with the same name, kind and
  /// start, on any thread.
  void begin(uint32_t name, RecordKind kind, uint64_t start) noexcept {
    if (ThreadLog* log = own_log())
      append(*log, name, RecordKind::begin, start, start, 0, 0, 0, static_cast<KernelPhase>(static_cast<uint8_t>(kind)));
  }
  /// Records on behalf of another thread, which may be unable to do so itself. Takes a lock.
  void record_for(int64_t system_id, uint32_t name, RecordKind kind, uint64_t start, uint64_t end);
  void begin_for(int64_t system_id, uint32_t name, RecordKind kind, uint64_t start);
  void instant(uint32_t name, int64_t arg0 = 0, int64_t arg1 = 0) noexcept {
    uint64_t now = read_ticks();
    record(name, RecordKind::instant, now, now, arg0, arg1);
  }
  void counter(uint32_t name, int64_t value) noexcept {
    uint64_t now = read_ticks();
    record(name, RecordKind::counter, now, now, value);
  }

  /// Copies all records so far. Threads may record at the same time; their new records may be missing.
  Recording collect() const;
  /// Collects for one profile: ranges of the program, records with the filter's names, and memory blocks of the filter's account.
  Recording collect(const RecordFilter& filter, const RecordWindow& window) const;
  int64_t unix_ns(uint64_t ticks) const;
  /// Rate of the clock of records, measured since the recorder was made.
  double ns_per_tick() const;
  /// Adds a ClockAnchor if the last one is old. Otherwise costs one clock reading.
  void anchor_if_due() noexcept {
    if (read_ticks() >= anchor_due_.load(std::memory_order_relaxed)) [[unlikely]]
      add_anchor();
  }
  /// Reads the clocks now.
  static ClockAnchor read_anchor() noexcept;
  /// Returns the bytes of all blocks of records.
  uint64_t held_bytes() const noexcept { return blocks_.load(std::memory_order_relaxed) * sizeof(Block); }

 private:
  static constexpr uint32_t kFirstReservedName = 1U << 24U;  // ids below are interned names
  static constexpr uint32_t kBlockEvents = 1024;
  struct Block {
    std::atomic<uint32_t> used{0};
    std::atomic<bool> full{false};  // the thread that owns the block continues in the next one, and does not touch this one any more
    std::atomic<Block*> next{nullptr};
    uint64_t last_end = 0;  // set when `full` is: the last end in this block and those before
    RecordEvent events[kBlockEvents];
  };
  struct ThreadLog {
    int64_t system_id = 0;
    std::string name;
    Block* first = nullptr;
    Block* last = nullptr;           // written only by the thread that owns the blocks
    uint64_t last_end = 0;           // last end of all events so far; written only by the thread that owns the blocks
    uint64_t first_number = 0;       // number of blocks freed before the first one that is kept
    std::atomic<bool> ended{false};  // the thread has ended
  };
  struct OwnLogs;
  struct Current {
    uint64_t recorder;
    ThreadLog* log;
  };
  static thread_local constinit Current current_;

  ThreadLog* own_log() noexcept { return current_.recorder == id_ ? current_.log : register_thread(); }
  void append(ThreadLog& log, uint32_t name, RecordKind kind, uint64_t start, uint64_t end, int64_t arg0, int64_t arg1, uint16_t run,
              KernelPhase phase = KernelPhase::none) noexcept {
    Block* block = log.last;
    uint32_t used = block->used.load(std::memory_order_relaxed);
    const bool has_arguments = (arg0 | arg1) != 0;
    if (used + has_arguments >= kBlockEvents) {
      block = next_block(log, start);
      if (!block) return;
      used = 0;
    }
    block->events[used] = {start, end, name, kind, has_arguments, static_cast<uint8_t>(phase), run};
    if (has_arguments) block->events[used + 1] = {static_cast<uint64_t>(arg0), static_cast<uint64_t>(arg1), name, kind, false, 0, run};
    block->used.store(used + 1 + has_arguments, std::memory_order_release);
    log.last_end = std::max(log.last_end, end_of(kind, start, end));
  }
  /// Returns the end of a record in ticks. For records of memory, whose field `end` contains the account, it is the start.
  static constexpr uint64_t end_of(RecordKind kind, uint64_t start, uint64_t end) noexcept {
    return kind == RecordKind::memory || kind == RecordKind::out_of_memory ? start : end;
  }

  friend class RecordWriter;
  friend class RecordWindow;
  ThreadLog* register_thread() noexcept;
  Block* next_block(ThreadLog& log, uint64_t lost_from) noexcept;
  Block* new_block() noexcept;
  Block* take_oldest() noexcept;
  void lose(uint64_t from) noexcept;
  void add_anchor() noexcept;
  void keep_anchor(const ClockAnchor& anchor) noexcept;  // adds an anchor; @pre the caller holds the mutex
  void open(RecordWindow& window);
  void close(RecordWindow& window);
  std::vector<DrainedThread> drain(RecordWindow& window, uint64_t& dropped);
  void follow_windows();  // sets max_blocks_ and keeps_last_ to what the windows allow; @pre the caller holds the mutex
  void give_back();       // frees blocks that no window needs; @pre the caller holds the mutex
  // Returns true if a window needs the first block of the log. @pre the block is full or the last; the caller holds the mutex
  bool is_needed(const ThreadLog& log) const;
  uint64_t wanted_from() const;  // returns the earliest time from which a window needs records; @pre the caller holds the mutex
  template <typename Take>
  void visit(Recording& recording, const Take& take) const;
  void start_of(Recording& recording, uint64_t start_ticks) const;

  const uint64_t id_;  // unlike addresses, ids are never reused
  std::atomic<uint64_t> max_blocks_;
  std::atomic<bool> keeps_last_{false};
  std::atomic<uint64_t> blocks_{0}, dropped_{0};
  // Ticks of dropped records: the earliest that found no free block, and the latest that was dropped for newer ones.
  std::atomic<uint64_t> lost_from_{UINT64_MAX}, lost_until_{0};
  std::atomic<uint64_t> wanted_from_{0};  // in ticks: where the first window begins; without windows no record is needed
  uint64_t start_ticks_ = 0;
  int64_t start_ns_ = 0;  // time of the clock steady_clock
  mutable ForkMutex mutex_;
  std::vector<RecordWindow*> windows_;
  std::vector<std::shared_ptr<ThreadLog>> logs_;
  // Events of record_for(), with the system's id of their thread. They are kept while any RecordWindow exists.
  std::vector<std::pair<int64_t, RecordEvent>> late_;
  std::vector<RecordName> names_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::atomic<uint64_t> anchor_due_{UINT64_MAX};  // in ticks, when the next anchor is due; never without windows
  std::vector<ClockAnchor> anchors_;              // kept while any RecordWindow exists
  uint64_t anchor_seconds_ = 1;                   // seconds between two anchors
};

/// While this object exists, records made after its construction are kept.
class RecordWindow {
 public:
  struct Limits {
    uint64_t max_records = Recorder::kDefaultRecords;
    /// What to drop when the limit is reached. True: the oldest records; false: the new ones. If there are several windows, the largest
    /// limit applies, and the oldest are dropped only if all windows have keep_last.
    bool keep_last = false;
    bool memory = false;         ///< record blocks of memory that are allocated and freed
    bool kernel_phases = false;  ///< record phases of kernels
    bool python_calls = false;   ///< see RecordFilter::python_calls
    bool streams = false;        ///< drain() takes records, which are then no longer kept for this window
  };
  RecordWindow(Recorder& recorder, const Limits& limits);
  ~RecordWindow();
  RecordWindow(const RecordWindow&) = delete;
  RecordWindow& operator=(const RecordWindow&) = delete;

  uint64_t start() const noexcept { return start_; }
  const Recorder& recorder() const noexcept { return recorder_; }
  /// Ends the window: no more records are kept for it.
  void close();
  /// Takes the records made since the previous call, by thread. One caller at a time. @pre limits().streams
  /// @param dropped  receives the number of records dropped at the limit since the window was opened
  std::vector<DrainedThread> drain(uint64_t& dropped) { return recorder_.drain(*this, dropped); }
  const Limits& limits() const noexcept { return limits_; }

  /// True if the process's recorder has a window. any_for_memory(): if it has one that records memory.
  static bool any() noexcept { return num_open_.load(std::memory_order_relaxed) > 0; }
  static bool any_for_memory() noexcept { return num_for_memory_.load(std::memory_order_relaxed) > 0; }

 private:
  friend class Recorder;
  static constinit std::atomic<int> num_open_, num_for_memory_;
  Recorder& recorder_;
  const Limits limits_;
  uint64_t start_ = 0, dropped_before_ = 0;
  bool is_open_ = true;
  struct Cursor {
    uint64_t block = 0;  // number of the block in the log
    uint32_t used = 0;   // number of events of this block that have been taken
  };
  std::unordered_map<const void*, Cursor> cursors_;  // cursors by log; guarded by the recorder's mutex, like the next member
  size_t num_late_ = 0;                              // number of late events that have been taken
};

/// Writes records of one run from one thread, looking up the thread's log only once.
class RecordWriter {
 public:
  /// @param recorder  null: writes nothing
  RecordWriter(Recorder* recorder, uint16_t run) noexcept
      : recorder_(recorder), log_(recorder ? recorder->own_log() : nullptr), run_(run) {}
  void record(uint32_t name, RecordKind kind, uint64_t start, uint64_t end) noexcept {
    if (log_) recorder_->append(*log_, name, kind, start, end, 0, 0, run_);
  }

 private:
  Recorder* recorder_;
  Recorder::ThreadLog* log_;
  uint16_t run_;
};

/// Records the time from here to the end of the block.
class RecordScope {
 public:
  RecordScope(Recorder* recorder, uint32_t name, RecordKind kind, uint16_t run = 0) noexcept
      : recorder_(recorder), name_(name), kind_(kind), run_(run) {
    if (recorder_) start_ = read_ticks();
  }
  ~RecordScope() {
    if (recorder_) recorder_->record(name_, kind_, start_, read_ticks(), 0, 0, run_);
  }
  RecordScope(const RecordScope&) = delete;
  RecordScope& operator=(const RecordScope&) = delete;

 private:
  Recorder* recorder_;
  uint64_t start_ = 0;
  uint32_t name_;
  RecordKind kind_;
  uint16_t run_;
};

}  // namespace treadle
