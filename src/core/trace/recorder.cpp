#include "core/trace/recorder.h"

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <utility>

#if defined(__linux__)
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "core/base/utf8.h"
#include "core/trace/record_filter.h"

namespace treadle {
namespace {

bool time_stamp_counter_is_steady() {
#if defined(__x86_64__)
  uint32_t a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d >> 8 & 1U) != 0;  // bit 8: "invariant TSC"
#else
  return false;
#endif
}

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::atomic<uint64_t> next_recorder_id{1};  // 0 means no recorder

constexpr size_t kMaxInternedNames = 1U << 20U;  // limits the names of ranges, since a program may mark ranges with ever new names
std::atomic<uint32_t> next_reserved_name{1U << 24U};

constinit thread_local bool thread_is_ending = false;

int64_t unix_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

constexpr size_t kMostLateBegins = 1U << 16U;  // more than the calls that are open at once; limits the memory
constexpr size_t kMostAnchors = 1024;          // if there are more, every second one is dropped, and later anchors become rarer

uint64_t blocks_for(uint64_t records, uint32_t block_events) { return records / block_events + (records % block_events != 0); }

}  // namespace

const bool detail::kTimeStampCounterIsSteady = time_stamp_counter_is_steady();

double Recording::steady_ns(uint64_t ticks) const {
  auto after =
      std::upper_bound(anchors.begin(), anchors.end(), ticks, [](uint64_t t, const ClockAnchor& anchor) { return t < anchor.ticks; });
  const auto since_first = [&](const ClockAnchor& anchor) { return static_cast<double>(anchor.steady_ns - anchors.front().steady_ns); };
  if (after == anchors.begin()) return linear_ns(anchors.front().ticks, ticks);
  const ClockAnchor& from = *(after - 1);
  if (after == anchors.end() || after->ticks == from.ticks) return since_first(from) + linear_ns(from.ticks, ticks);
  const double part = static_cast<double>(ticks - from.ticks) / static_cast<double>(after->ticks - from.ticks);
  return since_first(from) + part * (since_first(*after) - since_first(from));
}

// Reads all clocks at about the same moment: uses the fastest of several tries, which was interrupted least.
ClockAnchor Recorder::read_anchor() noexcept {
  ClockAnchor best;
  uint64_t least = ~uint64_t{0};
  for (int i = 0; i < 20; ++i) {
    const uint64_t before = read_ticks();
    const int64_t ns = steady_ns(), unix_ns = unix_now_ns();
    const uint64_t after = read_ticks();
    if (after - before < least) least = after - before, best = {before + (after - before) / 2, ns, unix_ns};
  }
  return best;
}

void Recorder::add_anchor() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);  // whoever holds the lock may be adding an anchor already
  if (lock && !windows_.empty() && read_ticks() >= anchor_due_.load(std::memory_order_relaxed)) keep_anchor(read_anchor());
}

void Recorder::keep_anchor(const ClockAnchor& anchor) noexcept {
  try {
    if (anchors_.size() >= kMostAnchors) {
      for (size_t i = 0; 2 * i < anchors_.size(); ++i) anchors_[i] = anchors_[2 * i];
      anchors_.resize((anchors_.size() + 1) / 2);
      anchor_seconds_ *= 2;
    }
    anchors_.push_back(anchor);
  } catch (const std::exception&) {
    // If there is no memory for this anchor, times are converted by the other anchors.
  }
  // A new recorder does not know the rate of its clock yet, so the next anchor comes sooner and improves the rate.
  constexpr uint64_t kFewTicks = uint64_t{1} << 24U;
  constexpr int64_t kKnownAfterNs = 10'000'000;
  const int64_t ns = anchor.steady_ns - start_ns_;
  const uint64_t ticks = anchor.ticks - start_ticks_;
  anchor_due_ = anchor.ticks + (ns < kKnownAfterNs ? kFewTicks
                                                   : static_cast<uint64_t>(static_cast<double>(ticks) / static_cast<double>(ns) * 1e9 *
                                                                           static_cast<double>(anchor_seconds_)));
}

thread_local constinit Recorder::Current Recorder::current_{0, nullptr};
constinit std::atomic<int> RecordWindow::num_open_{0}, RecordWindow::num_for_memory_{0};

