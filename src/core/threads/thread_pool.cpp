// How a parallel region (a loop that threads share) runs. The caller takes a free slot of a small table, writes the loop into it, opens it
// (`next` = 0), and sets the slot's bit in the mask that idle workers watch. `next` holds two counters of claimed chunks, the caller's and
// the helpers'; a thread claims a chunk by adding one to its counter. Whoever claims the last chunk, or is the last helper wanted, clears
// the bit. In every loop, the caller takes the first chunks and helpers the later ones, so that data written by a thread is still in its
// core's cache when it reads the same part in the next loop. A thread that finds no chunks left there continues in the other part.
// A worker increments the slot's `users` before it checks whether the slot is open; the caller first closes the slot and then waits until
// `users` is 0. These accesses have a total order: the worker sees the closed slot, or the caller sees the worker. So a worker never reads
// a slot that was given to another region, and no thread waits for a chunk that nobody has claimed.
// A slot may hold a TaskSource instead of a loop: `body` is null, and the bit means that there may be a task to claim. A worker clears the
// bit before it looks for tasks, so a task that is announced afterwards sets it again.
#include "core/threads/thread_pool.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <exception>
#include <limits>
#include <utility>
#include <vector>

#include "core/base/cpu_info.h"
#include "core/base/fork_mutex.h"
#include "core/base/futex.h"
#include "core/threads/float_mode.h"
#include "core/threads/thread_factory.h"
#include "core/trace/kernel_phases.h"
#include "core/trace/pool_states.h"

#if defined(__unix__)
#include <pthread.h>
#include <signal.h>
#endif

