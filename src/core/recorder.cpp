#include "core/recorder.h"

#include <algorithm>
#include <new>

#if defined(__linux__)
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace treadle {
namespace {

bool time_stamp_counter_is_steady() {
#if defined(__x86_64__)
  uint32_t a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d >> 8 & 1U) != 0;  // "invariant TSC"
#else
  return false;
#endif
}

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Both clocks at one moment: of some tries the one that was interrupted least.
struct ClockPair {
  uint64_t ticks;
  int64_t ns;
};
ClockPair read_both() {
  ClockPair best{};
  uint64_t least = ~uint64_t{0};
  for (int i = 0; i < 20; ++i) {
    uint64_t before = read_ticks();
    int64_t ns = steady_ns();
    uint64_t after = read_ticks();
    if (after - before < least) least = after - before, best = {before + (after - before) / 2, ns};
  }
  return best;
}

std::atomic<uint64_t> next_recorder_id{1};  // 0: no recorder

}  // namespace

const bool detail::kTimeStampCounterIsSteady = time_stamp_counter_is_steady();

thread_local constinit Recorder::Current Recorder::current_{0, nullptr};

Recorder::Recorder(uint64_t max_records)
    : id_(next_recorder_id.fetch_add(1)), max_blocks_(max_records / kBlockEvents + (max_records % kBlockEvents != 0)) {
  ClockPair start = read_both();
  start_ticks_ = start.ticks;
  start_ns_ = start.ns;
  start_unix_ns_ = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Recorder::~Recorder() {
  for (auto& log : logs_)
    for (Block* block = log->first; block;) delete std::exchange(block, block->next.load());
}

uint32_t Recorder::intern(std::string_view text, std::string_view arg0_label, std::string_view arg1_label) {
  std::lock_guard lock(mutex_);
  auto [found, is_new] = ids_.try_emplace(std::string(text), static_cast<uint32_t>(names_.size()));
  if (is_new) names_.push_back({std::string(text), std::string(arg0_label), std::string(arg1_label)});
  return found->second;
}

uint32_t Recorder::add_name(std::string_view text) {
  std::lock_guard lock(mutex_);
  names_.push_back({std::string(text), {}, {}});
  return static_cast<uint32_t>(names_.size() - 1);
}

Recorder::Block* Recorder::new_block() noexcept {
  if (blocks_.fetch_add(1, std::memory_order_relaxed) >= max_blocks_) {
    blocks_.fetch_sub(1, std::memory_order_relaxed);
    return nullptr;
  }
  return new (std::nothrow) Block;
}

Recorder::ThreadLog* Recorder::register_thread() noexcept {
  try {
    auto log = std::make_unique<ThreadLog>();
#if defined(__linux__)
    log->system_id = syscall(SYS_gettid);
    char name[16] = {};
    if (pthread_getname_np(pthread_self(), name, sizeof name) == 0) log->name = name;
#endif
    std::lock_guard lock(mutex_);
    // A thread that wrote to another recorder in between finds its log again.
    auto same = std::find_if(logs_.begin(), logs_.end(), [&](const auto& other) { return other->system_id == log->system_id; });
    if (log->system_id != 0 && same != logs_.end()) {
      current_ = {id_, same->get()};
      return same->get();
    }
    log->first = log->last = new_block();
    if (log->first) {
      logs_.push_back(std::move(log));
      current_ = {id_, logs_.back().get()};
      return logs_.back().get();
    }
  } catch (const std::exception&) {
    // No memory: the record is lost, the run goes on.
  }
  dropped_.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

Recorder::Block* Recorder::next_block(ThreadLog& log) noexcept {
  Block* block = new_block();
  if (!block) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  log.last->next.store(block, std::memory_order_release);
  log.last->full.store(true, std::memory_order_release);
  log.last = block;
  return block;
}

Recording Recorder::collect() const {
  Recording recording;
  ClockPair now = read_both();
  recording.start_ticks = start_ticks_;
  recording.start_unix_ns = start_unix_ns_;
  recording.dropped = dropped_.load();
  if (now.ticks > start_ticks_ && now.ns > start_ns_)
    recording.ns_per_tick = static_cast<double>(now.ns - start_ns_) / static_cast<double>(now.ticks - start_ticks_);
  std::lock_guard lock(mutex_);
  recording.names = names_;
  for (const auto& log : logs_) {
    Recording::Thread thread{static_cast<uint32_t>(recording.threads.size()), log->system_id, log->name, {}};
    for (const Block* block = log->first; block; block = block->next.load(std::memory_order_acquire)) {
      const bool full = block->full.load(std::memory_order_acquire);
      const uint32_t used = block->used.load(std::memory_order_acquire);
      for (uint32_t i = 0; i < used; ++i) {
        const Event& event = block->events[i];
        Record& record = thread.records.emplace_back(Record{event.start, event.end, 0, 0, event.name, event.kind});
        if (!event.has_arguments) continue;
        const Event& arguments = block->events[++i];
        record.arg0 = static_cast<int64_t>(arguments.start), record.arg1 = static_cast<int64_t>(arguments.end);
      }
      if (!full) break;  // its thread may have filled it since and gone on to the next: that would leave a hole here
    }
    recording.threads.push_back(std::move(thread));
  }
  return recording;
}

}  // namespace treadle
