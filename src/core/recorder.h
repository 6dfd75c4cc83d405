// The write side of the profiler: each thread appends fixed-size records, stamped with the cycle counter, to blocks of its own.
// There is one recorder in a process, and a profile is a window on it: any number of profiles at once cost what one costs, and what no
// window wants is given back.
// A recording site holds a `Recorder*`; null means off, and costs one branch that is always predicted.
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

#include "core/fork_mutex.h"
#include "core/kernel_phases.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace treadle {

enum class RecordKind : uint8_t {
  run,            ///< a call of the session
  node,           ///< a node's kernel; of one that is bound in the run: floating-point operations, and bytes, where they are known
  chunk,          ///< a helper's part in the loops of a node; its name is the node's
  copy,           ///< of a value between devices, on the stream that does it; arg1: bytes
  wait,           ///< for another thread, a stream or a lock
  compile,        ///< import, passes, planning, packing
  user,           ///< a range that the program marked
  instant,        ///< a point in time that the program marked: end = start
  counter,        ///< a value at a point in time: arg0
  memory,         ///< a block (core/memory_events.h); arg0: bytes, negative when it goes; arg1: its number and class; name: who holds it
  out_of_memory,  ///< arg0: bytes that there were not; arg1: class; name: who asked
  phase,          ///< of a kernel; arg0: the name of its node; arg1: the KernelPhase
  python,         ///< a call that Python's interpreter made
  launch,         ///< the host gives a node or a copy, whose name it has, to a device's stream
  pool,           ///< what a thread of a pool does or waits for: a PoolState
  layer,          ///< never recorded: of the model, around nodes, where a recording is shown
  begin,          ///< of a range, which has a record of its own at its end; arg0: its kind. RecordPicker makes ranges of those without
                  ///< an end
};
inline constexpr int kNumRecordKinds = 17;

/// What a thread that shares parallel loops, or nodes that run at once, is in.
enum class PoolState : uint8_t {
  running,        ///< a helper has a part of a loop, or a node
  no_ready_work,  ///< it looks for work, and there is none
  barrier,        ///< it has done its part of a loop, and waits for the others'
  asleep,         ///< there has been no work for a while
};
inline constexpr int kNumPoolStates = 4;
std::string_view name_of(PoolState state);

/// As collect() gives it. What the name and the arguments mean is in the name table, written once.
struct Record {
  uint64_t start, end;  ///< in ticks
  int64_t arg0, arg1;
  uint32_t name;
  RecordKind kind;
  uint16_t run = 0;  ///< Recorder::next_run() of the run that it is part of; 0: of none
};

/// An entry of the name table. An argument without a label is not shown.
struct RecordName {
  std::string text;
  std::string arg0_label, arg1_label;
};

namespace detail {
/// Whether the cycle counter runs at one speed, in sleep states too.
extern const bool kTimeStampCounterIsSteady;
}  // namespace detail

/// The clock of records: cycles where the counter is steady (about 10 ns a reading), 64-bit ARM's counter, which always is, else
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

/// The clock of records and the system's clocks at one moment.
struct ClockAnchor {
  uint64_t ticks = 0;
  int64_t steady_ns = 0, unix_ns = 0;
};

/// What a recorder held at one moment, or what one profile wanted of it.
struct Recording {
  struct Thread {
    uint32_t index = 0;           ///< 0, 1, … in the order of first records
    int64_t system_id = 0;        ///< gettid
    std::string name;             ///< the system's name for the thread, when it made its first record
    std::vector<Record> records;  ///< in the order of their ends
  };
  std::vector<RecordName> names;
  std::vector<Thread> threads;
  uint64_t dropped = 0;      ///< records beyond the limit
  uint64_t unknown = 0;      ///< records within a wanted run, of nodes that nobody named
  uint64_t start_ticks = 0;  ///< from where times are counted
  double ns_per_tick = 1;
  int64_t start_unix_ns = 0;  ///< wall-clock time of start_ticks
  /// Between these ticks nothing has been dropped or was still to be written.
  uint64_t complete_from = 0, complete_until = UINT64_MAX;
  std::vector<std::pair<uint64_t, uint64_t>> gaps;  ///< but for these: something was dropped between their ticks
  /// About one a second, ascending. The rate of ticks is that between the two around a time, so that a clock whose speed changes is
  /// followed.
  std::vector<ClockAnchor> anchors;