// A thread's logs in all recorders. When the thread ends, nothing writes to them any more.
struct Recorder::OwnLogs {
  std::vector<std::shared_ptr<ThreadLog>> logs;
  ~OwnLogs() {
    thread_is_ending = true;
    current_ = {0, nullptr};
    for (const auto& log : logs) log->ended.store(true, std::memory_order_release);
  }
  static OwnLogs& of_thread() {
    thread_local OwnLogs own;
    return own;
  }
};

Recorder::Recorder(uint64_t max_records) : id_(next_recorder_id.fetch_add(1)), max_blocks_(blocks_for(max_records, kBlockEvents)) {
  const ClockAnchor start = read_anchor();
  start_ticks_ = start.ticks;
  start_ns_ = start.steady_ns;
}

Recorder::~Recorder() {
  for (auto& log : logs_)
    for (Block* block = log->first; block;) delete std::exchange(block, block->next.load());
}

Recorder& Recorder::of_process() {
  static auto* recorder = new Recorder(0);
  // The thread of a forked child has another number than in the parent, so it gets a new log.
  static const auto* in_child = new ForkReset([] { current_ = {0, nullptr}; });
  (void)in_child;
  return *recorder;
}

uint32_t Recorder::intern(std::string_view text, std::string_view arg0_label, std::string_view arg1_label) {
  std::lock_guard lock(mutex_);
  auto found = ids_.find(std::string(text));
  if (found == ids_.end() && names_.size() >= kMaxInternedNames) found = ids_.find("(other)");
  if (found != ids_.end()) return found->second;
  if (names_.size() + 1 == kMaxInternedNames) text = "(other)";
  names_.push_back({printable(std::string(text)), std::string(arg0_label), std::string(arg1_label)});
  return ids_[std::string(text)] = static_cast<uint32_t>(names_.size() - 1);
}

uint32_t Recorder::reserve_names(size_t count) noexcept {
  return next_reserved_name.fetch_add(static_cast<uint32_t>(count), std::memory_order_relaxed);
}

uint16_t Recorder::next_run() noexcept {
  static constinit std::atomic<uint16_t> last{0};
  uint16_t number = 0;
  while (number == 0) number = static_cast<uint16_t>(last.fetch_add(1, std::memory_order_relaxed) + 1);
  return number;
}

void Recorder::lose(uint64_t from) noexcept {
  if (from < wanted_from_.load(std::memory_order_acquire)) return;  // the record is of a run that continues after all profiles ended
  dropped_.fetch_add(1, std::memory_order_relaxed);
  uint64_t seen = lost_from_.load(std::memory_order_relaxed);
  while (from < seen && !lost_from_.compare_exchange_weak(seen, from, std::memory_order_relaxed)) {
  }
}

Recorder::Block* Recorder::new_block() noexcept {
  const uint64_t before = blocks_.fetch_add(1, std::memory_order_relaxed), most = max_blocks_.load(std::memory_order_relaxed);
  // Each other thread may hold a block that is not full; such blocks do not count. Otherwise, with a low limit, this thread might find no
  // free block as long as those threads exist.
  const auto others = [&] {
    std::lock_guard lock(mutex_);
    return logs_.size() - (current_.recorder == id_ && current_.log ? 1 : 0);
  };
  if (before >= most && before >= most + others()) {
    Block* oldest = keeps_last_.load(std::memory_order_relaxed) ? take_oldest() : nullptr;
    if (oldest || !keeps_last_.load(std::memory_order_relaxed)) {
      blocks_.fetch_sub(1, std::memory_order_relaxed);
      return oldest;
    }
    // Not an error: each thread may have one block that is not full.
  }
  return new (std::nothrow) Block;
}

// Takes the block with the earliest end, to be overwritten.
Recorder::Block* Recorder::take_oldest() noexcept {
  std::lock_guard lock(mutex_);
  ThreadLog* from = nullptr;
  for (const auto& log : logs_)
    if (log->first && log->first->full.load(std::memory_order_acquire) && (!from || log->first->last_end < from->first->last_end))
      from = log.get();
  if (!from) return nullptr;
  Block* block = from->first;
  from->first = block->next.load(std::memory_order_acquire);
  ++from->first_number;
  const uint32_t used = block->used.load(std::memory_order_relaxed);
  uint64_t records = used;
  for (uint32_t i = 0; i < used; ++i)
    if (block->events[i].has_arguments) --records, ++i;
  dropped_.fetch_add(records, std::memory_order_relaxed);
  lost_until_.store(std::max(lost_until_.load(std::memory_order_relaxed), block->last_end), std::memory_order_relaxed);
  block->used.store(0, std::memory_order_relaxed);
  block->full.store(false, std::memory_order_relaxed);
  block->next.store(nullptr, std::memory_order_relaxed);
  return block;
}

