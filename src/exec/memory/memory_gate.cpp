#include "exec/memory/memory_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/allocation.h"
#include "core/checked.h"

namespace treadle::exec {
namespace {

// Runs on this thread that wait for others to leave: a run inside a node of another one would wait for that.
thread_local int runs_inside = 0;

// Of weights and the like, which every run finds there.
size_t standing_bytes(const MemoryAccount& account) {
  const MemoryStatistics statistics = account.statistics();
  size_t bytes = statistics[MemoryClass::gradients].bytes;  // sums of them; those of a step are in its arena
  for (MemoryClass standing : {MemoryClass::weights, MemoryClass::packed, MemoryClass::scratch, MemoryClass::other, MemoryClass::parameters,
                               MemoryClass::optimizer_state})
    bytes += statistics[standing].bytes;
  return bytes;
}

}  // namespace

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
  if (!counts_for(*account_, full)) return false;
  trim_();
  return enough();
}

bool MemoryGate::limited() const {
  for (const MemoryAccount* account = account_.get(); account; account = account->parent().get())
    if (account->limit_bytes() != 0) return true;
  return false;
}

void MemoryGate::set_limit(size_t limit_bytes) {
  std::lock_guard lock(governor().mutex);
  governor().set_limit(*account_, limit_bytes);
  governor().keep_limit(*account_);
}

MemoryGate::Pass::Pass(MemoryGate& gate, bool ends_by_itself)
    : gate_(gate),
      is_within_run_(runs_inside > 0),
      ends_by_itself_(ends_by_itself && !is_within_run_),
      in_nodes_{gate.memory_.allocator, gate.account_, this} {
  if (!ends_by_itself_) return;
  ++runs_inside;
  gate_.governor().arriving.fetch_add(1);
}

MemoryGate::Pass::~Pass() {
  Governor& governor = gate_.governor();
  if (later_bytes_ > 0) {
    std::lock_guard lock(governor.mutex);
    auto own = governor.later_bytes.find(gate_.account_.get());
    if (own != governor.later_bytes.end() && (own->second -= later_bytes_) == 0) governor.later_bytes.erase(own);
  }
  if (ends_by_itself_) {
    --runs_inside;
    if (!arrived_) governor.arriving.fetch_sub(1);
    if (inside_) governor.inside.fetch_sub(1);
  }
  if (gate_.limited()) governor.left.notify_all();  // who waits looks every few milliseconds anyway
  if (gate_.job_) gate_.job_->report();
}

uint64_t MemoryGate::Pass::generation() const {
  if (gate_.job_) gate_.job_->follow();
  return gate_.governor().generation.load(std::memory_order_relaxed);
}

void MemoryGate::Pass::moved(size_t size_bytes, uint64_t took_ns) {
  if (gate_.job_) gate_.job_->moved(size_bytes, took_ns);
}

// Of the runs that the account's limit holds for, this one apart.
size_t MemoryGate::Pass::others_later_bytes(const MemoryAccount& account) const {
  size_t bytes = 0;
  for (const auto& [of, later] : gate_.governor().later_bytes)
    if (of == gate_.account_.get() || &account != gate_.account_.get()) bytes += later;
  return bytes - later_bytes_;
}

void MemoryGate::Pass::see_limits() const {
  auto highest = highest_limits_.begin();
  for (const MemoryAccount* at = gate_.account_.get(); at && highest != highest_limits_.end(); at = at->parent().get(), ++highest) {
    const size_t limit = at->limit_bytes() == 0 ? SIZE_MAX : at->limit_bytes();
    if (limit > *highest) *highest = limit;
  }
}

// The limits that the run has had at their highest leave so much room.
bool MemoryGate::Pass::had_room(size_t size_bytes) const {
  auto highest = highest_limits_.begin();
  for (const MemoryAccount* at = gate_.account_.get(); at && highest != highest_limits_.end(); at = at->parent().get(), ++highest)
    if (at->bytes() > *highest || size_bytes > *highest - at->bytes()) return false;
  return true;
}

// Of a node: first who is idle makes room, then runs that leave by themselves, unless all that are under way wait for one another here.
// A limit that shrank under the run does not end it.
bool MemoryGate::Pass::charge(MemoryAccount& account, MemoryClass memory_class, size_t size_bytes) {
  Governor& governor = gate_.governor();
  const auto is_charged = [&] { return account.try_charge(memory_class, size_bytes); };
  std::unique_lock lock(governor.mutex);
  const auto is_settled = [&] {
    const MemoryAccount* full = account_without_room(account, size_bytes);
    return full ? governor.make_room(*full, is_charged) : is_charged();
  };
  if (is_settled()) return true;
  bool is_in = false;
  if (interruption_.check && !is_within_run_) {
    const bool goes_on = had_room(size_bytes);
    const Governor::Waiting waiting(governor, inside_ ? &waiting_nodes_ : nullptr, goes_on);
    governor.wait(lock, interruption_, [&] {
      // Asked before, as a run that leaves meanwhile makes room. One that goes on all the same will leave, and one that comes lets go of
      // what it brings.
      const bool others_leave = governor.inside > governor.waiting_inside || governor.arriving > governor.waiting_exclusive ||
                                (!goes_on && governor.going_on > 0);
      is_in = is_settled();
      return is_in || !others_leave;
    });
  }
  if (is_in || !had_room(size_bytes)) return is_in;
  account.charge_beyond_limits(memory_class, size_bytes);
  return true;
}

