#include "exec/placed/residency.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "core/base/logging.h"
#include "core/values/allocation.h"
#include "treadle/error.h"

namespace treadle::exec {
namespace {

// Constants are fetched this many steps ahead. If each step takes about ten microseconds, that is enough time for the largest constants.
constexpr size_t kFetchAhead = 16;
// Each of so many steps, from one for which a value moves, has an event of its own, so that the next moves can wait for single steps.
constexpr size_t kStepsWithEvents = 16;

}  // namespace

// Holds the governor's mutex, and reports the job's memory at the end.
struct Residency::Guard {
  explicit Guard(const Residency& of) : job(of.memory_->job.get()), lock(of.memory_->governor().mutex) {}
  ~Guard() {
    if (job) job->report();
  }
  JobMemory* const job;
  const std::lock_guard<std::mutex> lock;
};

// Selects the unit to evict: among the units in the memory `from`, the one whose next use has the highest position. A unit whose next use
// is not above `used_after` is never evicted.
struct Residency::Choice {
  Place from;
  size_t position;  // position of the present step; next uses are counted from it
  int64_t used_after = -1;
  bool keeps_step = true;  // do not evict units that the step at `position` uses
};

// Says what lacks room.
struct Residency::Shortage {
  const MemoryAccount* full;             // the account at its limit; null if the device itself is full
  std::function<bool()> enough;          // looks whether there is room now, and takes it
  std::function<uint64_t()> more_bytes;  // how many bytes have to be freed; 1 if that is not known
};

Residency::Residency(const PlacedSteps& steps, const RunStreams& streams, std::shared_ptr<DeviceMemory> memory)
    : steps_(steps), streams_(streams), memory_(std::move(memory)), under_way_(streams), devices_(steps.devices().size()) {
  for (size_t d = 1; d < devices_.size(); ++d)
    if (steps.devices()[d]->bus()) devices_[d] = std::make_unique<OnDevice>(steps, static_cast<int>(d), *memory_, under_way_);
  memory_->governor().add(*this, /*frames=*/false);
}

Residency::~Residency() {
  memory_->governor().remove(*this);
  const Guard guard(*this);
  try {
    settle_all();
  } catch (...) {  // ignored: the run has ended
  }
  for_devices([](OnDevice& on) {
    for (const UnitId u : on.units.ids()) on.units.drop(u);
  });
}

template <typename Visit>
void Residency::for_devices(Visit&& visit) const {
  for (const auto& on : devices_)
    if (on) visit(*on);
}

template <typename Visit>
void Residency::for_devices_of(const StreamPlan::Step& step, Visit&& visit) const {
  const size_t position = steps_.position_of(steps_.plan().steps.id_of(step));
  for_devices([&](OnDevice& on) {
    if (!on.uses.at(position).empty()) visit(on);
  });
}

Residency::GoingOn::GoingOn(Residency* residency, const RunControl& control) : residency_(residency) {
  if (!residency) return;
  DeviceMemory& memory = *residency->memory_;
  if (memory.has_limit && !residency->steps_.program().is_body())
    of_session_.emplace(memory.governor(), &memory, control.stop.interruption());
  residency->set_going_on(true);
}

Residency::GoingOn::~GoingOn() {
  if (residency_) residency_->set_going_on(false);
}

Residency::BodyUnderWay::BodyUnderWay(Residency* around) : around_(around) {
  if (!around_) return;
  const Guard guard(*around_);
  ++around_->bodies_under_way_;
}

Residency::BodyUnderWay::~BodyUnderWay() {
  if (!around_) return;
  const Guard guard(*around_);
  --around_->bodies_under_way_;
}

void Residency::set_going_on(bool on) {
  const Guard guard(*this);
  goes_on_ = on;
}

void Residency::begin(const Binding& binding, IdSpan<LocationId, std::byte* const> planned) {
  const Guard guard(*this);
  binding_ = &binding;
  planned_ = planned;
  try {
    for_devices([&](const OnDevice& on) { check_limit(on); });
  } catch (...) {
    binding_ = nullptr;
    throw;
  }
  events_until_ = 0;
  for_devices([&](OnDevice& on) {
    on.position = 0;
    on.units.begin_run();
    for (const UnitId u : on.uses.packed()) {  // kernels may have packed more since the last run
      const size_t bytes = on.uses.size_bytes(u, binding);
      if (on.units[u].place == Place::nowhere || on.units[u].size_bytes != bytes)
        on.units.appear(u, {.size_bytes = bytes, .written = true, .on_host = true, .lasting = true});
    }
  });
}

void Residency::end() {
  const Guard guard(*this);
  try {
    settle_all();
  } catch (...) {  // ignored: settle() has reported the errors of the moves that the run needed
  }
  for_devices([](OnDevice& on) {
    for (const UnitId u : on.units.ids())
      if (!on.units[u].lasting) on.units.drop(u);
  });
  binding_ = nullptr;
  goes_on_ = false;
}

void Residency::add(LocationId at, std::byte* data, size_t size_bytes, bool from_host) {
  OnDevice* const found = on(steps_.location(at).device);
  if (!found) return;
  const Guard guard(*this);
  found->units.appear(DeviceUses::unit_of(at), {.size_bytes = size_bytes,
                                                .written = from_host,
                                                .on_host = from_host,
                                                .lasting = steps_.location(at).memory == StreamPlan::Location::Memory::constant,
                                                .data = data});
}

void Residency::before(StepId s) {
  if (memory_->job) memory_->job->follow();
  under_way_.await_earlier();
  // The host waits without the mutex, which other runs need meanwhile.
  while (!prepare(s)) {
    const uint64_t start = sharing::now_ns();
    std::exchange(awaited_, nullptr)->synchronize();
    ++num_waits_;
    if (memory_->job) memory_->job->moved(0, sharing::now_ns() - start);
  }
  std::vector<std::shared_ptr<Event>> arrivals;
  {
    const Guard guard(*this);
    for_devices_of(steps_[s], [&](OnDevice& on) {
      for (const UnitId u : on.uses.at(on.position))
        if (std::shared_ptr<Event> arrival = on.units.arrival(u)) arrivals.push_back(std::move(arrival));
    });
  }
  for (const std::shared_ptr<Event>& arrival : arrivals) streams_.at(steps_[s].stream).wait(arrival);
}

// Prepares the memory of the step's values. @return false if the host has to wait for awaited_ first, and then to call this again
bool Residency::prepare(StepId s) {
  const Guard guard(*this);
  const size_t position = steps_.position_of(s);
  bool is_ready = true;
  for_devices_of(steps_[s], [&](OnDevice& on) {
    on.position = position;
    is_ready = is_ready && prepare(on, reads_in_place(steps_[s]));
  });
  return is_ready;
}

// Registers the memory of a unit that lies in an arena. Does nothing for other units.
void Residency::appear(OnDevice& on, UnitId u) {
  if (on.uses.is_packed(u) || on.uses.location(u).memory != StreamPlan::Location::Memory::planned) return;
  on.units.appear(u, {.size_bytes = on.uses.size_bytes(u, *binding_), .data = planned_[DeviceUses::location_of(u)]});
}

// Returns true if the step can use values wherever they are, also in the host's memory. Copies can. If, Loop and Scan can too, because the
// runs of their bodies copy the values that they read.
bool Residency::reads_in_place(const StreamPlan::Step& step) const { return step.is_copy() || !steps_.instruction(step).bodies.empty(); }

bool Residency::prepare(OnDevice& on, bool in_place) {
  on.units.free_left();
  // Evicts units if the account is over its limit. If that does not suffice, other sessions of the job hold the remaining bytes; the run
  // continues anyway.
  if (const MemoryAccount* full = account_without_room(memory_->account, 0)) {
    const Shortage shortage{full, [this] { return !account_without_room(memory_->account, 0); },
                            [full] { return std::max<uint64_t>(full->bytes(), full->limit_bytes()) - full->limit_bytes(); }};
    if (!make_room(on, shortage, {.from = Place::device, .position = on.position, .keeps_step = false}) && awaited_) return false;
  }
  std::vector<UnitId> over_bus;
  for (const UnitId u : on.uses.at(on.position)) {
    if (on.units[u].place == Place::nowhere) appear(on, u);
    if (in_place) {
      on.units.read_back(u);  // the step can use the unit in the host's memory, so it need not move to the device
    } else if (!bring(on, u)) {
      if (awaited_) return false;
      over_bus.push_back(u);
    }
  }
  if (JobMemory* const job = memory_->job.get()) {
    const Shortage shortage{job->on_host().get(), [job] { return job->keeps_host_limit(); },
                            [job] { return std::max<uint64_t>(job->on_host()->bytes(), job->host_limit()) - job->host_limit(); }};
    if (!make_room(on, shortage, {.from = Place::host, .position = on.position})) {
      if (awaited_) return false;
      check_room(on);
    }
  }
  for (const UnitId u : over_bus) on.units.use_over_bus(u);
  fetch_ahead(on);
  return true;
}

// Brings a unit into the device's memory, and evicts others if there is too little room. If the session has a limit, every unit that the
// step does not use may be evicted; otherwise only units that are used later than this unit's next use.
// @return false if the unit stays in the host's memory, or the host has to wait for awaited_ first
bool Residency::bring(OnDevice& on, UnitId u) {
  const ResidentUnit& unit = on.units[u];
  if (unit.place == Place::nowhere || unit.place == Place::device || unit.size_bytes == 0)
    return true;  // a unit that has no memory yet gets it from the step
  on.units.read_back(u);
  while (on.units.is_leaving(u)) {  // it gets other memory when the memory that it leaves is free
    awaited_ = on.units.next_to_leave(Place::device);
    if (awaited_) return false;
    on.units.free_left();
  }
  const bool must = memory_->has_limit;
  const MemoryAccount* const full = account_without_room(memory_->account, unit.size_bytes);
  const auto more_bytes = [full, size = unit.size_bytes] {
    if (!full) return uint64_t{1};
    const uint64_t needed = full->bytes() + size, limit = full->limit_bytes();
    return std::max(needed, limit) - limit;
  };
  if (make_room(on, {full, [&] { return on.units.reserve(u); }, more_bytes},
                {.from = Place::device, .position = on.position, .used_after = must ? -1 : next_use(on, u, on.position)})) {
    on.units.bring(u);
    note_move(on);
    return true;
  }
  if (awaited_ || !must) return false;
  const MemoryAccount& account = memory_->account;
  throw_limit_reached(&account, account.limit_bytes(), account.name(), unit.size_bytes, "a value", account.bytes(),
                      ", also by sizes that came out in the run, and others may use " + on.units.device().name());
}

// Begins to copy the constants of the next steps to the device. Evicts nothing. Leaves enough memory free for all other values of the steps
// up to the one that uses the constant.
void Residency::fetch_ahead(OnDevice& on) {
  size_t others = 0;
  const size_t end = std::min(on.position + 1 + kFetchAhead, steps_.size());
  for (size_t next = on.position + 1; next < end; ++next) {
    for (const UnitId u : on.uses.at(next)) {
      const ResidentUnit& unit = on.units[u];
      if (unit.place == Place::device) continue;
      if (unit.place != Place::host || !unit.lasting) {
        others += unit.place == Place::nowhere ? on.uses.size_bytes(u, *binding_) : unit.size_bytes;
        continue;
      }
      if (unit.size_bytes == 0) continue;
      if (on.units.is_leaving(u) || !on.units.has_room(unit.size_bytes + others) || !on.units.reserve(u)) return;
      on.units.bring(u);
      note_move(on);
    }
  }
}

void Residency::after(StepId s) {
  const StreamPlan::Step& step = steps_[s];
  const size_t position = steps_.position_of(s);
  const Guard guard(*this);
  const StepsUnderWay::Mark mark = under_way_.note_issued(step.stream, position < events_until_);
  for_devices_of(step, [&](OnDevice& on) {
    auto note_written = [&](LocationId at) {
      // Skips operands that are absent or on another device.
      if (at != kNoLocation && on.uses.is_used_at(position, DeviceUses::unit_of(at)))
        on.units.note_written(DeviceUses::unit_of(at), /*by_host=*/step.is_copy());
    };
    if (step.is_copy())
      note_written(step.target);
    else
      for (const LocationId at : steps_.outputs(step)) note_written(at);
    for (const UnitId u : on.uses.at(position)) {
      on.units.note_used(u, mark);
      if (!on.units[u].lasting && next_use(on, u, position) == INT64_MAX) on.units.let_go(u);
    }
  });
}

void Residency::note_all_done() {
  const Guard guard(*this);
  under_way_.note_all_done();
  for_devices([](OnDevice& on) { on.units.free_left(); });
}

void Residency::settle() {
  const Guard guard(*this);
  settle_all();
}

// @pre the host has waited for all steps
void Residency::settle_all() {
  under_way_.note_all_done();
  std::exception_ptr failed;
  for_devices([&](OnDevice& on) {
    try {
      on.units.settle();
    } catch (...) {
      failed = std::current_exception();
    }
  });
  if (failed) std::rethrow_exception(failed);
}

void Residency::note_move(const OnDevice& on) { events_until_ = on.position + kStepsWithEvents; }

int64_t Residency::next_use(const OnDevice& on, UnitId unit, size_t position) const {
  return on.uses.next_use(unit, position, on.units[unit].lasting);
}

// Evicts one unit. @return false if none may be evicted
bool Residency::let_one_go(OnDevice& on, const Choice& choice) {
  std::optional<UnitId> victim;
  int64_t farthest = choice.used_after;
  for (const UnitId u : on.units.ids()) {
    const ResidentUnit& unit = on.units[u];
    if (unit.place != choice.from || unit.size_bytes == 0 || (choice.from == Place::host && on.uses.is_packed(u))) continue;
    if (choice.keeps_step && on.uses.is_used_at(choice.position, u)) continue;
    if (const int64_t next = next_use(on, u, choice.position); next > farthest) farthest = next, victim = u;
  }
  if (!victim) return false;
  if (farthest == INT64_MAX && !on.uses.is_used_at(choice.position, *victim))
    on.units.let_go(*victim);  // no step uses it again, and its memory may have been freed
  else if (choice.from == Place::device)
    on.units.move_out(*victim);
  else
    on.units.spill(*victim);
  return true;
}

// Evicts units until shortage.enough() returns true: first those of other runs (Governor::make_room), then this run's on the device. If an
// account is full, evicts this run's units on other devices, too.
// @return false if there is no room, also if there will be after the host has waited for awaited_
bool Residency::make_room(OnDevice& on, const Shortage& shortage, const Choice& choice) {
  const auto one_goes = [&] {
    if (let_one_go(on, choice)) return true;
    return shortage.full &&
           std::any_of(devices_.begin(), devices_.end(), [&](const auto& other) { return other && let_one_go(*other, choice); });
  };
  for (bool others_asked = false;; others_asked = true) {
    for_devices([](OnDevice& other) { other.units.free_left(); });
    if (shortage.enough()) return true;
    if (awaits_leaving(on, shortage, choice.from, shortage.more_bytes())) return false;
    if (!others_asked && memory_->governor().make_room(shortage.full ? *shortage.full : memory_->account, shortage.enough, this))
      return true;
    if (!one_goes()) break;
    note_move(on);
  }
  return !awaits_leaving(on, shortage, choice.from, /*least_bytes=*/1) && shortage.enough();
}

// Sets awaited_ if at least so many bytes are leaving. Waiting for them is better than moving others. @return true if it has set it
bool Residency::awaits_leaving(const OnDevice& on, const Shortage& shortage, Place from, uint64_t least_bytes) {
  size_t bytes = 0;
  for_devices([&](OnDevice& other) {
    if (!shortage.full && &other != &on) return;
    bytes += other.units.leaving_bytes(from);
    if (!awaited_) awaited_ = other.units.next_to_leave(from);
  });
  if (bytes < std::max<uint64_t>(least_bytes, 1)) awaited_ = nullptr;
  return awaited_ != nullptr;
}

bool Residency::give_way(const MemoryAccount& full, const std::function<bool()>& enough) {
  if (goes_on_ && bodies_under_way_ == 0) return false;
  const bool on_devices = counts_for(memory_->account, full);
  if (!on_devices && !(memory_->job && &full == memory_->job->on_host().get())) return false;
  try {
    for (const auto& on : devices_)
      while (on && let_one_go(*on, {.from = on_devices ? Place::device : Place::host, .position = on->position, .keeps_step = goes_on_})) {
        on->units.await_leaving();
        if (enough()) return true;
      }
  } catch (const Error& error) {
    TREADLE_LOG(warning, "a memory limit is not kept: {}", error.what());
  }
  return false;
}

// Throws if the largest step needs more bytes than the session's limit. Counts only sizes that are known before the run.
void Residency::check_limit(const OnDevice& on) const {
  const MemoryAccount& account = memory_->account;
  const size_t limit = account.limit_bytes();
  if (limit == 0) return;
  size_t least = 0, largest = 0;
  for (size_t p = 0; p < steps_.size(); ++p) {
    if (reads_in_place(steps_[steps_.at(p)])) continue;
    size_t bytes = 0;
    for (const UnitId u : on.uses.at(p)) bytes += on.uses.size_bytes(u, *binding_);
    if (bytes > least) least = bytes, largest = p;
  }
  if (least <= limit) return;
  const Node& node = *steps_.instruction(steps_[steps_.at(largest)]).node;
  throw_limit_too_low(&account, limit, account.name(), least,
                      fmt::format(", for what {} uses on {}", describe(node), on.units.device().name()));
}

// Throws if the step's values on the host exceed the job's host limit even without the values of other runs. If only the sum exceeds the
// limit, the other runs free memory at their next steps.
void Residency::check_room(const OnDevice& on) const {
  const JobMemory& job = *memory_->job;
  uint64_t needed = 0;
  for (const UnitId u : on.uses.at(on.position))
    if (const ResidentUnit& unit = on.units[u]; unit.place != Place::device && !on.uses.is_packed(u)) needed += unit.size_bytes;
  if (needed > job.host_limit())
    throw_limit_too_low(job.on_host().get(), job.host_limit(), job.on_host()->name(), needed,
                        " for a node, as the device has no room for it");
}

}  // namespace treadle::exec
