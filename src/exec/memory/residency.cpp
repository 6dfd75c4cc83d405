#include "exec/memory/residency.h"

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

Residency::Residency(const Program& program, const StreamPlan& plan, int device, Device& memory, const ResidencyOptions& options)
    : program_(program),
      plan_(plan),
      device_(memory),
      bus_(memory.create_stream("bus")),
      job_(options.job),
      own_(options.limit),
      spill_folder_(options.spill_folder) {
  const size_t num_locations = plan_.locations.size();
  uses_.resize(num_locations);
  position_.resize(plan_.steps.size());
  std::unordered_map<const PackedState*, int32_t> found;
  for (const std::vector<int32_t>& bulk : plan_.bulks) {
    for (const int32_t s : bulk) {
      position_[static_cast<size_t>(s)] = at_.size();
      Position& at = at_.emplace_back();
      at.step = s;
      const StreamPlan::Step& step = plan_.steps[static_cast<size_t>(s)];
      auto add = [&](int32_t unit) {
        if (unit >= 0 && (is_packed(static_cast<size_t>(unit)) || location(static_cast<size_t>(unit)).device == device))
          at.units.push_back(unit);
      };
      if (step.instruction < 0) {
        add(step.source);
        add(step.target);
      } else if (plan_.streams[static_cast<size_t>(step.stream)].device == device) {
        const Instruction& instruction = program_.instructions()[static_cast<size_t>(step.instruction)];
        for (size_t k = 0; k < program_.operands(instruction).size(); ++k)
          if (!has_own_copy(instruction, k)) add(plan_.operands[step.first_operand + k]);
        add(step.scratch);
        if (instruction.versioned >= 0) {  // begin() finds out where it is
          versioned_.emplace_back(packed_.size(), &instruction);
          packed_.push_back(nullptr), uses_.emplace_back();
          add(static_cast<int32_t>(num_locations + packed_.size()) - 1);
        } else if (const PackedState* packed = instruction.packed.get(); packed && instruction.node->bodies.empty()) {
          auto [entry, is_new] = found.try_emplace(packed, static_cast<int32_t>(num_locations + packed_.size()));
          if (is_new) packed_.push_back(packed), uses_.emplace_back();
          add(entry->second);
        }
      }
      std::sort(at.units.begin(), at.units.end());
      at.units.erase(std::unique(at.units.begin(), at.units.end()), at.units.end());
      for (int32_t unit : at.units) uses_[static_cast<size_t>(unit)].push_back(static_cast<int32_t>(at_.size()) - 1);
    }
  }
  units_.resize(uses_.size());
  if (job_) sharing::MemoryWatch::get().add(*this, *job_);
  if (!own_) return;
  std::lock_guard lock(own_->mutex);
  own_->holders.push_back(this);
}

Residency::~Residency() {
  if (job_) sharing::MemoryWatch::get().remove(*this);
  if (own_) {
    std::lock_guard lock(own_->mutex);
    std::erase(own_->holders, this);
  }
  std::lock_guard lock(mutex_);
  for (size_t u = 0; u < units_.size(); ++u) drop(u);
}

// Values of extents that only the run knows: 0.
size_t Residency::size_of(size_t unit) const {
  if (is_packed(unit)) {
    const PackedState* packed = packed_[unit - plan_.locations.size()];
    return packed ? packed->size_bytes() : 0;
  }
  const StreamPlan::Location& found = location(unit);
  if (found.memory == StreamPlan::Location::Memory::planned) return binding_->buffer_sizes()[static_cast<size_t>(found.buffer)];
  const Slot& slot = program_.slots()[static_cast<size_t>(found.slot)];
  if (!slot.static_shape || slot.dtype == DType::string) return 0;
  return size_bytes(slot.dtype, binding_->shape(found.slot).num_elements());
}

// A constant is used again in the next run.
int64_t Residency::next_use(size_t unit, size_t position) const {
  const std::vector<int32_t>& uses = uses_[unit];
  auto next = std::upper_bound(uses.begin(), uses.end(), static_cast<int32_t>(position));
  if (next != uses.end()) return *next;
  if (units_[unit].lasting && !uses.empty()) return static_cast<int64_t>(at_.size()) + uses.front();
  return INT64_MAX;
}

