#include "sharing/turn.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

#include "core/base/futex.h"
#include "core/threads/thread_pool.h"
#include "core/trace/recorder.h"
#include "treadle/error.h"

namespace treadle::sharing {
namespace {

constexpr int64_t kLookNs = 2'000'000;            // interval at which a wait checks whether the run was cancelled
constexpr int64_t kShortestIdleNs = 50'000;       // shorter sleeps are mostly overhead, so less idle time than this stays owed
constexpr int64_t kMostCreditNs = 1'000'000'000;  // limits the credit of a thread that slept longer than its share required
// Opportunistic jobs continue once no guaranteed job has had work for this long. Until then the guaranteed job's client may still be using
// results. An opportunistic thread that wakes up earlier would take the client's CPU for some milliseconds.
constexpr int64_t kSettleNs = 400'000;
constexpr int64_t kShortestLookNs = 100'000;  // shortest interval between checks whether guaranteed jobs have work
constexpr int64_t kLongestLookNs = 1'000'000;
constexpr uint64_t kSweepNs = 50'000'000;  // interval at which yielding threads check whether the jobs that they wait for are alive

// Makes the name safe for status output and `name=…` lines.
std::string checked_name(const std::string& given) {
  std::string name = given.empty() ? std::string(program_invocation_short_name) : given;
  if (given.empty()) {
    name.resize(std::min(name.size(), kNameBytes - 1));
    for (char& c : name)
      if (static_cast<unsigned char>(c) <= ' ' || c == 127) c = '_';
  }
  const bool printable = std::none_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == 127; });
  if (name.empty() || name.size() >= kNameBytes || !printable)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the name of a job is \"{}\"; it must have 1 to {} bytes without spaces and control characters", given,
                            kNameBytes - 1));
  return name;
}

// True if threads of opportunistic runs use the system's idle priority. The environment must ask for it, since such a run may starve on a
// machine that is busy otherwise. A thread must also be able to restore its priority, which is tested once, on a thread that then ends.
bool takes_idle_priority() {
  static const bool takes = [] {
    const char* wanted = std::getenv("TREADLE_JOB_IDLE_PRIORITY");
    bool result = false;
    if (!wanted || std::string_view(wanted) != "1") return result;
    std::thread([&] {
      const sched_param none{};
      result = sched_setscheduler(0, SCHED_IDLE, &none) == 0 && sched_setscheduler(0, SCHED_OTHER, &none) == 0;
    }).join();
    return result;
  }();
  return takes;
}

// Returns the CPUs on which guaranteed jobs other than `index` have begun runs that have not ended.
cpu_set_t cpus_in_use(const Page& page, int index) {
  cpu_set_t used;
  CPU_ZERO(&used);
  for (uint64_t others = page.guaranteed_running.load() & ~(uint64_t{1} << index); others != 0; others &= others - 1) {
    const int cpu = page.slots[std::countr_zero(others)].cpu.load(std::memory_order_relaxed);
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &used);
  }
  return used;
}

// While opportunistic work computes, the system may place several guaranteed clients that wake up on the same CPU, and may take a whole run
// to notice that another CPU is idle. So the client that begins second moves to a free CPU itself. Right after the move, the thread may use
// all its previous CPUs again.
void take_free_cpu(const Page& page, JobSlot& slot, int index) {
  int cpu = sched_getcpu();
  const cpu_set_t used = cpus_in_use(page, index);
  cpu_set_t allowed;
  if (cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET(cpu, &used) && sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    cpu_set_t both, rest;
    CPU_AND(&both, &allowed, &used);
    CPU_XOR(&rest, &allowed, &both);
    if (CPU_COUNT(&rest) > 0 && sched_setaffinity(0, sizeof rest, &rest) == 0) {
      sched_setaffinity(0, sizeof allowed, &allowed);
      cpu = sched_getcpu();
    }
  }
  slot.cpu.store(cpu, std::memory_order_relaxed);
}