namespace treadle {
namespace {

constexpr int kNumSlots = 64;                  // one per bit of the mask; if all slots are in use, callers run their loops alone
constexpr int64_t kClosed = int64_t{1} << 62;  // value of `next` in a closed slot; late claims may increase it
constexpr int64_t kOwnersClaim = 1, kHelpersClaim = int64_t{1} << 32;  // the units of the two counters in `next`
constexpr int64_t kMostChunks = int64_t{1} << 30;                      // keeps each counter within its bits
constexpr uint32_t kOwnerSleeps = 1U << 31;                            // a flag in `users`
// Time that a worker spins before it sleeps: about twice the time that it takes to wake a sleeping thread.
constexpr auto kSpinTime = std::chrono::microseconds(60);
constexpr int kSpinsPerClockRead = 64;

// The caller's part of a region, on its stack.
struct Owner {
  std::atomic<bool> has_error{false};
  std::exception_ptr error;  // the first exception that was thrown
  LoopBreak* loop_break = nullptr;
  PhaseState phases;  // the node and phase that the caller is in
};

// Maps a claim to its chunk.
struct Claim {
  Claim(int64_t before, bool owns) : owners(before & (kHelpersClaim - 1)), helpers(before >> 32), owns(owns) {}
  /// Returns the number of chunks that were claimed before.
  int64_t claimed() const { return owners + helpers; }
  /// The owner takes the first `first_part` chunks from the front, helpers the rest. A thread that finds no chunk left in its part takes
  /// the last one of the other part.
  int64_t chunk(int64_t num_chunks, int64_t first_part) const {
    const int64_t rest = num_chunks - first_part;
    if (owns) return owners < first_part ? owners : num_chunks - 1 - (owners - first_part);
    return helpers < rest ? first_part + helpers : first_part - 1 - (helpers - rest);
  }
  int64_t owners, helpers;
  bool owns;
};

// One parallel region. All members that a participant uses are on one cache line.
struct alignas(64) Slot {
  std::atomic<bool> owned{false};
  bool limited = false;  // true: nested loops stay on their thread (ParallelLimit)
  uint16_t max_helpers = 0;
  std::atomic<uint32_t> users{0};  // number of workers that use the slot, and the flag kOwnerSleeps
  std::atomic<int64_t> next{kClosed};
  int64_t n = 0, grain = 0, num_chunks = 0;
  void (*body)(void*, int64_t, int64_t) = nullptr;
  void* context = nullptr;
  Owner* owner = nullptr;
};
static_assert(sizeof(Slot) == 64);

constexpr uint32_t kNotStarted = std::numeric_limits<uint32_t>::max(), kStarting = kNotStarted - 1;

// Returns the slot that this thread tries first. Threads get different ones, so that their loops rarely try the same slot.
unsigned preferred_slot() {
  static std::atomic<unsigned> threads{0};
  thread_local const unsigned slot = threads.fetch_add(1, std::memory_order_relaxed);
  return slot;
}

thread_local int thread_limit = std::numeric_limits<int>::max();
thread_local LoopBreak* loop_break_of_thread = nullptr;
thread_local ThreadPool* counted_in = nullptr;  // the pool in which the thread's run is counted

// Calls `done` until it returns true, for at most kSpinTime. Returns its last result.
template <typename Done>
bool spin_until(Done&& done) {
  for (int i = 0; i < kSpinsPerClockRead; ++i) {
    if (done()) return true;
    cpu_relax();
  }
  auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kSpinsPerClockRead; ++i) {
      if (done()) return true;
      cpu_relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return done();
}

#if defined(__unix__)
// Blocks signals while workers start, which inherit the blocking: signals should reach only the program's own threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};
#else
struct SignalsBlocked {};
#endif

}  // namespace

ParallelLimit::ParallelLimit(int max_threads) : before_(thread_limit) { thread_limit = std::min(before_, std::max(1, max_threads)); }
ParallelLimit::~ParallelLimit() { thread_limit = before_; }

LoopBreakScope::LoopBreakScope(LoopBreak* loop_break) : before_(std::exchange(loop_break_of_thread, loop_break)) {}
LoopBreakScope::~LoopBreakScope() { loop_break_of_thread = before_; }
LoopBreak* LoopBreakScope::current() noexcept { return loop_break_of_thread; }

PoolCaller::PoolCaller(ThreadPool* pool) : pool_(counted_in ? nullptr : pool) {
  if (!pool_) return;
  counted_in = pool_;
  pool_->count_callers(1);
}

PoolCaller::~PoolCaller() {
  if (!pool_) return;
  pool_->count_callers(-1);
  counted_in = nullptr;
}

PoolCaller::Away::Away() : pool_(std::exchange(counted_in, nullptr)) {
  if (pool_) pool_->count_callers(-1);
}

PoolCaller::Away::~Away() {
  if (pool_) pool_->count_callers(1);
  counted_in = pool_;
}

struct ThreadPool::Impl {
  // Idle workers watch this mask, so it is on another cache line than the members that callers of regions write.
  alignas(64) std::atomic<uint64_t> open_slots{0};
  std::atomic<uint64_t> source_slots{0};  // slots with a TaskSource: threads in help_until() ignore them
  std::atomic<uint32_t> wakeups{0};       // the word on which workers sleep
  std::atomic<int> sleepers{0};
  std::atomic<bool> stopping{false};
  alignas(64) std::atomic<int> callers{0};                      // number of live PoolCallers
  std::atomic<uint32_t> callers_generation{fork_generation()};  // the fork_generation() of the process whose callers `callers` counts
  alignas(64) std::array<Slot, kNumSlots> slots;
  alignas(64) std::atomic<uint32_t> generation{kNotStarted};  // the fork_generation() of the process in which the workers run
  int num_threads = 1;
  ThreadFactory factory;
  PoolThreads* workers = nullptr;

  ~Impl() { stop(); }