namespace {

uint64_t effective(const std::atomic<uint64_t>& limit) {
  const uint64_t set = limit.load(std::memory_order_relaxed);
  return set == 0 ? UINT64_MAX : set;
}

bool take(std::atomic<uint64_t>& used, uint64_t limit, size_t size_bytes) {
  uint64_t before = used.load();
  do {
    if (size_bytes > limit || before > limit - size_bytes) return false;
  } while (!used.compare_exchange_weak(before, before + size_bytes));
  return true;
}

}  // namespace

uint64_t Residency::host_limit() const { return job_ ? effective(job_->slot().host_limit) : UINT64_MAX; }

bool Residency::is_over_limit() const {
  if (job_ && job_->slot().device_bytes.load(std::memory_order_relaxed) > effective(job_->slot().memory_limit)) return true;
  return own_ && own_->used_bytes.load(std::memory_order_relaxed) > effective(own_->limit_bytes);
}

// In the job's limit, the session's, and the device.
bool Residency::reserve(size_t size_bytes) {
  if (job_ && !take(job_->slot().device_bytes, effective(job_->slot().memory_limit), size_bytes)) return false;
  if (!own_ || take(own_->used_bytes, effective(own_->limit_bytes), size_bytes)) {
    if (device_.reserve(size_bytes)) return true;
    if (own_) own_->used_bytes.fetch_sub(size_bytes);
  }
  if (job_) job_->slot().device_bytes.fetch_sub(size_bytes);
  return false;
}

void Residency::unreserve(size_t size_bytes) {
  device_.unreserve(size_bytes);
  if (own_) own_->used_bytes.fetch_sub(size_bytes);
  if (job_) job_->slot().device_bytes.fetch_sub(size_bytes);
}

// Nothing moves out for what is fetched ahead, and what the nodes before its own will allocate has room beside it.
void Residency::fetch_ahead(size_t position) {
  size_t others = 0;
  const size_t end = std::min(position + 1 + kFetchAhead, at_.size());
  for (size_t next = position + 1; next < end; ++next) {
    for (int32_t u : at_[next].units) {
      const auto index = static_cast<size_t>(u);
      Unit& unit = units_[index];
      if (unit.live && unit.resident) continue;
      if (!unit.live || !unit.lasting || unit.on_disk) {
        others += unit.live ? unit.size_bytes : size_of(index);
        continue;
      }
      if (unit.size_bytes == 0) continue;
      if (!reserve(unit.size_bytes + others)) return;
      unreserve(others);
      unit.arrival = device_.create_event();
      bus_->transfer(unit.size_bytes);
      bus_->record(*unit.arrival);
      count(&sharing::JobSlot::moved_bytes, unit.size_bytes);
      count(&sharing::JobSlot::moves, 1);
      take_in(index);
    }
  }
}

// True if `wanted` has been reserved: in free memory, or after values went that are used later than it is. What the step itself uses stays.
bool Residency::make_room(size_t wanted, size_t position) {
  const int64_t own_next = own_ ? -1 : next_use(wanted, position);  // the session's limit: all that a step uses comes in
  const std::vector<int32_t>& needed = at_[position].units;
  while (!reserve(units_[wanted].size_bytes)) {
    size_t victim = units_.size();
    int64_t farthest = own_next;
    for (size_t u = 0; u < units_.size(); ++u) {
      if (!units_[u].resident || std::binary_search(needed.begin(), needed.end(), static_cast<int32_t>(u))) continue;
      if (const int64_t next = next_use(u, position); next > farthest) farthest = next, victim = u;
    }
    if (victim < units_.size()) {
      move_out(victim);
    } else if (!own_ || !evict_idle()) {
      if (own_)
        throw_limit_reached(own_->limit_bytes, "the session on " + device_.name(), units_[wanted].size_bytes, "a value", own_->used_bytes,
                            ", also by sizes that came out in the run, and others may use the device");
      return false;
    }
  }
  return true;
}