void begin_work(Page& page, JobSlot& slot, int index) {
  const bool first = slot.active.fetch_add(1) == 0;
  if (static_cast<JobClass>(slot.job_class.load()) != JobClass::guaranteed) return;
  page.guaranteed_running.fetch_or(uint64_t{1} << index);
  if (first) take_free_cpu(page, slot, index);
}

void end_work(Page& page, JobSlot& slot, int index) {
  if (slot.active.fetch_sub(1) != 1) return;
  end_guaranteed(page, index);
  if (slot.active.load() != 0 && static_cast<JobClass>(slot.job_class.load()) == JobClass::guaranteed)
    page.guaranteed_running.fetch_or(uint64_t{1} << index);  // another thread has begun a run meanwhile
}

bool coordinator_is_there(const Page& page) {
  const uint64_t beat = page.coordinator_beat_ns.load(std::memory_order_relaxed);
  return beat != 0 && now_ns() < beat + kCoordinatorTimeoutNs;
}

}  // namespace

JobState::JobState(const JobOptions& options) : page_(JobTable::get().page()) {
  JobOptions checked = options;
  checked.name = checked_name(options.name);
  share_from_percent(options.share_percent);
  claim(checked);
}

JobState::~JobState() {
  if (generation_.load() == claimed_in(fork_generation())) JobTable::get().give_back(index_);
}

void JobState::claim(const JobOptions& options) {
  index_ = JobTable::get().claim();
  JobSlot& slot = page_.slots[index_];
  std::memset(slot.name, 0, kNameBytes);
  options.name.copy(slot.name, kNameBytes - 1);
  JobChange change{.share_percent = options.share_percent, .job_class = options.job_class};
  if (options.memory_limit_bytes != 0) change.memory_limit_bytes = options.memory_limit_bytes;
  if (options.host_limit_bytes != 0) change.host_limit_bytes = options.host_limit_bytes;
  try {
    apply(page_, index_, change);
  } catch (...) {
    JobTable::get().give_back(index_);
    throw;
  }
  JobTable::get().publish(index_);
  generation_.store(claimed_in(fork_generation()), std::memory_order_release);
}

void JobState::claim_in_child() {
  const uint32_t generation = fork_generation();
  uint32_t seen = generation_.load();
  while (seen != claimed_in(generation)) {
    if (seen == claiming_in(generation)) {
      std::this_thread::yield();
      seen = generation_.load();
    } else if (generation_.compare_exchange_strong(seen, claiming_in(generation))) {
      break;
    }
  }
  if (seen == claimed_in(generation)) return;
  const JobSlot& parents = page_.slots[index_];
  JobOptions options;
  options.name.assign(parents.name, strnlen(parents.name, kNameBytes));
  options.job_class = static_cast<JobClass>(parents.job_class.load());
  options.share_percent = parents.share_percent();
  options.memory_limit_bytes = parents.memory_limit;
  options.host_limit_bytes = parents.host_limit;
  owed_ns = 0;
  try {
    claim(options);
  } catch (...) {
    generation_ = claimed_in(generation - 1);  // restores the state, so that the next call tries again
    throw;
  }
}

RunScope::RunScope(JobState* job, int threads) : job_(job) {
  if (!job_) return;
  JobSlot& slot = job_->slot();
  if (slot.threads.load(std::memory_order_relaxed) < threads) slot.threads.store(threads, std::memory_order_relaxed);
  // With idle priority, the thread of an opportunistic run gives way to all others at once, even inside a node.
  if (static_cast<JobClass>(slot.job_class.load(std::memory_order_relaxed)) == JobClass::opportunistic && takes_idle_priority()) {
    const sched_param none{};
    const int before = sched_getscheduler(0);
    if (before == SCHED_OTHER && sched_setscheduler(0, SCHED_IDLE, &none) == 0) policy_before_ = before;
  }
  slot.running.fetch_add(1);
  start_ns_ = now_ns();
}