  bool ready();
  void start(uint32_t current);
  void stop();
  void end_workers();
  void work(unsigned index);
  // The number of threads that may help a caller.
  int helpers() const { return num_threads - std::max(1, callers.load(std::memory_order_relaxed)); }
  uint64_t open_loops() const { return open_slots.load() & ~source_slots.load(std::memory_order_relaxed); }
  int take_slot();
  bool help(unsigned slot_index, bool loops_only = false);
  bool run_chunks(Slot& slot, unsigned slot_index, bool owns);
  void rest(Slot& slot, unsigned slot_index, LoopBreak& loop_break);
  void call_helpers(const Slot& slot, unsigned slot_index);
  bool run_shared(int64_t n, int64_t grain, int64_t num_chunks, int max_helpers, Body body, void* context);
  void open(unsigned slot_index);
  void hide(unsigned slot_index) { open_slots.fetch_and(~(uint64_t{1} << slot_index)); }  // no more helpers are wanted
  static void await_users(Slot& slot);
};

// Returns true if the workers exist in this process. The first region starts them, also in a forked child. While one caller starts them,
// other callers run their loops alone instead of waiting for a lock, since after a fork the thread that holds it may not exist.
bool ThreadPool::Impl::ready() {
  uint32_t current = fork_generation(), seen = generation.load(std::memory_order_acquire);
  if (seen == current) return true;
  if (seen == kStarting || !generation.compare_exchange_strong(seen, kStarting, std::memory_order_acquire)) return false;
  start(current);
  generation.store(current, std::memory_order_release);
  return true;
}

void ThreadPool::Impl::start(uint32_t current) {
  (void)current;
  // After a fork, the table may show regions of threads that no longer exist.
  open_slots = 0;
  sleepers = 0;
  for (Slot& slot : slots) {
    slot.next = kClosed;
    slot.users = 0;
    slot.owned = false;
  }
  workers = new PoolThreads(factory);  // after a fork, leaks the parent's handles: they can be neither joined nor detached
  [[maybe_unused]] SignalsBlocked blocked;
  try {
    workers->start(
        num_threads - 1, [](void* self, unsigned index) { static_cast<Impl*>(self)->work(index); }, this);
  } catch (...) {
    end_workers();
    throw;
  }
}

void ThreadPool::Impl::end_workers() {
  stopping.store(true);
  wakeups.fetch_add(1);
  futex_wake(wakeups);
  workers->join();
  delete std::exchange(workers, nullptr);
}

void ThreadPool::Impl::stop() {
  if (generation.load(std::memory_order_acquire) != fork_generation()) return;
  end_workers();
}

void ThreadPool::Impl::work(unsigned index) {
  auto something_to_do = [&] { return open_slots.load(std::memory_order_acquire) != 0 || stopping.load(std::memory_order_relaxed); };
  uint64_t idle_since = pool_state_clock();  // the end of the last recorded state: states follow each other without gaps
  while (!stopping.load(std::memory_order_relaxed)) {
    if (uint64_t open = open_slots.load(std::memory_order_acquire)) {
      int turn = static_cast<int>(index * 7 % kNumSlots);  // workers begin with different regions
      const uint64_t begin = pool_state_clock();
      if (!help(static_cast<unsigned>((std::countr_zero(std::rotr(open, turn)) + turn) % kNumSlots))) continue;
      record_pool_state(PoolState::no_ready_work, idle_since, begin);
      idle_since = pool_state_clock();
      record_pool_state(PoolState::running, begin, idle_since);
      continue;
    }
    if (spin_until(something_to_do)) continue;
    const uint64_t begin = pool_state_clock();
    record_pool_state(PoolState::no_ready_work, idle_since, begin);
    sleepers.fetch_add(1);
    uint32_t seen = wakeups.load();
    if (open_slots.load() == 0 && !stopping.load()) futex_wait(wakeups, seen);
    sleepers.fetch_sub(1);
    idle_since = pool_state_clock();
    record_pool_state(PoolState::asleep, begin, idle_since);
  }
}

// Helps with the region in a slot. @return true if this thread has done any work
bool ThreadPool::Impl::help(unsigned slot_index, bool loops_only) {
  bool any = false;
  Slot& slot = slots[slot_index];
  uint32_t others = slot.users.fetch_add(1) & ~kOwnerSleeps;
  if (slot.next.load() < kClosed && !slot.body) {
    if (!loops_only) {
      hide(slot_index);
      auto* source = static_cast<TaskSource*>(slot.context);
      while (source->run_one()) any = true;
    }
  } else
    // `others` may count a worker that only checks the slot. This worker then tries again, since the bit is still set.
    if (slot.next.load() < kClosed && others < slot.max_helpers) {
      if (others + 1U == slot.max_helpers) hide(slot_index);
      int before = thread_limit;
      if (slot.limited) thread_limit = 1;
      PhaseGuest phases(slot.owner->phases);
      any = run_chunks(slot, slot_index, /*owns=*/false);
      if (!any) phases.forget();
      thread_limit = before;
    }
  if (slot.users.fetch_sub(1) == (kOwnerSleeps | 1U)) futex_wake(slot.users);
  return any;
}

// Claims and runs chunks until none is left. @return true if this thread has run any chunk
bool ThreadPool::Impl::run_chunks(Slot& slot, unsigned slot_index, bool owns) {
  const int64_t num_chunks = slot.num_chunks, grain = slot.grain, n = slot.n;
  const int64_t first_part = (num_chunks + slot.max_helpers) / (slot.max_helpers + 1);
  LoopBreak* const loop_break = slot.owner->loop_break;
  for (bool any = false;; any = true) {
    const bool rests = loop_break && loop_break->wanted();
    if (rests && !owns) {
      hide(slot_index);
      return any;
    }
    const Claim claim(slot.next.fetch_add(owns ? kOwnersClaim : kHelpersClaim), owns);
    if (claim.claimed() >= num_chunks) return any;
    const bool last = claim.claimed() == num_chunks - 1;
    if (last) hide(slot_index);
    const int64_t chunk = claim.chunk(num_chunks, first_part);
    try {
      if (rests) [[unlikely]]
        rest(slot, slot_index, *loop_break);
      slot.body(slot.context, chunk * grain, chunk == num_chunks - 1 ? n : (chunk + 1) * grain);
    } catch (...) {
      if (!slot.owner->has_error.exchange(true)) slot.owner->error = std::current_exception();
      if (Claim(slot.next.exchange(num_chunks), owns).claimed() < num_chunks) hide(slot_index);  // the remaining chunks will not be claimed
    }
    if (last) return true;
  }
}

// Pauses the thread in its loop. Helpers leave the loop after their present chunks, and are called again after the pause.
void ThreadPool::Impl::rest(Slot& slot, unsigned slot_index, LoopBreak& loop_break) {
  hide(slot_index);
  loop_break.take();
  if (Claim(slot.next.load(std::memory_order_relaxed), true).claimed() < slot.num_chunks) call_helpers(slot, slot_index);
}

void ThreadPool::Impl::open(unsigned slot_index) {
  slots[slot_index].next.store(0, std::memory_order_release);
  call_helpers(slots[slot_index], slot_index);
}

void ThreadPool::Impl::call_helpers(const Slot& slot, unsigned slot_index) {
  open_slots.fetch_or(uint64_t{1} << slot_index);
  int asleep = sleepers.load();
  if (asleep == 0) return;
  wakeups.fetch_add(1);
  futex_wake(wakeups, std::min<int>(asleep, slot.max_helpers));
}

void ThreadPool::Impl::await_users(Slot& slot) {
  if (slot.users.load() == 0) return;
  const PoolStateScope waits(PoolState::barrier);
  if (spin_until([&] { return slot.users.load() == 0; })) return;
  slot.users.fetch_or(kOwnerSleeps);
  for (uint32_t users; (users = slot.users.load()) != kOwnerSleeps;) futex_wait(slot.users, users);
  slot.users.fetch_and(~kOwnerSleeps);
}

int ThreadPool::Impl::take_slot() {
  unsigned index = preferred_slot() % kNumSlots, tries = 0;
  while (slots[index].owned.load(std::memory_order_relaxed) || slots[index].owned.exchange(true, std::memory_order_acquire)) {
    if (++tries == kNumSlots) return -1;
    index = (index + 1) % kNumSlots;
  }
  return static_cast<int>(index);
}

// Returns false, without running the loop, if there is no free slot.
bool ThreadPool::Impl::run_shared(int64_t n, int64_t grain, int64_t num_chunks, int max_helpers, Body body, void* context) {
  const int taken = take_slot();
  if (taken < 0) return false;
  const auto index = static_cast<unsigned>(taken);
  Slot& slot = slots[index];
  Owner owner;
  owner.loop_break = loop_break_of_thread;
  owner.phases = PhaseState::current();
  const int limit_before = thread_limit;
  slot.limited = limit_before < num_threads;
  slot.max_helpers = static_cast<uint16_t>(std::min({int64_t{max_helpers}, int64_t{limit_before} - 1, num_chunks - 1}));
  slot.n = n;
  slot.grain = grain;
  slot.num_chunks = num_chunks;
  slot.body = body;
  slot.context = context;
  slot.owner = &owner;
  if (slot.limited) thread_limit = 1;
  open(index);
  run_chunks(slot, index, /*owns=*/true);
  thread_limit = limit_before;
  slot.next.exchange(kClosed);
  await_users(slot);
  slot.owned.store(false, std::memory_order_release);
  if (owner.has_error.load(std::memory_order_relaxed)) std::rethrow_exception(owner.error);
  return true;
}

bool ThreadPool::attach(TaskSource& source) {
  if (impl_->helpers() <= 0 || !impl_->ready()) return false;
  source.slot_ = impl_->take_slot();
  if (source.slot_ < 0) return false;
  Slot& slot = impl_->slots[static_cast<size_t>(source.slot_)];
  slot.body = nullptr;
  slot.context = &source;
  impl_->source_slots.fetch_or(uint64_t{1} << source.slot_);
  slot.next.store(0, std::memory_order_release);
  return true;
}

void ThreadPool::announce(TaskSource& source) {
  impl_->open_slots.fetch_or(uint64_t{1} << source.slot_);
  // Wakes all sleepers: one that waits in help_until() ignores task sources and would wake no other thread for this task.
  if (impl_->sleepers.load() != 0) nudge();
}

void ThreadPool::detach(TaskSource& source) {
  Slot& slot = impl_->slots[static_cast<size_t>(source.slot_)];
  slot.next.exchange(kClosed);
  Impl::await_users(slot);
  impl_->hide(static_cast<unsigned>(source.slot_));
  impl_->source_slots.fetch_and(~(uint64_t{1} << source.slot_));
  source.slot_ = -1;
  slot.owned.store(false, std::memory_order_release);
}

void ThreadPool::help_until(bool (*done)(void*), void* context) {
  auto something = [&] { return done(context) || impl_->open_loops() != 0; };
  while (!done(context)) {
    if (uint64_t open = impl_->open_loops()) {
      impl_->help(static_cast<unsigned>(std::countr_zero(open)), /*loops_only=*/true);
      continue;
    }
    {
      const PoolStateScope looks(PoolState::no_ready_work);
      if (spin_until(something)) continue;
    }
    const PoolStateScope sleeps(PoolState::asleep);
    impl_->sleepers.fetch_add(1);
    uint32_t seen = impl_->wakeups.load();
    if (!something()) futex_wait(impl_->wakeups, seen);
    impl_->sleepers.fetch_sub(1);
  }
}

void ThreadPool::nudge() {
  if (impl_->sleepers.load() == 0) return;
  impl_->wakeups.fetch_add(1);
  futex_wake(impl_->wakeups);
}

ThreadPool::ThreadPool(int num_threads) : impl_(std::make_unique<Impl>()) {
  fork_generation();  // registers the counter, so that it counts forks from here on
  constexpr int kMaxThreads = 1 << 14;
  impl_->num_threads = std::clamp(num_threads > 0 ? num_threads : cpu_info().usable_cpus, 1, kMaxThreads);
  if (const ThreadFactory* factory = ThreadFactoryScope::current()) {
    impl_->factory = *factory;
    impl_->ready();
  }
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::num_threads() const noexcept { return impl_->num_threads; }
int64_t ThreadPool::chunks_ahead() const noexcept { return std::clamp(impl_->helpers(), 1, std::max(1, thread_limit - 1)); }

void ThreadPool::count_callers(int difference) {
  // Threads counted before a fork do not exist in the child.
  const uint32_t current = fork_generation();
  if (impl_->callers_generation.load(std::memory_order_relaxed) != current && impl_->callers_generation.exchange(current) != current)
    impl_->callers = 0;
  impl_->callers.fetch_add(difference, std::memory_order_relaxed);
}

const std::shared_ptr<ThreadPool>& ThreadPool::shared() {
  // Never destroyed, since threads may still run sessions while static objects are destroyed.
  static const auto& pool = *new std::shared_ptr<ThreadPool>(std::make_shared<ThreadPool>(0));
  return pool;
}

void ThreadPool::run(int64_t n, int64_t grain, Body body, void* context) {
  if (n <= 0) return;
  grain = std::clamp<int64_t>(grain, 1, n);
  const int64_t num_chunks = (n - 1) / grain + 1;
  const int helpers = num_chunks > 1 && num_chunks <= kMostChunks && thread_limit > 1 ? impl_->helpers() : 0;
  if (helpers > 0 && impl_->ready()) {
    // Workers use the caller's mode for denormals.
    struct Job {
      Body body;
      void* context;
    } job{body, context};
    const bool flushes = DenormalsAsZero::is_on();
    Body flushed = [](void* to, int64_t begin, int64_t end) {
      DenormalsAsZero mode;
      static_cast<Job*>(to)->body(static_cast<Job*>(to)->context, begin, end);
    };
    if (impl_->run_shared(n, grain, num_chunks, helpers, flushes ? flushed : body, flushes ? static_cast<void*>(&job) : context)) return;
  }
  LoopBreak* loop_break = num_chunks > 1 ? loop_break_of_thread : nullptr;
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    if (loop_break && loop_break->wanted()) loop_break->take();
    body(context, chunk * grain, chunk + 1 < num_chunks ? (chunk + 1) * grain : n);
  }
}

}  // namespace treadle
