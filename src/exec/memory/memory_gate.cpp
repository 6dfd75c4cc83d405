#include "exec/memory/memory_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/logging.h"

namespace treadle::exec {
namespace {

// Returns the bytes that remain in use between runs: weights, packed weights and the like.
size_t standing_bytes(const MemoryAccount& account) {
  const MemoryStatistics statistics = account.statistics();
  size_t bytes = statistics[MemoryClass::gradients].bytes;  // only accumulated gradients; a step's own gradients are in its arena
  for (MemoryClass standing : {MemoryClass::weights, MemoryClass::packed, MemoryClass::scratch, MemoryClass::other, MemoryClass::parameters,
                               MemoryClass::optimizer_state})
    bytes += statistics[standing].bytes;
  return bytes;
}

}  // namespace

void HighestLimits::note() {
  auto highest = limits_.begin();
  for (const MemoryAccount* at = &account_; at && highest != limits_.end(); at = at->parent().get(), ++highest) {
    const size_t limit = at->limit_bytes() == 0 ? SIZE_MAX : at->limit_bytes();
    if (limit > *highest) *highest = limit;
  }
}

bool HighestLimits::leave_room_for(size_t size_bytes) const {
  auto highest = limits_.begin();
  for (const MemoryAccount* at = &account_; at && highest != limits_.end(); at = at->parent().get(), ++highest)
    if (at->bytes() > *highest || size_bytes > *highest - at->bytes()) return false;
  return true;
}

MemoryGate::MemoryGate(const AllocationContext& memory, std::string spill_folder, std::function<void()> trim,
                       std::shared_ptr<JobMemory> job)
    : memory_(memory),
      spill_folder_(std::move(spill_folder)),
      trim_(std::move(trim)),
      job_(std::move(job)),
      own_(job_ ? nullptr : std::make_unique<Governor>()) {
  governor().add(*this, /*frames=*/true);
}

MemoryGate::~MemoryGate() { governor().remove(*this); }

bool MemoryGate::give_way(const MemoryAccount& full, const std::function<bool()>& enough) {
  if (!counts_for(account(), full)) return false;
  const size_t before = account().bytes();
  trim_();
  if (log_enabled(LogLevel::verbose, LogCategory::memory)) {
    const size_t freed = before - std::min(before, account().bytes());
    log_event(LogLevel::verbose, LogCategory::memory, {{"account", account().name()}, {"bytes", static_cast<int64_t>(freed)}},
              fmt::format("{} gives back {} bytes of idle arenas to other runs", account().name(), freed));
  }
  return enough();
}

bool MemoryGate::has_limit() const {
  for (const MemoryAccount* at = &account(); at; at = at->parent().get())
    if (at->limit_bytes() != 0) return true;
  return false;
}

void MemoryGate::set_limit(size_t limit_bytes) {
  std::lock_guard lock(governor().mutex);
  governor().set_limit(*memory_.account, limit_bytes);
  governor().keep_limit(account());
}

MemoryGate::Pass::Pass(MemoryGate& gate, bool ends_by_itself)
    : gate_(gate),
      in_nodes_{gate.memory_.allocator, gate.memory_.account, this},
      highest_limits_(gate.account()),
      run_(gate.governor().admission, gate.account(), ends_by_itself) {}

MemoryGate::Pass::~Pass() {
  Governor& governor = gate_.governor();
  {
    std::unique_lock lock(governor.mutex, std::defer_lock);
    if (run_.has_reserved()) lock.lock();
    run_.leave();
  }
  if (gate_.has_limit()) governor.notify();
  if (gate_.job_) gate_.job_->report();
}

uint64_t MemoryGate::Pass::generation() const {
  if (gate_.job_) gate_.job_->follow();
  return gate_.governor().generation();
}

void MemoryGate::Pass::moved(size_t size_bytes, uint64_t took_ns) {
  if (gate_.job_) gate_.job_->moved(size_bytes, took_ns);
  if (log_enabled(LogLevel::verbose, LogCategory::memory)) tell_move("between memory and file", size_bytes, took_ns);
}

size_t MemoryGate::Pass::arena_capacity(size_t output_bytes) const {
  highest_limits_.note();
  size_t capacity = SIZE_MAX;
  for (const MemoryAccount* account = &gate_.account(); account; account = account->parent().get()) {
    const size_t limit = account->limit_bytes();
    if (limit == 0) continue;
    const size_t taken = standing_bytes(*account) + output_bytes;
    capacity = std::min(capacity, limit > taken ? (limit - taken) / Storage::kAlignment * Storage::kAlignment : 0);
  }
  return capacity;
}

// Called when a node allocates. Frees idle memory first, then waits for other runs. If no run can be expected to free memory, the node may
// exceed the present limit, but not the highest limit that was set during this run.
bool MemoryGate::Pass::charge(MemoryAccount& account, MemoryClass memory_class, size_t size_bytes) {
  Governor& governor = gate_.governor();
  std::unique_lock lock(governor.mutex);
  const auto try_charge = [&] { return account.try_charge(memory_class, size_bytes); };
  const auto find_room = [&] {
    const MemoryAccount* full = account_without_room(account, size_bytes);
    return full ? governor.make_room(*full, try_charge) : try_charge();
  };
  if (find_room()) return true;
  if (interruption_.check) {
    bool is_charged = false;
    const Admission::WaitingNode node(run_, /*proceeds=*/highest_limits_.leave_room_for(size_bytes));
    governor.wait(lock, interruption_, [&] {
      const bool is_worth_waiting = node.expects_others();
      is_charged = find_room();
      return is_charged || !is_worth_waiting;
    });
    if (is_charged) return true;
  }
  if (!highest_limits_.leave_room_for(size_bytes)) return false;
  account.charge_beyond_limits(memory_class, size_bytes);
  return true;
}

// Finds the topmost account, among the session's and its parents, with too little room for the run. @pre the governor's mutex is held
MemoryGate::Pass::Shortage MemoryGate::Pass::find_shortage(size_t bytes, size_t later_bytes) const {
  Shortage shortage;
  for (const MemoryAccount* account = &gate_.account(); account; account = account->parent().get()) {
    const size_t limit = account->limit_bytes(), taken = account->bytes() + run_.reserved_by_others(*account) + later_bytes;
    if (limit != 0 && (taken > limit || bytes > limit - taken)) shortage = {account, taken};
  }
  return shortage;
}

std::optional<std::unique_lock<std::mutex>> MemoryGate::Pass::admit_now(size_t bytes) {
  if (!gate_.has_limit()) return std::unique_lock<std::mutex>();
  std::unique_lock lock(gate_.governor().mutex);
  if (find_shortage(bytes, 0).account) return std::nullopt;
  return lock;
}

std::unique_lock<std::mutex> MemoryGate::Pass::admit(size_t bytes, size_t later_bytes, const sharing::Interruption& interruption,
                                                     const std::function<size_t()>& let_go) {
  interruption_ = interruption;
  if (!gate_.has_limit() || (bytes == 0 && later_bytes == 0)) {
    run_.enter();
    return {};
  }
  Governor& governor = gate_.governor();
  std::unique_lock lock(governor.mutex);
  const auto find_room = [&] {
    const MemoryAccount* full = find_shortage(bytes, later_bytes).account;
    return !full || governor.make_room(*full, [&] { return !find_shortage(bytes, later_bytes).account; });
  };
  if (!find_room()) bytes += let_go();
  run_.queue();
  governor.wait(lock, interruption, [&] {
    // expects_others() is read before and after find_room(). A run that ends in between frees memory, and a run that begins in between may
    // have taken an idle frame.
    const bool is_worth_waiting = run_.expects_others();
    if (find_room()) return true;
    const Shortage shortage = find_shortage(bytes, later_bytes);
    if (shortage.account && !is_worth_waiting && !run_.expects_others())
      throw_limit_reached(&gate_.account(), shortage.account->limit_bytes(), shortage.account->name(), bytes, "the run",
                          shortage.taken_bytes,
                          " or to be left for runs under way, also by partial runs that have not ended or by sizes that came out in a run");
    return !shortage.account;
  });
  run_.enter();
  run_.reserve(later_bytes);
  return lock;
}

void MemoryGate::Pass::refuse(const MemoryNeed& need) const {
  // Names the limit whose value is the furthest below the run's need.
  const size_t of_run = need.output_bytes + need.arena_bytes + need.certain_bytes;
  const MemoryAccount* tight = &gate_.account();
  size_t missing = 0;
  for (const MemoryAccount* account = tight; account; account = account->parent().get()) {
    const size_t limit = account->limit_bytes(), needed = standing_bytes(*account) + of_run;
    if (limit != 0 && needed > limit && needed - limit > missing) missing = needed - limit, tight = account;
  }
  const size_t standing = standing_bytes(*tight), least = standing + of_run;
  std::string parts =
      fmt::format(", of which weights {}, outputs {}, activations and scratch {}", standing, need.output_bytes, need.arena_bytes);
  if (need.certain_bytes > 0) parts += fmt::format(", bodies and values whose sizes come out in the run {}", need.certain_bytes);
  if (need.possible_bytes > need.certain_bytes)
    parts += fmt::format("; with the largest sizes that can come out, {}", least - need.certain_bytes + need.possible_bytes);
  if (!need.unbounded.empty()) parts += fmt::format("; not counted is what comes out of {}", need.unbounded);
  throw_limit_too_low(&gate_.account(), tight->limit_bytes(), tight->name(), least, parts);
}

}  // namespace treadle::exec
