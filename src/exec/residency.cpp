#include "exec/residency.h"

#include <algorithm>
#include <utility>

namespace treadle::exec {
namespace {

// How many nodes ahead constants are fetched: enough for the largest to come while nodes of some ten microseconds run.
constexpr size_t kFetchAhead = 16;

}  // namespace

Residency::Residency(const Program& program, Device& device, sharing::JobState& job)
    : program_(program),
      device_(device),
      bus_(device.create_stream("bus")),
      job_(job),
      units_(program.num_buffers() + program.slots().size()) {
  uses_.resize(units_.size());
  const auto instructions = program_.instructions();
  of_instruction_.resize(instructions.size());
  for (size_t i = 0; i < instructions.size(); ++i) {
    std::vector<int32_t>& units = of_instruction_[i];
    for (int32_t slot : program_.operands(instructions[i]))
      if (slot >= 0) units.push_back(static_cast<int32_t>(unit_of(slot)));
    if (instructions[i].scratch_buffer >= 0) units.push_back(instructions[i].scratch_buffer);
    std::sort(units.begin(), units.end());
    units.erase(std::unique(units.begin(), units.end()), units.end());
    for (int32_t unit : units) uses_[static_cast<size_t>(unit)].push_back(static_cast<int32_t>(i));
  }
  sharing::MemoryWatch::get().add(*this, job_);
}

Residency::~Residency() {
  sharing::MemoryWatch::get().remove(*this);
  std::lock_guard lock(mutex_);
  for (size_t u = 0; u < units_.size(); ++u) drop(u);
}

size_t Residency::unit_of(int32_t slot) const {
  const Slot& info = program_.slots()[static_cast<size_t>(slot)];
  if (info.placement == Placement::arena && info.buffer >= 0) return static_cast<size_t>(info.buffer);
  return program_.num_buffers() + static_cast<size_t>(info.placement == Placement::known ? slot : info.root);
}

// A constant is used again in the next run.
int64_t Residency::next_use(size_t unit, size_t position) const {
  const std::vector<int32_t>& uses = uses_[unit];
  auto next = std::upper_bound(uses.begin(), uses.end(), static_cast<int32_t>(position));
  if (next != uses.end()) return *next;
  if (units_[unit].lasting && !uses.empty()) return static_cast<int64_t>(of_instruction_.size()) + uses.front();
  return INT64_MAX;
}

uint64_t Residency::limit() const {
  const uint64_t set = job_.slot().memory_limit.load(std::memory_order_relaxed);
  return set == 0 ? UINT64_MAX : set;
}

bool Residency::reserve(size_t size_bytes) {
  std::atomic<uint64_t>& used = job_.slot().device_bytes;
  uint64_t before = used.load();
  do {
    if (size_bytes > limit() || before > limit() - size_bytes) return false;
  } while (!used.compare_exchange_weak(before, before + size_bytes));
  if (device_.reserve(size_bytes)) return true;
  used.fetch_sub(size_bytes);
  return false;
}

void Residency::transfer(size_t size_bytes) {
  sharing::JobSlot& slot = job_.slot();
  const uint64_t start = sharing::now_ns();
  bus_->transfer(size_bytes);
  bus_->synchronize();
  slot.moving_ns.fetch_add(sharing::now_ns() - start, std::memory_order_relaxed);
  slot.moved_bytes.fetch_add(size_bytes, std::memory_order_relaxed);
  slot.moves.fetch_add(1, std::memory_order_relaxed);
}

void Residency::await_arrival(Unit& unit) {
  if (!unit.arrival) return;
  const uint64_t start = sharing::now_ns();
  std::exchange(unit.arrival, nullptr)->synchronize();
  job_.slot().moving_ns.fetch_add(sharing::now_ns() - start, std::memory_order_relaxed);
}

void Residency::take_in(size_t index) {
  units_[index].resident = true;
  job_.slot().host_bytes.fetch_sub(units_[index].size_bytes);
}

// Nothing moves out for what is fetched ahead, and what the nodes before its own will allocate has room beside it.
void Residency::fetch_ahead(size_t position) {
  size_t others = 0;
  const size_t end = std::min(position + 1 + kFetchAhead, of_instruction_.size());
  for (size_t next = position + 1; next < end; ++next) {
    for (int32_t u : of_instruction_[next]) {
      const auto index = static_cast<size_t>(u);
      Unit& unit = units_[index];
      if (unit.live && unit.resident) continue;
      if (!unit.live || !unit.lasting) {
        others += index < program_.num_buffers() ? binding_->offsets().sizes[index] : unit.size_bytes;
        continue;
      }
      if (unit.size_bytes == 0) continue;
      if (!reserve(unit.size_bytes + others)) return;
      device_.unreserve(others);
      job_.slot().device_bytes.fetch_sub(others);
      unit.arrival = device_.create_event();
      bus_->transfer(unit.size_bytes);
      bus_->record(*unit.arrival);
      job_.slot().moved_bytes.fetch_add(unit.size_bytes, std::memory_order_relaxed);
      job_.slot().moves.fetch_add(1, std::memory_order_relaxed);
      take_in(index);
    }
  }
}

void Residency::move_out(size_t index) {
  Unit& unit = units_[index];
  if (unit.written && !unit.on_host) transfer(unit.size_bytes);
  unit.resident = false;
  unit.arrival = nullptr;
  unit.on_host = true;
  device_.unreserve(unit.size_bytes);
  job_.slot().device_bytes.fetch_sub(unit.size_bytes);
  job_.slot().host_bytes.fetch_add(unit.size_bytes);
}

void Residency::drop(size_t index) {
  Unit& unit = units_[index];
  if (!unit.live) return;
  if (unit.resident) {
    device_.unreserve(unit.size_bytes);
    job_.slot().device_bytes.fetch_sub(unit.size_bytes);
  } else {
    job_.slot().host_bytes.fetch_sub(unit.size_bytes);
  }
  unit = {};
}

// True if `wanted` has been reserved: in free memory, or after values went that are used later than it is. What the node itself uses stays.
bool Residency::make_room(size_t wanted, size_t position) {
  const int64_t own_next = next_use(wanted, position);
  const std::vector<int32_t>& needed = of_instruction_[position];
  while (!reserve(units_[wanted].size_bytes)) {
    size_t victim = units_.size();
    int64_t farthest = own_next;
    for (size_t u = 0; u < units_.size(); ++u) {
      if (!units_[u].resident || std::binary_search(needed.begin(), needed.end(), static_cast<int32_t>(u))) continue;
      if (const int64_t next = next_use(u, position); next > farthest) farthest = next, victim = u;
    }
    if (victim == units_.size()) return false;
    move_out(victim);
  }
  return true;
}

void Residency::shrink_to_limit(size_t position) {
  while (job_.slot().device_bytes.load(std::memory_order_relaxed) > limit()) {
    size_t victim = units_.size();
    int64_t farthest = -1;
    for (size_t u = 0; u < units_.size(); ++u)
      if (const int64_t next = units_[u].resident ? next_use(u, position) : -1; next > farthest) farthest = next, victim = u;
    if (victim == units_.size()) return;  // the rest belongs to the job's other sessions
    move_out(victim);
  }
}

void Residency::begin(const Binding& binding) {
  std::lock_guard lock(mutex_);
  binding_ = &binding;
  position_ = 0;
}

void Residency::add(int32_t slot, size_t size_bytes, bool from_host) {
  std::lock_guard lock(mutex_);
  const size_t index = unit_of(slot);
  const Slot& info = program_.slots()[static_cast<size_t>(slot)];
  Unit& unit = units_[index];
  if (unit.live && unit.size_bytes == size_bytes && unit.lasting) return;
  drop(index);
  unit = {
      .size_bytes = size_bytes, .live = true, .written = from_host, .on_host = from_host, .lasting = info.placement == Placement::constant};
  job_.slot().host_bytes.fetch_add(size_bytes);
}

void Residency::before(size_t position) {
  std::lock_guard lock(mutex_);
  position_ = position;
  shrink_to_limit(position);
  for (int32_t u : of_instruction_[position]) {
    const auto index = static_cast<size_t>(u);
    Unit& unit = units_[index];
    if (!unit.live) {
      if (index >= program_.num_buffers()) continue;  // makes its memory itself
      unit = {.size_bytes = binding_->offsets().sizes[index], .live = true};
      job_.slot().host_bytes.fetch_add(unit.size_bytes);
    }
    await_arrival(unit);
    if (unit.resident || unit.size_bytes == 0) continue;
    if (make_room(index, position)) {
      if (unit.written) transfer(unit.size_bytes);
      take_in(index);
    } else {
      transfer(unit.size_bytes);  // the node reads or writes it over the bus
    }
  }
  sharing::JobSlot& slot = job_.slot();
  const uint64_t held = slot.device_bytes.load() + slot.host_bytes.load();
  uint64_t peak = slot.peak_bytes.load();
  while (held > peak && !slot.peak_bytes.compare_exchange_weak(peak, held)) {
  }
  fetch_ahead(position);
}

void Residency::after(size_t position) {
  std::lock_guard lock(mutex_);
  for (int32_t slot : program_.operands(program_.instructions()[position]).subspan(program_.instructions()[position].num_inputs)) {
    if (slot < 0) continue;
    Unit& unit = units_[unit_of(slot)];
    unit.written = true;
    unit.on_host = !unit.resident;
  }
  for (int32_t u : of_instruction_[position]) {
    const auto index = static_cast<size_t>(u);
    // Outputs wait for their copy to the host, which end() stands for.
    const bool output = index >= program_.num_buffers() && program_.slots()[index - program_.num_buffers()].is_output;
    if (!units_[index].lasting && !output && next_use(index, position) == INT64_MAX) drop(index);
  }
}

void Residency::end() {
  std::lock_guard lock(mutex_);
  for (size_t u = 0; u < units_.size(); ++u)
    if (!units_[u].lasting) drop(u);
  binding_ = nullptr;
}

void Residency::limit_changed() {
  std::lock_guard lock(mutex_);
  if (!binding_) shrink_to_limit(position_);
}

}  // namespace treadle::exec