Recorder::ThreadLog* Recorder::register_thread() noexcept {
  if (thread_is_ending) return nullptr;
  const uint64_t since = read_ticks();
  try {
    auto log = std::make_shared<ThreadLog>();
#if defined(__linux__)
    log->system_id = syscall(SYS_gettid);
    char name[16] = {};
    if (pthread_getname_np(pthread_self(), name, sizeof name) == 0) log->name = printable(name);
#endif
    std::vector<std::shared_ptr<ThreadLog>>& own = OwnLogs::of_thread().logs;
    std::erase_if(own, [](const auto& other) { return other.use_count() == 1; });  // their recorders have been destroyed
    Block* first = new_block();
    std::lock_guard lock(mutex_);
    // A thread that wrote to another recorder since its last record here finds its old log again.
    auto same = std::find_if(logs_.begin(), logs_.end(), [&](const auto& other) {
      return other->system_id == log->system_id && log->system_id != 0 && !other->ended.load(std::memory_order_relaxed);
    });
    if (same != logs_.end()) {
      if (first) {
        delete first;
        blocks_.fetch_sub(1, std::memory_order_relaxed);
      }
      current_ = {id_, same->get()};
      return same->get();
    }
    log->first = log->last = first;
    if (first) {
      own.push_back(log);
      logs_.push_back(std::move(log));
      current_ = {id_, logs_.back().get()};
      return logs_.back().get();
    }
  } catch (const std::exception&) {
    // Out of memory: the record is lost, but the run continues.
  }
  lose(since);
  return nullptr;
}

Recorder::Block* Recorder::next_block(ThreadLog& log, uint64_t lost_from) noexcept {
  Block* block = new_block();
  if (!block) {
    // A thread's records are ordered by their ends. So no record is missing before the last recorded end, however early a lost record
    // began.
    if (lost_from >= wanted_from_.load(std::memory_order_acquire)) lost_from = std::max(lost_from, log.last_end);
    lose(lost_from);
    return nullptr;
  }
  anchor_if_due();
  log.last->last_end = log.last_end;
  log.last->next.store(block, std::memory_order_release);
  log.last->full.store(true, std::memory_order_release);
  log.last = block;
  return block;
}

void Recorder::open(RecordWindow& window) {
  std::lock_guard lock(mutex_);
  windows_.push_back(&window);
  give_back();
  if (windows_.size() == 1) lost_from_ = UINT64_MAX, lost_until_ = 0;
  follow_windows();  // before the window's start is set, so that there are blocks for all later records
  window.start_ = read_ticks();
  window.dropped_before_ = dropped_.load();
  keep_anchor(read_anchor());
  wanted_from_.store(wanted_from(), std::memory_order_release);
}

void Recorder::close(RecordWindow& window) {
  std::lock_guard lock(mutex_);
  std::erase(windows_, &window);
  wanted_from_.store(wanted_from(), std::memory_order_release);
  follow_windows();
  give_back();
}

void Recorder::follow_windows() {
  uint64_t most = 0;
  bool keeps_last = !windows_.empty();
  for (const RecordWindow* window : windows_) {
    most = std::max(most, blocks_for(window->limits().max_records, kBlockEvents));
    keeps_last = keeps_last && window->limits().keep_last;
  }
  max_blocks_ = most;
  keeps_last_ = keeps_last;
}

uint64_t Recorder::wanted_from() const {
  uint64_t from = UINT64_MAX;
  for (const RecordWindow* window : windows_)
    if (window->start_ != 0) from = std::min(from, window->start_);
  return from;
}

