#include "exec/placed/residency.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/logging.h"
#include "core/values/allocation.h"
#include "treadle/error.h"

namespace treadle::exec {
namespace {

// Constants are fetched this many steps ahead. If each step takes about ten microseconds, that is enough time for the largest constants.
constexpr size_t kFetchAhead = 16;

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

Residency::Residency(const PlacedSteps& steps, std::shared_ptr<DeviceMemory> memory)
    : steps_(steps), memory_(std::move(memory)), devices_(steps.devices().size()) {
  for (size_t d = 1; d < devices_.size(); ++d)
    if (steps.devices()[d]->bus()) devices_[d] = std::make_unique<OnDevice>(steps, static_cast<int>(d), *memory_);
  memory_->governor().add(*this, /*frames=*/false);
}

Residency::~Residency() {
  memory_->governor().remove(*this);
  const Guard guard(*this);
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
  const Guard guard(*this);
  first_position_ = steps_.position_of(s);
  for_devices([](OnDevice& on) { on.used_last.clear(); });
  for_devices_of(steps_[s], [&](OnDevice& on) {
    on.position = first_position_;
    prepare(on, reads_in_place(steps_[s]));
    note_under_way(on, first_position_);
  });
}

bool Residency::joins(StepId s) {
  JobMemory* const job = memory_->job.get();
  if (job) job->follow();
  const Guard guard(*this);
  if (account_without_room(memory_->account, 0) || (job && !job->keeps_host_limit())) return false;
  const size_t position = steps_.position_of(s);
  bool all_there = true;
  for_devices_of(steps_[s], [&](OnDevice& on) { all_there = all_there && join(on, position, reads_in_place(steps_[s])); });
  return all_there;
}

// Brings a step's values into the device's memory while earlier steps are running. @return false if the step has to wait for these steps
bool Residency::join(OnDevice& on, size_t position, bool in_place) {
  const auto is_under_way = [&](UnitId u) { return on.uses.next_use(u, first_position_ - 1, false) < static_cast<int64_t>(position); };
  for (const UnitId u : on.uses.at(position)) {
    const ResidentUnit& unit = on.units[u];
    on.units.await_arrival(u);
    if (unit.place == Place::nowhere && !appear(on, u)) return false;
    if (unit.place == Place::device || (in_place && unit.place != Place::file)) continue;
    if (unit.place == Place::file || (unit.place == Place::nowhere && !on.uses.is_packed(u))) return false;
    if (unit.place == Place::nowhere || unit.size_bytes == 0) continue;
    if (is_under_way(u) || !on.units.reserve(u)) return false;
    on.units.bring(u);
  }
  on.position = position;
  note_under_way(on, position);
  return true;
}

// Registers the memory of a unit that lies in an arena. Does nothing for other units. @return false if a step that is still running uses
// another unit at the same addresses
bool Residency::appear(OnDevice& on, UnitId u) {
  if (on.uses.is_packed(u) || on.uses.location(u).memory != StreamPlan::Location::Memory::planned) return true;
  const size_t size_bytes = on.uses.size_bytes(u, *binding_);
  std::byte* const data = planned_[DeviceUses::location_of(u)];
  for (const UnitId other : on.used_last)
    if (const ResidentUnit& used = on.units[other]; data < used.data + used.size_bytes && used.data < data + size_bytes) return false;
  on.units.appear(u, {.size_bytes = size_bytes, .data = data});
  return true;
}

void Residency::note_under_way(OnDevice& on, size_t position) {
  for (const UnitId u : on.uses.at(position))
    if (!on.uses.is_packed(u) && on.uses.location(u).memory == StreamPlan::Location::Memory::planned &&
        next_use(on, u, position) == INT64_MAX)
      on.used_last.push_back(u);
}

// Returns true if the step can use values wherever they are, also in the host's memory. Copies can. If, Loop and Scan can too, because the
// runs of their bodies copy the values that they read.
bool Residency::reads_in_place(const StreamPlan::Step& step) const { return step.is_copy() || !steps_.instruction(step).bodies.empty(); }

void Residency::prepare(OnDevice& on, bool in_place) {
  // Evicts units if the account is over its limit. If that does not suffice, other sessions of the job hold the remaining bytes; the run
  // continues anyway.
  if (const MemoryAccount* full = account_without_room(memory_->account, 0))
    make_room(on, full, [this] { return !account_without_room(memory_->account, 0); },
              {.from = Place::device, .position = on.position, .keeps_step = false});
  for (const UnitId u : on.uses.at(on.position)) {
    if (on.units[u].place == Place::nowhere) appear(on, u);
    on.units.await_arrival(u);
    if (in_place)
      on.units.read_back(u);  // the step can use the unit in the host's memory, so it need not move to the device
    else
      bring(on, u);
  }
  JobMemory* const job = memory_->job.get();
  if (job &&
      !make_room(on, job->on_host().get(), [job] { return job->keeps_host_limit(); }, {.from = Place::host, .position = on.position}))
    check_room(on);
  fetch_ahead(on);
}

// Brings a unit into the device's memory, and evicts others if there is too little room. If the session has a limit, every unit that the
// step does not use may be evicted; otherwise only units that are used later than this unit's next use.
void Residency::bring(OnDevice& on, UnitId u) {
  const ResidentUnit& unit = on.units[u];
  if (unit.place == Place::nowhere || unit.place == Place::device || unit.size_bytes == 0)
    return;  // a unit that has no memory yet gets it when the step runs
  on.units.read_back(u);
  const bool must = memory_->has_limit;
  if (make_room(on, account_without_room(memory_->account, unit.size_bytes), [&] { return on.units.reserve(u); },
                {.from = Place::device, .position = on.position, .used_after = must ? -1 : next_use(on, u, on.position)})) {
    on.units.bring(u);
  } else if (!must) {
    on.units.use_over_bus(u);
  } else {
    const MemoryAccount& account = memory_->account;
    throw_limit_reached(&account, account.limit_bytes(), account.name(), unit.size_bytes, "a value", account.bytes(),
                        ", also by sizes that came out in the run, and others may use " + on.units.device().name());
  }
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
      if (!on.units.has_room(unit.size_bytes + others) || !on.units.reserve(u)) return;
      on.units.fetch(u);
    }
  }
}

