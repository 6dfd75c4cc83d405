#include "exec/placed/residency.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/allocation.h"
#include "core/logging.h"
#include "treadle/error.h"

namespace treadle::exec {
namespace {

// How many steps ahead constants are fetched: enough for the largest to come while nodes of some ten microseconds run.
constexpr size_t kFetchAhead = 16;

}  // namespace

DeviceMemory::DeviceMemory(std::shared_ptr<JobMemory> of_job, bool limited, std::string in_folder)
    : job(std::move(of_job)),
      has_limit(limited),
      spill_folder(std::move(in_folder)),
      account("the session on its devices", 0, job ? job->on_devices() : nullptr) {}

void DeviceMemory::set_limit(size_t limit_bytes) {
  std::lock_guard lock(governor().mutex);
  governor().set_limit(account, limit_bytes);
  governor().keep_limit(account);
}

// Nobody else moves anything meanwhile, and the job's report is true afterwards.
struct Residency::Guard {
  explicit Guard(const Residency& of) : job(of.memory_->job.get()), lock(of.memory_->governor().mutex) {}
  ~Guard() {
    if (job) job->report();
  }
  JobMemory* const job;
  const std::lock_guard<std::mutex> lock;
};

// Of the values in one place that one goes which is used last, if that is after another's use.
struct Residency::Choice {
  Place from;
  size_t position;
  int64_t used_after = -1;
  bool keeps_step = true;  // what the step at the position uses stays
};

Residency::Residency(const Program& program, const StreamPlan& plan, int device, Device& on, std::shared_ptr<DeviceMemory> memory,
                     const std::vector<std::unique_ptr<Residency>>& of_run)
    : program_(program), plan_(plan), device_(on), transfers_(on.create_stream("bus")), memory_(std::move(memory)), siblings_(of_run) {
  uses_.resize(plan_.locations.size());
  position_.resize(plan_.steps.size());
  std::unordered_map<const PackedState*, UnitId> found;
  for (const std::vector<StepId>& bulk : plan_.bulks) {
    for (const StepId s : bulk) {
      position_[s] = at_.size();
      Position& at = at_.emplace_back();
      at.step = s;
      const StreamPlan::Step& step = plan_.steps[s];
      auto add = [&](LocationId used) {
        if (used != kNoLocation && plan_.locations[used].device == device) at.units.push_back(unit_of(used));
      };
      if (step.instruction == kNoInstruction) {
        add(step.source);
        add(step.target);
      } else if (plan_.streams[static_cast<size_t>(step.stream)].device == device) {
        const Instruction& instruction = program_.instructions()[step.instruction];
        for (size_t k = 0; k < program_.operands(instruction).size(); ++k)
          if (!has_own_copy(instruction, k)) add(plan_.operands[step.first_operand + k]);
        add(step.scratch);
        if (instruction.versioned >= 0) {  // begin() finds out where it is
          versioned_.emplace_back(packed_.size(), &instruction);
          packed_.push_back(nullptr);
          at.units.push_back(uses_.add({}));
        } else if (const PackedState* packed = instruction.packed.get(); packed && instruction.node->bodies.empty()) {
          auto [entry, is_new] = found.try_emplace(packed, uses_.next_id());
          if (is_new) packed_.push_back(packed), uses_.emplace_back();
          at.units.push_back(entry->second);
        }
      }
      std::sort(at.units.begin(), at.units.end());
      at.units.erase(std::unique(at.units.begin(), at.units.end()), at.units.end());
      for (UnitId unit : at.units) uses_[unit].push_back(static_cast<int32_t>(at_.size()) - 1);
    }
  }
  units_.resize(uses_.size());
  memory_->governor().add(*this, /*frames=*/false);
}

Residency::~Residency() {
  memory_->governor().remove(*this);
  const Guard guard(*this);
  for (UnitId u : units_.ids()) drop(u);
}

// Values of extents that only the run knows: 0.
size_t Residency::size_of(UnitId unit) const {
  if (is_packed(unit)) {
    const PackedState* packed = packed_[index_of(unit) - plan_.locations.size()];
    return packed ? packed->size_bytes() : 0;
  }
  const StreamPlan::Location& found = location(unit);
  if (found.memory == StreamPlan::Location::Memory::planned) return binding_->buffer_sizes()[found.buffer];
  const Slot& slot = program_.slots()[found.slot];
  if (!slot.static_shape || slot.dtype == DType::string) return 0;
  return size_bytes(slot.dtype, binding_->shape(found.slot).num_elements());
}

// A constant is used again in the next run.
int64_t Residency::next_use(UnitId unit, size_t position) const {
  const std::vector<int32_t>& uses = uses_[unit];
  auto next = std::upper_bound(uses.begin(), uses.end(), static_cast<int32_t>(position));
  if (next != uses.end()) return *next;
  if (units_[unit].lasting && !uses.empty()) return static_cast<int64_t>(at_.size()) + uses.front();
  return INT64_MAX;
}

bool Residency::is_used_at(size_t position, UnitId unit) const {
  const std::vector<UnitId>& used = at_[position].units;
  return std::binary_search(used.begin(), used.end(), unit);
}

// In the limits, and on the device.
bool Residency::reserve(size_t size_bytes) {
  if (!memory_->account.try_charge(MemoryClass::other, size_bytes)) return false;
  if (bus().reserve(size_bytes)) return true;
  memory_->account.discharge(MemoryClass::other, size_bytes);
  return false;
}

void Residency::unreserve(size_t size_bytes) {
  bus().unreserve(size_bytes);
  memory_->account.discharge(MemoryClass::other, size_bytes);
}

// Nothing moves out for what is fetched ahead, and what the nodes before its own will allocate has room beside it.
void Residency::fetch_ahead(size_t position) {
  size_t others = 0;
  const size_t end = std::min(position + 1 + kFetchAhead, at_.size());
  for (size_t next = position + 1; next < end; ++next) {
    for (UnitId index : at_[next].units) {
      Unit& unit = units_[index];
      if (unit.place == Place::device) continue;
      if (unit.place != Place::host || !unit.lasting) {
        others += unit.place == Place::nowhere ? size_of(index) : unit.size_bytes;
        continue;
      }
      if (unit.size_bytes == 0) continue;
      if (!reserve(unit.size_bytes + others)) return;
      unreserve(others);
      put(index, Place::device);
      unit.arrival = device_.create_event();
      bus().move(*transfers_, unit.data, unit.size_bytes, Bus::Move::to_device);
      transfers_->record(*unit.arrival);
      count_move(unit.size_bytes, sharing::now_ns());
    }
  }
}

// @return false if there is none.
bool Residency::let_one_go(const Choice& choice) {
  UnitId victim = units_.next_id();
  int64_t farthest = choice.used_after;
  for (UnitId u : units_.ids()) {
    const Unit& unit = units_[u];
    if (unit.place != choice.from || unit.size_bytes == 0 || (choice.from == Place::host && is_packed(u))) continue;
    if (choice.keeps_step && is_used_at(choice.position, u)) continue;
    if (const int64_t next = next_use(u, choice.position); next > farthest) farthest = next, victim = u;
  }
  if (victim == units_.next_id()) return false;
  if (farthest == INT64_MAX)
    drop(victim);  // nobody reads it any more, and its memory may be gone
  else if (choice.from == Place::device)
    move_out(victim);
  else
    spill(victim);
  return true;
}

// The order of giving way: what nobody uses now, then this run's own; what it has on other devices only counts for limits.
// @param full  null: the device itself is.
bool Residency::make_room(const MemoryAccount* full, const std::function<bool()>& enough, const Choice& choice) {
  if (enough() || memory_->governor().make_room(full ? *full : memory_->account, enough, this)) return true;
  const auto one_goes = [&] {
    return let_one_go(choice) ||
           (full && std::any_of(siblings_.begin(), siblings_.end(), [&](const auto& of) { return of && of->let_one_go(choice); }));
  };
  while (one_goes())
    if (enough()) return true;
  return false;
}

bool Residency::keep_host_limit(size_t position) {
  JobMemory* const job = memory_->job.get();
  return !job || make_room(job->on_host().get(), [job] { return job->keeps_host_limit(); }, {.from = Place::host, .position = position});
}

bool Residency::give_way(const MemoryAccount& full, const std::function<bool()>& enough) {
  if (runs_ || at_.empty()) return false;
  const bool on_devices = counts_for(memory_->account, full);
  if (!on_devices && !(memory_->job && &full == memory_->job->on_host().get())) return false;
  try {
    while (let_one_go({.from = on_devices ? Place::device : Place::host, .position = at_position_, .keeps_step = false}))
      if (enough()) return true;
  } catch (const Error& error) {
    TREADLE_LOG(warning, "a memory limit is not kept: {}", error.what());
  }
  return false;
}

void Residency::begin(const Binding& binding, IdSpan<LocationId, std::byte* const> planned) {
  const Guard guard(*this);
  binding_ = &binding;
  planned_ = planned;
  for (const auto& [place, instruction] : versioned_) packed_[place] = binding.packed(*instruction);
  try {
    check_limit();
  } catch (...) {
    binding_ = nullptr;
    throw;
  }
  at_position_ = 0;
  of_run_.end = 0;
  for (UnitId u : packed_units()) {  // kernels may have packed more forms since
    const size_t bytes = size_of(u);
    if (units_[u].place != Place::nowhere && units_[u].size_bytes == bytes) continue;
    drop(u);
    units_[u] = {.size_bytes = bytes, .place = Place::host, .written = true, .on_host = true, .lasting = true};
  }
}

void Residency::go_on(bool runs) {
  const Guard guard(*this);
  runs_ = runs;
}

// Of the sizes that are known before the run.
void Residency::check_limit() const {
  const MemoryAccount& account = memory_->account;
  const size_t limit = account.limit_bytes();
  if (limit == 0) return;
  size_t least = 0, largest = 0;
  for (size_t p = 0; p < at_.size(); ++p) {
    if (plan_.steps[at_[p].step].instruction == kNoInstruction) continue;
    size_t bytes = 0;
    for (UnitId u : at_[p].units) bytes += size_of(u);
    if (bytes > least) least = bytes, largest = p;
  }
  if (least <= limit) return;
  const StreamPlan::Step& step = plan_.steps[at_[largest].step];
  throw_limit_too_low(&account, limit, account.name(), least,
                      fmt::format(", for what {} uses on {}", describe(*program_.instructions()[step.instruction].node), device_.name()));
}

void Residency::add(LocationId at, std::byte* data, size_t size_bytes, bool from_host) {
  const Guard guard(*this);
  const UnitId index = unit_of(at);
  Unit& unit = units_[index];
  drop(index);
  unit = {.size_bytes = size_bytes,
          .written = from_host,
          .on_host = from_host,
          .lasting = location(index).memory == StreamPlan::Location::Memory::constant,
          .data = data};
  put(index, Place::host);
}

// Into the device's memory, if there is or can be room: by the job's limit after values went that are used later than it is, by the
// session's after all that the step does not use.
void Residency::bring(UnitId index, size_t position) {
  Unit& unit = units_[index];
  await_arrival(unit);
  if (unit.place == Place::nowhere || unit.place == Place::device || unit.size_bytes == 0) return;  // nowhere: its step makes its memory
  read_back(index);
  const bool must = memory_->has_limit;
  if (make_room(account_without_room(memory_->account, unit.size_bytes), [&] { return reserve(unit.size_bytes); },
                {.from = Place::device, .position = position, .used_after = must ? -1 : next_use(index, position)})) {
    put(index, Place::device);
    if (unit.written) move(unit, Bus::Move::to_device);
  } else if (!must) {
    use_over_bus(unit.size_bytes);
  } else {
    const MemoryAccount& account = memory_->account;
    throw_limit_reached(&account, account.limit_bytes(), account.name(), unit.size_bytes, "a value", account.bytes(),
                        ", also by sizes that came out in the run, and others may use " + device_.name());
  }
}

void Residency::before(StepId s) {
  const size_t position = position_[s];
  if (memory_->job) memory_->job->follow();
  const Guard guard(*this);
  at_position_ = position;
  // What is over a limit all the same belongs to other sessions of the job.
  if (const MemoryAccount* full = account_without_room(memory_->account, 0))
    make_room(full, [this] { return !account_without_room(memory_->account, 0); },
              {.from = Place::device, .position = position, .keeps_step = false});
  const bool is_copy = plan_.steps[s].instruction == kNoInstruction;
  for (UnitId index : at_[position].units) {
    if (Unit& unit = units_[index];
        unit.place == Place::nowhere && !is_packed(index) && location(index).memory == StreamPlan::Location::Memory::planned) {
      unit = {.size_bytes = size_of(index), .data = planned_[id_at<LocationId>(index_of(index))]};
      put(index, Place::host);
    }
    if (is_copy)
      read_back(index);  // it goes over the bus anyway
    else
      bring(index, position);
  }
  if (!keep_host_limit(position)) check_room(position);
  fetch_ahead(position);
}

void Residency::after(StepId s) {
  const size_t position = position_[s];
  const StreamPlan::Step& step = plan_.steps[s];
  const Guard guard(*this);
  auto note_written = [&](LocationId at, bool by_host) {
    if (at == kNoLocation || !is_used_at(position, unit_of(at))) return;  // absent, or on another device
    Unit& unit = units_[unit_of(at)];
    unit.written = true;
    unit.on_host = by_host || unit.place != Place::device;
    unit.in_file = false;
  };
  if (step.instruction == kNoInstruction) {
    note_written(step.target, /*by_host=*/true);
  } else {
    const Instruction& instruction = program_.instructions()[step.instruction];
    for (size_t k = instruction.num_inputs; k < program_.operands(instruction).size(); ++k)
      note_written(plan_.operands[step.first_operand + k], /*by_host=*/false);
  }
  for (UnitId index : at_[position].units) {
    if (!units_[index].lasting && next_use(index, position) == INT64_MAX) drop(index);
  }
}

void Residency::end() {
  const Guard guard(*this);
  for (UnitId u : units_.ids())
    if (!units_[u].lasting) drop(u);
  binding_ = nullptr;
  runs_ = false;
}

// What is left is the step's, or what others of the job use, who make room at their next step.
void Residency::check_room(size_t position) const {
  const JobMemory& job = *memory_->job;
  uint64_t needed = 0;
  for (UnitId u : at_[position].units)
    if (const Unit& unit = units_[u]; unit.place != Place::device && !is_packed(u)) needed += unit.size_bytes;
  if (needed > job.host_limit())
    throw_limit_too_low(job.on_host().get(), job.host_limit(), job.on_host()->name(), needed,
                        " for a node, as the device has no room for it");
}

}  // namespace treadle::exec