RunScope::~RunScope() {
  if (!job_) return;
  JobSlot& slot = job_->slot();
  const uint64_t took = now_ns() - start_ns_;
  slot.running.fetch_sub(1);
  slot.run_ns.fetch_add(took, std::memory_order_relaxed);
  slot.last_step_ns.store(took, std::memory_order_relaxed);
  const uint64_t average = slot.average_step_ns.load(std::memory_order_relaxed);
  slot.average_step_ns.store(average == 0 ? took : (7 * average + took) / 8, std::memory_order_relaxed);
  slot.runs.fetch_add(1, std::memory_order_relaxed);
  if (policy_before_ >= 0) {
    const sched_param none{};
    sched_setscheduler(0, policy_before_, &none);
  }
}

const std::atomic<uint32_t> Turn::kNothing{0};
thread_local constinit Turn* Turn::of_thread_ = nullptr;

void Turn::begin(JobState* job, Recorder* recorder, uint16_t record_run, Interruption interruption) {
  JobSlot& slot = job->slot();
  word_ = &slot.word;
  if (of_thread_ && of_thread_->state_.job == job) {
    current_ = of_thread_;
    return;
  }
  current_ = this;
  state_ = {.job = job, .slot = &slot, .recorder = recorder, .record_run = record_run, .interruption = interruption};
  outer_ = of_thread_;
  of_thread_ = this;
  begin_work(job->page(), slot, job->index());
}

void Turn::end() {
  of_thread_ = outer_;
  if (state_.boundary_ns != 0 && state_.slot->word.load() == state_.seen) account(now_ns());
  if (state_.owed_ns != 0) state_.job->owed_ns.fetch_add(state_.owed_ns);
  end_work(state_.job->page(), *state_.slot, state_.job->index());
}

// Takes over the idle time that earlier runs still owe, if the job's settings have not changed; after a change, none is owed yet.
void Turn::open_account(uint32_t word) {
  const bool same = state_.job->account_word.exchange(word) == word;
  const int64_t carried = state_.job->owed_ns.exchange(0);
  state_.owed_ns = same ? carried : 0;
  state_.seen = word;
  state_.boundary_ns = 0;
}

// Counts the time since the current node began as busy; the job then owes idle time for it.
void Turn::account(uint64_t now) {
  const uint32_t share = std::min(state_.slot->share.load(std::memory_order_relaxed), state_.slot->granted.load(std::memory_order_relaxed));
  if (share > 0 && share < kFullShare)
    state_.owed_ns += static_cast<int64_t>(static_cast<double>(now - state_.boundary_ns) * (kFullShare - share) / share);
  state_.boundary_ns = 0;
}

void Turn::act(const NodeHint& hint) {
  state_.hint = hint;
  JobSlot& slot = *state_.slot;
  uint32_t word = slot.word.load(std::memory_order_acquire);
  if (slot.granted.load(std::memory_order_relaxed) < kFullShare && !coordinator_is_there(state_.job->page())) {
    end_grants(state_.job->page());
    word = slot.word.load();
  }
  if (word != state_.seen)
    open_account(word);
  else if (state_.boundary_ns != 0)
    account(now_ns());
  if ((word & kSuspended) != 0) wait_suspended();
  if ((word & kGivesWay) != 0) give_way();
  if ((word & kThrottled) != 0) {
    if (state_.owed_ns >= kShortestIdleNs) sleep_off(now_ns());
    state_.boundary_ns = now_ns();
  }
  if ((word & kPublishes) != 0) state_.job->page().guaranteed_bound.store(static_cast<uint32_t>(hint.bound), std::memory_order_relaxed);
}