void Residency::after(StepId s) {
  const StreamPlan::Step& step = steps_[s];
  const size_t position = steps_.position_of(s);
  const Guard guard(*this);
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
    for (const UnitId u : on.uses.at(position))
      if (!on.units[u].lasting && next_use(on, u, position) == INT64_MAX) on.units.drop(u);
  });
}

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
    on.units.drop(*victim);  // no step uses it again, and its memory may have been freed
  else if (choice.from == Place::device)
    on.units.move_out(*victim);
  else
    on.units.spill(*victim);
  return true;
}

// Evicts units until enough() returns true: first units of other runs (Governor::make_room), then this run's units on the device. If an
// account is full, also evicts this run's units on other devices.
// @param full  the account at its limit; null if the device itself is full.
bool Residency::make_room(OnDevice& on, const MemoryAccount* full, const std::function<bool()>& enough, const Choice& choice) {
  if (enough() || memory_->governor().make_room(full ? *full : memory_->account, enough, this)) return true;
  const auto one_goes = [&] {
    if (let_one_go(on, choice)) return true;
    return full && std::any_of(devices_.begin(), devices_.end(), [&](const auto& other) { return other && let_one_go(*other, choice); });
  };
  while (one_goes())
    if (enough()) return true;
  return false;
}

bool Residency::give_way(const MemoryAccount& full, const std::function<bool()>& enough) {
  if (goes_on_ && bodies_under_way_ == 0) return false;
  const bool on_devices = counts_for(memory_->account, full);
  if (!on_devices && !(memory_->job && &full == memory_->job->on_host().get())) return false;
  try {
    for (const auto& on : devices_)
      while (on && let_one_go(*on, {.from = on_devices ? Place::device : Place::host, .position = on->position, .keeps_step = goes_on_}))
        if (enough()) return true;
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