  /// Nanoseconds since start_ticks.
  double to_ns(uint64_t ticks) const {
    return anchors.size() < 2 ? linear_ns(start_ticks, ticks) : steady_ns(ticks) - steady_ns(start_ticks);
  }

 private:
  double linear_ns(uint64_t from, uint64_t ticks) const { return static_cast<double>(static_cast<int64_t>(ticks - from)) * ns_per_tick; }
  double steady_ns(uint64_t ticks) const;  // since the first anchor
};

/// As it is written. One with arguments has them in the event behind it, which most do without.
struct RecordEvent {
  uint64_t start, end;  // or arg0, arg1
  uint32_t name;
  RecordKind kind;
  bool has_arguments : 1;
  uint8_t phase : 7;  // KernelPhase; of a begin: the kind of the range
  uint16_t run;
};
static_assert(sizeof(RecordEvent) == 24);

/// What a thread has written since the last time.
struct DrainedThread {
  int64_t system_id = 0;
  std::string name;
  std::vector<RecordEvent> events;
};

struct RecordFilter;
class RecordWindow;

/// Thread-safe. Must outlive the scopes that write to it.
class Recorder {
 public:
  static constexpr uint64_t kDefaultRecords = 50'000'000;

  /// @param max_records  of all threads together, of 24 bytes each and as many again for arguments; rounded up to whole blocks. Each
  /// further thread may fill one block beyond it. More are counted and dropped.
  explicit Recorder(uint64_t max_records = kDefaultRecords);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// The one that sessions write to. It holds nothing while there is no window. Never destroyed.
  static Recorder& of_process();

  /// The id of a name; the same text gets the same id, and keeps the labels of its first use. Takes a lock: not for every node of a run.
  uint32_t intern(std::string_view text, std::string_view arg0_label = {}, std::string_view arg1_label = {});

  /// Ids for things that know their names themselves, such as a program's nodes: `count` of them, from the one returned. No two are the
  /// same in a process.
  static uint32_t reserve_names(size_t count) noexcept;

  static constexpr bool is_reserved(uint32_t name) noexcept { return name >= kFirstReservedName; }
  /// Interned names from the one of this id on.
  std::vector<RecordName> names_from(size_t first) const;

  /// Tells a run's records, of whatever thread, from those of the others under way. Numbers come again after 65,535 runs.
  static uint16_t next_run() noexcept;

  void record(uint32_t name, RecordKind kind, uint64_t start, uint64_t end, int64_t arg0 = 0, int64_t arg1 = 0, uint16_t run = 0) noexcept {
    if (ThreadLog* log = own_log()) append(*log, name, kind, start, end, arg0, arg1, run);
  }
  void record_phase(uint32_t node, KernelPhase phase, uint64_t start, uint64_t end, uint16_t run) noexcept {
    if (ThreadLog* log = own_log()) append(*log, node, RecordKind::phase, start, end, 0, 0, run, phase);
  }
  /// That a range begins: one that is still open when a profile is made is in it. Its record follows at its end, with the same name, kind
  /// and start, on whatever thread.
  void begin(uint32_t name, RecordKind kind, uint64_t start) noexcept {
    if (ThreadLog* log = own_log())
      append(*log, name, RecordKind::begin, start, start, 0, 0, 0, static_cast<KernelPhase>(static_cast<uint8_t>(kind)));
  }
  /// Of another thread, which may no longer be able to say it itself. Takes a lock.
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

  /// A copy of everything so far. Threads may go on recording meanwhile; what they write then may or may not be in it.
  Recording collect() const;
  /// What one profile wants: ranges of the program, records with the names of the filter, and blocks of its account.
  Recording collect(const RecordFilter& filter, const RecordWindow& window) const;
  int64_t unix_ns(uint64_t ticks) const;
  /// Of the clock of records, as measured since the recorder was made.
  double ns_per_tick() const;
  /// Notes what the system's clocks say, if that was long ago. Costs a reading of the clock otherwise.
  void anchor_if_due() noexcept {
    if (read_ticks() >= anchor_due_.load(std::memory_order_relaxed)) [[unlikely]]
      add_anchor();
  }
  /// Of now.
  static ClockAnchor read_anchor() noexcept;
  /// Bytes of all blocks.
  uint64_t held_bytes() const noexcept { return blocks_.load(std::memory_order_relaxed) * sizeof(Block); }