void Residency::shrink_to_limit(size_t position) {
  while (is_over_limit()) {
    size_t victim = units_.size();
    int64_t farthest = -1;
    for (size_t u = 0; u < units_.size(); ++u)
      if (const int64_t next = units_[u].resident ? next_use(u, position) : -1; next > farthest) farthest = next, victim = u;
    if (victim < units_.size())
      move_out(victim);
    else if (!own_ || !runs_ || !evict_idle())
      return;  // the rest belongs to the job's other sessions, or the session's other programs
  }
}

// Until the host's limit is kept: first what is used last. What the step uses, if it is the next thing, stays.
bool Residency::spill_for(size_t position, bool step_is_next) {
  if (!job_ || at_.empty()) return true;
  const std::vector<int32_t>& needed = at_[position].units;
  while (job_->slot().host_bytes.load(std::memory_order_relaxed) > host_limit()) {
    size_t victim = units_.size();
    int64_t farthest = -1;
    for (size_t u = 0; u < units_.size(); ++u) {
      const Unit& unit = units_[u];
      if (!unit.live || unit.resident || unit.on_disk || unit.size_bytes == 0 || is_packed(u)) continue;
      if (step_is_next && std::binary_search(needed.begin(), needed.end(), static_cast<int32_t>(u))) continue;
      if (const int64_t next = next_use(u, position); next > farthest) farthest = next, victim = u;
    }
    if (victim == units_.size()) return false;
    if (farthest == INT64_MAX)
      drop(victim);  // nobody reads it any more, and its memory may be gone
    else
      spill(victim);
  }
  return true;
}

void Residency::begin(const Binding& binding, std::span<std::byte* const> planned) {
  std::lock_guard lock(mutex_);
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
  for (size_t u = plan_.locations.size(); u < units_.size(); ++u) {  // kernels may have packed more forms since
    const size_t bytes = size_of(u);
    if (units_[u].live && units_[u].size_bytes == bytes) continue;
    drop(u);
    units_[u] = {.size_bytes = bytes, .live = true, .written = true, .on_host = true, .lasting = true};
  }
}

void Residency::go_on(bool runs) {
  std::lock_guard lock(mutex_);
  runs_ = runs;
}

// Of the sizes that are known before the run.
void Residency::check_limit() const {
  if (!own_) return;
  size_t least = 0, largest = 0;
  for (size_t p = 0; p < at_.size(); ++p) {
    if (plan_.steps[static_cast<size_t>(at_[p].step)].instruction < 0) continue;
    size_t bytes = 0;
    for (int32_t u : at_[p].units) bytes += size_of(static_cast<size_t>(u));
    if (bytes > least) least = bytes, largest = p;
  }
  const uint64_t limit = effective(own_->limit_bytes);
  if (least <= limit) return;
  const StreamPlan::Step& step = plan_.steps[static_cast<size_t>(at_[largest].step)];
  throw_limit_too_low(limit, "the session on " + device_.name(), least,
                      ", for what " + describe(*program_.instructions()[static_cast<size_t>(step.instruction)].node) + " uses");
}

// What others of the session hold moves out: one of them, as nothing of them goes on. The caller has the limit's mutex, which whoever takes
// the mutexes of two has.
bool Residency::evict_idle() {
  for (Residency* other : own_->holders) {
    if (other == this) continue;
    std::lock_guard lock(other->mutex_);
    bool any = false;
    for (size_t u = 0; u < other->units_.size(); ++u)
      if (other->units_[u].resident) other->move_out(u), any = true;
    if (any) return true;
  }
  return false;
}

void Residency::add(int32_t at, std::byte* data, size_t size_bytes, bool from_host) {
  std::lock_guard lock(mutex_);
  const auto index = static_cast<size_t>(at);
  Unit& unit = units_[index];
  drop(index);
  unit = {.size_bytes = size_bytes,
          .live = true,
          .written = from_host,
          .on_host = from_host,
          .lasting = location(index).memory == StreamPlan::Location::Memory::constant,
          .data = data};
  count_on_host(index, size_bytes);
}

// Into the device's memory, if there is or can be room.
void Residency::bring(size_t index, size_t position) {
  Unit& unit = units_[index];
  await_arrival(unit);
  if (!unit.live || unit.resident || unit.size_bytes == 0) return;  // not live: its step makes its memory itself
  read_back(index);
  if (make_room(index, position)) {
    if (unit.written) transfer(unit.size_bytes);
    take_in(index);
  } else {
    transfer(unit.size_bytes);  // the step reads or writes it over the bus
  }
}