// Waits, and adds the waiting time to `counter`. During the wait, the job's slot does not count this thread as active.
template <typename Wait>
void Turn::away(const char* what, std::atomic<uint64_t>& counter, Wait&& wait) {
  State& state = state_;
  Page& page = state.job->page();
  const int index = state.job->index();
  const uint32_t name = state.recorder ? state.recorder->intern(what) : 0;
  const uint64_t start = now_ns(), start_ticks = state.recorder ? read_ticks() : 0;
  PoolCaller::Away not_counted;
  end_work(page, *state.slot, index);
  struct Back {
    State& state;
    Page& page;
    int index;
    std::atomic<uint64_t>& counter;
    uint64_t start, start_ticks;
    uint32_t name;
    ~Back() {
      begin_work(page, *state.slot, index);
      const uint64_t waited = now_ns() - start;
      counter.fetch_add(waited, std::memory_order_relaxed);
      state.owed_ns = std::max(state.owed_ns - static_cast<int64_t>(waited), -kMostCreditNs);
      if (state.recorder) state.recorder->record(name, RecordKind::wait, start_ticks, read_ticks(), 0, 0, state.record_run);
    }
  } back{state, page, index, counter, start, start_ticks, name};
  wait();
}

void Turn::sleep_off(uint64_t now) {
  const uint64_t until = now + static_cast<uint64_t>(state_.owed_ns);
  away("idle slot", state_.slot->idle_ns, [&] {
    for (uint64_t time = now; time < until; time = now_ns()) {
      if (state_.slot->word.load() != state_.seen) break;
      futex_wait_shared(state_.slot->word, state_.seen, std::min(static_cast<int64_t>(until - time), kLookNs));
      state_.interruption.check(state_.interruption.context);
    }
  });
}

void Turn::wait_suspended() {
  away("suspended", state_.slot->idle_ns, [&] {
    for (uint32_t word; ((word = state_.slot->word.load()) & kSuspended) != 0;) {
      if (state_.slot->granted.load() == 0 && !coordinator_is_there(state_.job->page())) end_grants(state_.job->page());
      futex_wait_shared(state_.slot->word, word, kLookNs);
      state_.interruption.check(state_.interruption.context);
    }
  });
}

bool Turn::must_give_way() const noexcept {
  const Page& page = state_.job->page();
  const NodeHint& hint = state_.hint;
  if (page.guaranteed_running.load() == 0) return false;
  const Beside beside = page.beside.load(std::memory_order_relaxed);
  if (beside == Beside::none || !coordinator_is_there(page)) return true;
  const uint64_t longest = page.max_beside_ns.load(std::memory_order_relaxed);
  if (longest != 0 && (hint.estimated_ns == 0 || hint.estimated_ns > longest)) return true;
  if (beside == Beside::any) return false;
  if (hint.bound == Bound::unknown) return true;
  if (beside == Beside::compute_bound) return hint.bound != Bound::compute;
  const auto others = static_cast<Bound>(page.guaranteed_bound.load(std::memory_order_relaxed));
  return others == Bound::unknown || others == hint.bound;
}

void Turn::give_way() {
  Page& page = state_.job->page();
  if (!must_give_way()) return;
  away("gives way", state_.slot->gave_way_ns, [&] {
    const uint64_t start = now_ns();
    uint64_t next_sweep = start + kSweepNs;
    // Checks from time to time, because no thread wakes this one: the guaranteed job would lose time by the system call at the end of every
    // run, and again if the woken thread took its core. Also, a client that sends one request after the other leaves gaps of microseconds;
    // a node that begins in such a gap would delay the next request.
    for (uint32_t word; ((word = state_.slot->word.load()) & kGivesWay) != 0;) {
      const bool runs = page.guaranteed_running.load() != 0;
      if (runs && !must_give_way()) break;  // the policy lets this node run beside the guaranteed job
      const uint64_t now = now_ns(), ended = page.guaranteed_ended_ns.load();
      const int64_t quiet = runs || ended > now ? 0 : static_cast<int64_t>(now - ended);
      if (quiet >= kSettleNs) break;
      const int64_t rest = runs ? std::clamp(static_cast<int64_t>(now - start) / 4, kShortestLookNs, kLongestLookNs) : kSettleNs - quiet;
      futex_wait_shared(state_.slot->word, word, rest);
      state_.interruption.check(state_.interruption.context);
      if (now < next_sweep) continue;
      JobTable::get().sweep();
      next_sweep = now + kSweepNs;
    }
  });
}

}  // namespace treadle::sharing