size_t MemoryGate::Pass::arena_capacity(size_t output_bytes) const {
  see_limits();
  size_t capacity = SIZE_MAX;
  for (const MemoryAccount* account = gate_.account_.get(); account; account = account->parent().get()) {
    const size_t limit = account->limit_bytes();
    if (limit == 0) continue;
    const size_t taken = standing_bytes(*account) + output_bytes;
    capacity = std::min(capacity, limit > taken ? (limit - taken) / Storage::kAlignment * Storage::kAlignment : 0);
  }
  return capacity;
}

// An account that has no room for so many bytes, and what of it is taken; null: there is none. Under the governor's mutex.
std::pair<const MemoryAccount*, size_t> MemoryGate::Pass::full_account(size_t bytes, size_t later_bytes) const {
  std::pair<const MemoryAccount*, size_t> full{nullptr, 0};
  for (const MemoryAccount* account = gate_.account_.get(); account; account = account->parent().get()) {
    const size_t limit = account->limit_bytes(), taken = account->bytes() + others_later_bytes(*account) + later_bytes;
    if (limit != 0 && (taken > limit || bytes > limit - taken)) full = {account, taken};
  }
  return full;
}

// Nothing becomes free by itself: the run is the only one, or nobody can tell when there will be room for it.
bool MemoryGate::Pass::nobody_leaves() const {
  const Governor& governor = gate_.governor();
  return is_within_run_ || (governor.inside == (inside_ ? 1 : 0) && governor.arriving == 0);
}

std::optional<std::unique_lock<std::mutex>> MemoryGate::Pass::admit_now(size_t bytes) {
  if (!gate_.limited()) return std::unique_lock<std::mutex>();
  std::unique_lock lock(gate_.governor().mutex);
  if (full_account(bytes, 0).first) return std::nullopt;
  return lock;
}

std::unique_lock<std::mutex> MemoryGate::Pass::admit(size_t bytes, size_t later_bytes, const sharing::Interruption& interruption,
                                                     const std::function<size_t()>& let_go) {
  Governor& governor = gate_.governor();
  interruption_ = interruption;
  auto arrive = [&] {
    if (ends_by_itself_ && !arrived_) governor.arriving.fetch_sub(1);
    arrived_ = true;
  };
  auto enter = [&] {
    if (!inside_ && ends_by_itself_) governor.inside.fetch_add(1);
    inside_ = ends_by_itself_;
  };
  if (!gate_.limited() || (bytes == 0 && later_bytes == 0)) {
    enter();
    arrive();
    return {};
  }
  std::unique_lock lock(governor.mutex);
  const auto has_room = [&] {
    const MemoryAccount* full = full_account(bytes, later_bytes).first;
    return !full || governor.make_room(*full, [&] { return !full_account(bytes, later_bytes).first; });
  };
  if (!has_room()) bytes += let_go();
  arrive();
  governor.wait(lock, interruption, [&] {
    // Asked before and after: a run that leaves meanwhile makes room, one that comes may have taken an idle frame.
    const bool alone = nobody_leaves();
    if (has_room()) return true;
    const auto [full, used] = full_account(bytes, later_bytes);
    if (full && alone && nobody_leaves())
      throw_limit_reached(gate_.account_.get(), full->limit_bytes(), full->name(), bytes, "the run", used,
                          " or to be left for runs under way, also by partial runs that have not ended or by sizes that came out in a run");
    return !full;
  });
  enter();
  if (later_bytes > 0) governor.later_bytes[gate_.account_.get()] += later_bytes;
  later_bytes_ += later_bytes;
  return lock;
}

void MemoryGate::Pass::refuse(const MemoryNeed& need) const {
  // Of the limits the one that is farthest from what the run needs.
  const size_t of_run = need.output_bytes + need.arena_bytes + need.certain_bytes;
  const MemoryAccount* tight = gate_.account_.get();
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
  throw_limit_too_low(gate_.account_.get(), tight->limit_bytes(), tight->name(), least, parts);
}

}  // namespace treadle::exec