void Residency::before(int32_t s) {
  const size_t position = position_[static_cast<size_t>(s)];
  std::unique_lock<std::mutex> limit_lock;
  if (own_) limit_lock = std::unique_lock(own_->mutex);
  std::unique_lock lock(mutex_);
  at_position_ = position;
  shrink_to_limit(position);
  const bool is_copy = plan_.steps[static_cast<size_t>(s)].instruction < 0;
  for (int32_t u : at_[position].units) {
    const auto index = static_cast<size_t>(u);
    if (Unit& unit = units_[index]; !unit.live && !is_packed(index) && location(index).memory == StreamPlan::Location::Memory::planned) {
      unit = {.size_bytes = size_of(index), .live = true, .data = planned_[index]};
      count_on_host(index, unit.size_bytes);
    }
    if (is_copy)
      read_back(index);  // it goes over the bus anyway
    else
      bring(index, position);
  }
  if (job_) {
    if (!spill_for(position, /*step_is_next=*/true)) {
      // Other sessions of the job may hold what they do not use now.
      lock.unlock();
      if (own_) limit_lock.unlock();
      sharing::MemoryWatch::get().ask_others(*this, *job_);
      if (own_) limit_lock.lock();
      lock.lock();
      if (!spill_for(position, /*step_is_next=*/true)) check_room(position);
    }
    sharing::JobSlot& slot = job_->slot();
    const uint64_t held = slot.device_bytes.load() + slot.host_bytes.load();
    uint64_t peak = slot.peak_bytes.load();
    while (held > peak && !slot.peak_bytes.compare_exchange_weak(peak, held)) {
    }
  }
  fetch_ahead(position);
}

void Residency::after(int32_t s) {
  const size_t position = position_[static_cast<size_t>(s)];
  const StreamPlan::Step& step = plan_.steps[static_cast<size_t>(s)];
  std::lock_guard lock(mutex_);
  auto note_written = [&](int32_t at, bool by_host) {
    if (!std::binary_search(at_[position].units.begin(), at_[position].units.end(), at)) return;  // absent, or on another device
    Unit& unit = units_[static_cast<size_t>(at)];
    unit.written = true;
    unit.on_host = by_host || !unit.resident;
    unit.in_file = false;
  };
  if (step.instruction < 0) {
    note_written(step.target, /*by_host=*/true);
  } else {
    const Instruction& instruction = program_.instructions()[static_cast<size_t>(step.instruction)];
    for (size_t k = instruction.num_inputs; k < program_.operands(instruction).size(); ++k)
      note_written(plan_.operands[step.first_operand + k], /*by_host=*/false);
  }
  for (int32_t u : at_[position].units) {
    const auto index = static_cast<size_t>(u);
    if (!units_[index].lasting && next_use(index, position) == INT64_MAX) drop(index);
  }
}

void Residency::end() {
  std::lock_guard lock(mutex_);
  for (size_t u = 0; u < units_.size(); ++u)
    if (!units_[u].lasting) drop(u);
  binding_ = nullptr;
  runs_ = false;
}

// What is left is the step's, or what others of the job use, who make room at their next step.
void Residency::check_room(size_t position) const {
  uint64_t needed = 0;
  for (int32_t u : at_[position].units)
    if (const Unit& unit = units_[static_cast<size_t>(u)]; unit.live && !unit.resident && !is_packed(static_cast<size_t>(u)))
      needed += unit.size_bytes;
  if (needed > host_limit())
    throw_limit_too_low(host_limit(), fmt::format("the host's memory of the job \"{}\"", job_->slot().name), needed,
                        " for a node, as the device has no room for it");
}

void Residency::limit_changed(bool may_wait) {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (may_wait)
    lock.lock();
  else if (!lock.try_lock())
    return;  // asked again
  keep_to_limit();
}

void Residency::keep_to_limit() {
  if (runs_) return;
  shrink_to_limit(at_position_);
  try {
    spill_for(at_position_, /*step_is_next=*/false);
  } catch (const Error& error) {
    TREADLE_LOG(warning, "a job's memory limit is not kept: {}", error.what());
  }
}

}  // namespace treadle::exec