void Recorder::give_back() {
  for (const auto& log : logs_) {
    const bool ended = log->ended.load(std::memory_order_acquire);
    while (log->first && (ended || log->first->full.load(std::memory_order_acquire)) && !is_needed(*log)) {
      delete std::exchange(log->first, log->first->next.load(std::memory_order_acquire));
      ++log->first_number;
      blocks_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  for (const auto& log : logs_)
    if (!log->first)
      for (RecordWindow* window : windows_) window->cursors_.erase(log.get());
  std::erase_if(logs_, [](const auto& log) { return !log->first; });
  if (!windows_.empty()) return;
  late_.clear();
  anchors_.clear();
  anchor_seconds_ = 1;
  anchor_due_ = UINT64_MAX;
}

bool Recorder::is_needed(const ThreadLog& log) const {
  const bool full = log.first->full.load(std::memory_order_acquire);
  return std::any_of(windows_.begin(), windows_.end(), [&](const RecordWindow* window) {
    if (window->start_ == 0) return false;
    if (!window->limits().streams) return !full || log.first->last_end >= window->start_;
    const auto cursor = window->cursors_.find(&log);
    if (cursor == window->cursors_.end() || cursor->second.block < log.first_number) return true;
    return cursor->second.block == log.first_number && (full || cursor->second.used < log.first->used.load(std::memory_order_acquire));
  });
}

std::vector<DrainedThread> Recorder::drain(RecordWindow& window, uint64_t& dropped) {
  std::vector<DrainedThread> threads;
  std::lock_guard lock(mutex_);
  if (!window.is_open_) return threads;
  dropped = dropped_.load() - window.dropped_before_;
  for (const auto& log : logs_) {
    RecordWindow::Cursor& cursor = window.cursors_[log.get()];
    DrainedThread thread{log->system_id, log->name, {}};
    uint64_t number = log->first_number;
    for (const Block* block = log->first; block; block = block->next.load(std::memory_order_acquire), ++number) {
      const bool full = block->full.load(std::memory_order_acquire);
      const uint32_t used = block->used.load(std::memory_order_acquire);
      if (number >= cursor.block) {
        const uint32_t begin = number == cursor.block ? cursor.used : 0;
        thread.events.insert(thread.events.end(), block->events + begin, block->events + used);
        cursor = full ? RecordWindow::Cursor{number + 1, 0} : RecordWindow::Cursor{number, used};
      }
      if (!full) break;  // stops at an unfinished block, as in visit()
    }
    if (!thread.events.empty()) threads.push_back(std::move(thread));
  }
  for (; window.num_late_ < late_.size(); ++window.num_late_)
    threads.push_back({late_[window.num_late_].first, {}, {late_[window.num_late_].second}});
  give_back();
  return threads;
}

void Recorder::record_for(int64_t system_id, uint32_t name, RecordKind kind, uint64_t start, uint64_t end) {
  std::lock_guard lock(mutex_);
  if (!windows_.empty()) late_.push_back({system_id, {start, end, name, kind, false, 0, 0}});
}

void Recorder::begin_for(int64_t system_id, uint32_t name, RecordKind kind, uint64_t start) {
  std::lock_guard lock(mutex_);
  const auto ranges_kind = static_cast<uint8_t>(static_cast<uint8_t>(kind) & 0x7FU);
  if (windows_.empty() || late_.size() >= kMostLateBegins) return;
  late_.push_back({system_id, {start, start, name, RecordKind::begin, false, ranges_kind, 0}});
}

std::vector<RecordName> Recorder::names_from(size_t first) const {
  std::lock_guard lock(mutex_);
  return {names_.begin() + static_cast<std::ptrdiff_t>(std::min(first, names_.size())), names_.end()};
}

int64_t Recorder::unix_ns(uint64_t ticks) const {
  Recording recording;
  start_of(recording, ticks);
  return recording.start_unix_ns;
}

double Recorder::ns_per_tick() const {
  Recording recording;
  start_of(recording, start_ticks_);
  return recording.ns_per_tick;
}

// Sets the start in ticks and in wall-clock time, and the rate of ticks since the recorder was made.
void Recorder::start_of(Recording& recording, uint64_t start_ticks) const {
  const ClockAnchor now = read_anchor();
  if (now.ticks > start_ticks_ && now.steady_ns > start_ns_)
    recording.ns_per_tick = static_cast<double>(now.steady_ns - start_ns_) / static_cast<double>(now.ticks - start_ticks_);
  recording.start_ticks = start_ticks;
  recording.start_unix_ns = now.unix_ns - static_cast<int64_t>(recording.to_ns(now.ticks));
  recording.anchors = {now};
}

// Calls take(record, thread) for all records, thread by thread. @pre the caller holds the mutex
template <typename Take>
void Recorder::visit(Recording& recording, const Take& take) const {
  for (const auto& log : logs_) {
    recording.threads.push_back({static_cast<uint32_t>(recording.threads.size()), log->system_id, log->name, {}});
    for (const Block* block = log->first; block; block = block->next.load(std::memory_order_acquire)) {
      const bool full = block->full.load(std::memory_order_acquire);
      const uint32_t used = block->used.load(std::memory_order_acquire);
      each_record({block->events, used}, [&](const Record& record) { take(record, recording.threads.back()); });
      if (!full) break;  // the thread may have filled this block by now and continued in the next one: reading that would leave a gap
    }
  }
  for (const auto& [system_id, event] : late_) {
    auto thread = std::find_if(recording.threads.begin(), recording.threads.end(),
                               [id = system_id](const Recording::Thread& other) { return other.system_id == id; });
    if (thread == recording.threads.end())
      thread = recording.threads.insert(thread, {static_cast<uint32_t>(recording.threads.size()), system_id, {}, {}});
    each_record({&event, 1}, [&](const Record& record) { take(record, *thread); });
  }
}

Recording Recorder::collect() const {
  Recording recording;
  start_of(recording, start_ticks_);
  recording.dropped = dropped_.load();
  std::lock_guard lock(mutex_);
  recording.names = names_;
  visit(recording, [](const Record& record, Recording::Thread& thread) { thread.records.push_back(record); });
  return recording;
}

Recording Recorder::collect(const RecordFilter& filter, const RecordWindow& window) const {
  Recording recording;
  start_of(recording, window.start());
  recording.names = filter.texts;
  std::lock_guard lock(mutex_);
  // Copies the anchors, beginning with the last one before the window.
  const auto first = std::upper_bound(anchors_.begin(), anchors_.end(), window.start(),
                                      [](uint64_t ticks, const ClockAnchor& anchor) { return ticks < anchor.ticks; });
  recording.anchors.insert(recording.anchors.begin(), first == anchors_.begin() ? first : first - 1, anchors_.end());
  recording.start_unix_ns = recording.anchors.front().unix_ns - static_cast<int64_t>(recording.to_ns(recording.anchors.front().ticks));
  recording.dropped = dropped_.load() - window.dropped_before_;
  recording.complete_from = lost_until_.load();
  // A run that ends during this loop may have had nodes on threads visited already.
  recording.complete_until = std::min(lost_from_.load(), read_ticks());
  RecordPicker picker(filter, names_, recording);
  visit(recording, [&](const Record& record, Recording::Thread& thread) { picker.take(record, thread); });
  const uint64_t lost_from = lost_from_.load(), now = read_ticks();
  if (lost_from < now) recording.gaps.emplace_back(lost_from, now);
  picker.end_open_ranges(now);
  std::erase_if(recording.threads, [](const Recording::Thread& thread) { return thread.records.empty(); });
  for (size_t i = 0; i < recording.threads.size(); ++i) recording.threads[i].index = static_cast<uint32_t>(i);
  return recording;
}

RecordWindow::RecordWindow(Recorder& recorder, const Limits& limits) : recorder_(recorder), limits_(limits) {
  recorder_.open(*this);
  if (&recorder != &Recorder::of_process()) return;
  num_open_.fetch_add(1);
  if (limits.memory) num_for_memory_.fetch_add(1);
  if (limits.kernel_phases) detail::num_wanting_phases.fetch_add(1);
}

RecordWindow::~RecordWindow() { close(); }

void RecordWindow::close() {
  if (!std::exchange(is_open_, false)) return;
  if (&recorder_ == &Recorder::of_process()) {
    num_open_.fetch_sub(1);
    if (limits_.memory) num_for_memory_.fetch_sub(1);
    if (limits_.kernel_phases) detail::num_wanting_phases.fetch_sub(1);
  }
  recorder_.close(*this);
}

}  // namespace treadle