 private:
  static constexpr uint32_t kFirstReservedName = 1U << 24U;  // those below are interned
  static constexpr uint32_t kBlockEvents = 1024;
  struct Block {
    std::atomic<uint32_t> used{0};
    std::atomic<bool> full{false};  // its thread has gone on to the next, and does not touch it any more
    std::atomic<Block*> next{nullptr};
    uint64_t last_end = 0;  // of a full one, and of all before it
    RecordEvent events[kBlockEvents];
  };
  struct ThreadLog {
    int64_t system_id = 0;
    std::string name;
    Block* first = nullptr;
    Block* last = nullptr;           // the owner's
    uint64_t last_end = 0;           // of all events so far: the owner's
    uint64_t first_number = 0;       // how many blocks went before the first
    std::atomic<bool> ended{false};  // the thread is no more
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
  /// In ticks. Of a block of memory, `end` is the account.
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
  void keep_anchor(const ClockAnchor& anchor) noexcept;  // @pre the caller has the mutex
  void open(RecordWindow& window);
  void close(RecordWindow& window);
  std::vector<DrainedThread> drain(RecordWindow& window, uint64_t& dropped);
  void follow_windows();                       // @pre the caller has the mutex
  void give_back();                            // likewise
  bool is_needed(const ThreadLog& log) const;  // its first block, which is full or its thread's last; likewise
  uint64_t wanted_from() const;                // likewise
  template <typename Take>
  void visit(Recording& recording, const Take& take) const;
  void start_of(Recording& recording, uint64_t start_ticks) const;

  const uint64_t id_;  // addresses are used again, ids are not
  std::atomic<uint64_t> max_blocks_;
  std::atomic<bool> keeps_last_{false};
  std::atomic<uint64_t> blocks_{0}, dropped_{0};
  std::atomic<uint64_t> lost_from_{UINT64_MAX}, lost_until_{0};  // ticks of what was dropped: by who found no room, to make room
  std::atomic<uint64_t> wanted_from_{0};                         // ticks: where the first window begins; without windows nothing is missed
  uint64_t start_ticks_ = 0;
  int64_t start_ns_ = 0;  // of steady_clock
  mutable ForkMutex mutex_;
  std::vector<RecordWindow*> windows_;
  std::vector<std::shared_ptr<ThreadLog>> logs_;
  std::vector<std::pair<int64_t, RecordEvent>> late_;  // by the thread's system number: record_for(); as long as there are windows
  std::vector<RecordName> names_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::atomic<uint64_t> anchor_due_{UINT64_MAX};  // ticks; without windows never
  std::vector<ClockAnchor> anchors_;              // as long as there are windows
  uint64_t anchor_seconds_ = 1;                   // between two
};

/// While it lives, what is recorded from its start on is kept.
class RecordWindow {
 public:
  struct Limits {
    uint64_t max_records = Recorder::kDefaultRecords;
    /// When there is no more room: true: the oldest records go; false: new ones are dropped. With several windows the largest room counts,
    /// and the oldest go only if all of them say so.
    bool keep_last = false;
    bool memory = false;         ///< blocks of memory are recorded
    bool kernel_phases = false;  ///< what kernels do
    bool python_calls = false;   ///< as RecordFilter::python_calls
    bool streams = false;        ///< drain() takes what is recorded; what it has taken is not kept for the window
  };
  RecordWindow(Recorder& recorder, const Limits& limits);
  ~RecordWindow();
  RecordWindow(const RecordWindow&) = delete;
  RecordWindow& operator=(const RecordWindow&) = delete;

  uint64_t start() const noexcept { return start_; }
  const Recorder& recorder() const noexcept { return recorder_; }
  /// Nothing is kept for it any more.
  void close();
  /// What was recorded since the last call, by thread. One caller at a time. @pre limits().streams
  /// @param dropped  gets the count of records for which there was no room, since the window was opened
  std::vector<DrainedThread> drain(uint64_t& dropped) { return recorder_.drain(*this, dropped); }
  const Limits& limits() const noexcept { return limits_; }

  /// Whether there is a window on the process's recorder, and one that wants memory.
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
    uint64_t block = 0;  // number in its log
    uint32_t used = 0;   // events of it that have been taken
  };
  std::unordered_map<const void*, Cursor> cursors_;  // by log; guarded by the recorder's mutex, as are:
  size_t num_late_ = 0;                              // of the recorder's late events
};

/// What one thread writes to a recorder in a loop of one run: it looks up its log once.
class RecordWriter {
 public:
  /// @param recorder  null: nothing is written.
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
