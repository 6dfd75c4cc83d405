#include "exec/residency.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "core/logging.h"
#include "treadle/error.h"

namespace treadle::exec {
namespace {

// How many nodes ahead constants are fetched: enough for the largest to come while nodes of some ten microseconds run.
constexpr size_t kFetchAhead = 16;
constexpr size_t kBounceBytes = size_t{1} << 20;  // between the device's address space and a file

}  // namespace

Residency::Residency(const Program& program, Device& device, sharing::JobState* job, std::shared_ptr<DeviceMemoryLimit> own,
                     std::string spill_folder)
    : program_(program),
      device_(device),
      bus_(device.create_stream("bus")),
      job_(job),
      own_(std::move(own)),
      units_(program.num_buffers() + program.slots().size()),
      spill_folder_(std::move(spill_folder)) {
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
  if (job_) sharing::MemoryWatch::get().add(*this, *job_);
  if (!own_) return;
  std::lock_guard lock(own_->mutex);
  own_->programs.push_back(this);
}

Residency::~Residency() {
  if (job_) sharing::MemoryWatch::get().remove(*this);
  if (own_) {
    std::lock_guard lock(own_->mutex);
    std::erase(own_->programs, this);
  }
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

void Residency::count(std::atomic<uint64_t> sharing::JobSlot::*what, uint64_t change) {
  if (job_) (job_->slot().*what).fetch_add(change, std::memory_order_relaxed);
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

// Outputs wait for their copy to the host, which end() stands for.
bool Residency::is_output(size_t unit) const {
  return unit >= program_.num_buffers() && program_.slots()[unit - program_.num_buffers()].is_output;
}

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

void Residency::transfer(size_t size_bytes) {
  const uint64_t start = sharing::now_ns();
  bus_->transfer(size_bytes);
  bus_->synchronize();
  count(&sharing::JobSlot::moving_ns, sharing::now_ns() - start);
  count(&sharing::JobSlot::moved_bytes, size_bytes);
  count(&sharing::JobSlot::moves, 1);
}

void Residency::await_arrival(Unit& unit) {
  if (!unit.arrival) return;
  const uint64_t start = sharing::now_ns();
  std::exchange(unit.arrival, nullptr)->synchronize();
  count(&sharing::JobSlot::moving_ns, sharing::now_ns() - start);
}

void Residency::take_in(size_t index) {
  units_[index].resident = true;
  count(&sharing::JobSlot::host_bytes, 0 - uint64_t{units_[index].size_bytes});
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
      if (!unit.live || !unit.lasting || unit.on_disk) {
        others += index < program_.num_buffers() ? binding_->offsets().sizes[index] : unit.size_bytes;
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

void Residency::move_out(size_t index) {
  Unit& unit = units_[index];
  if (unit.written && !unit.on_host) transfer(unit.size_bytes);
  unit.resident = false;
  unit.arrival = nullptr;
  unit.on_host = true;
  unreserve(unit.size_bytes);
  count(&sharing::JobSlot::host_bytes, unit.size_bytes);
}

void Residency::drop(size_t index) {
  Unit& unit = units_[index];
  if (!unit.live) return;
  if (unit.resident)
    unreserve(unit.size_bytes);
  else
    count(unit.on_disk ? &sharing::JobSlot::disk_bytes : &sharing::JobSlot::host_bytes, 0 - uint64_t{unit.size_bytes});
  unit = {};
}

// True if `wanted` has been reserved: in free memory, or after values went that are used later than it is. What the node itself uses stays.
bool Residency::make_room(size_t wanted, size_t position) {
  const int64_t own_next = own_ ? -1 : next_use(wanted, position);  // the session's limit: all that a node uses comes in
  const std::vector<int32_t>& needed = of_instruction_[position];
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
        throw Error(ErrorCode::resource_exhausted,
                    fmt::format("{} has no room for the {} bytes of a value in the session's memory limit of {}, of which {} are in use: "
                                "sizes that came out in the run are not known before, and others may use the device",
                                device_.name(), units_[wanted].size_bytes, own_->limit_bytes.load(), own_->used_bytes.load()));
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
    else if (!own_ || !binding_ || !evict_idle())
      return;  // the rest belongs to the job's other sessions, or the session's other programs
  }
}

// Calls piece(memory of the host, offset in the unit, bytes) for the contents of a unit, part by part.
template <typename Piece>
void Residency::exchange(size_t index, Piece&& piece) {
  const uint64_t start = sharing::now_ns();
  Unit& unit = units_[index];
  bounce_.resize(std::min(unit.size_bytes, kBounceBytes));
  for (size_t done = 0; done < unit.size_bytes; done += bounce_.size())
    piece(bounce_.data(), done, std::min(bounce_.size(), unit.size_bytes - done));
  bounce_ = {};
  count(&sharing::JobSlot::moving_ns, sharing::now_ns() - start);
  count(&sharing::JobSlot::moved_bytes, unit.size_bytes);
  count(&sharing::JobSlot::moves, 1);
}

// From the host's memory to the file. A file that cannot be written leaves everything as it was.
void Residency::spill(size_t index) {
  Unit& unit = units_[index];
  if (unit.written && !unit.in_file) {
    File& where = unit.lasting ? of_constants_ : of_run_;
    if (!where.file) where.file = std::make_unique<memory::SpillFile>(spill_folder_);
    exchange(index, [&](std::byte* host, size_t offset, size_t size) {
      bus_->copy(host, unit.data + offset, size, CopyKind::device_to_host);
      bus_->synchronize();
      where.file->write(where.end + offset, host, size);
    });
    unit.file_offset = where.end;
    where.end += unit.size_bytes;
    unit.in_file = true;
  }
  device_.discard(unit.data, unit.size_bytes);
  unit.on_disk = true;
  count(&sharing::JobSlot::host_bytes, 0 - uint64_t{unit.size_bytes});
  count(&sharing::JobSlot::disk_bytes, unit.size_bytes);
}

void Residency::read_back(size_t index) {
  Unit& unit = units_[index];
  if (!unit.on_disk) return;
  if (unit.written) {
    const File& where = unit.lasting ? of_constants_ : of_run_;
    exchange(index, [&](std::byte* host, size_t offset, size_t size) {
      where.file->read(unit.file_offset + offset, host, size);
      bus_->copy(unit.data + offset, host, size, CopyKind::host_to_device);
      bus_->synchronize();
    });
  }
  unit.on_disk = false;
  count(&sharing::JobSlot::disk_bytes, 0 - uint64_t{unit.size_bytes});
  count(&sharing::JobSlot::host_bytes, unit.size_bytes);
}

// Until the host's limit is kept: first what is used last. What the node uses, if it is the next thing, and outputs stay.
bool Residency::spill_for(size_t position, bool node_is_next) {
  if (!job_ || of_instruction_.empty()) return true;
  const std::vector<int32_t>& needed = of_instruction_[position];
  while (job_->slot().host_bytes.load(std::memory_order_relaxed) > host_limit()) {
    size_t victim = units_.size();
    int64_t farthest = -1;
    for (size_t u = 0; u < units_.size(); ++u) {
      const Unit& unit = units_[u];
      if (!unit.live || unit.resident || unit.on_disk || unit.size_bytes == 0 || is_output(u)) continue;
      if (node_is_next && std::binary_search(needed.begin(), needed.end(), static_cast<int32_t>(u))) continue;
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

void Residency::begin(const Binding& binding, std::byte* arena, const RunControl& control) {
  if (own_) turn_.emplace(own_->run, control);
  std::lock_guard lock(mutex_);
  binding_ = &binding;
  try {
    check_limit();
  } catch (...) {
    binding_ = nullptr;
    turn_.reset();
    throw;
  }
  arena_ = arena;
  position_ = 0;
  of_run_.end = 0;
}

// Of the sizes that are known before the run.
void Residency::check_limit() const {
  if (!own_) return;
  const size_t num_buffers = program_.num_buffers();
  size_t least = 0, largest = 0;
  for (size_t i = 0; i < of_instruction_.size(); ++i) {
    size_t bytes = 0;
    for (int32_t u : of_instruction_[i]) {
      const auto index = static_cast<size_t>(u);
      if (index < num_buffers) {
        bytes += binding_->offsets().sizes[index];
        continue;
      }
      const Slot& slot = program_.slots()[index - num_buffers];
      if (slot.static_shape && slot.dtype != DType::string)
        bytes += size_bytes(slot.dtype, binding_->shape(static_cast<int32_t>(index - num_buffers)).num_elements());
    }
    if (bytes > least) least = bytes, largest = i;
  }
  const uint64_t limit = effective(own_->limit_bytes);
  if (least <= limit) return;
  throw Error(ErrorCode::resource_exhausted,
              fmt::format("the memory limit of {} bytes is too low: this run needs at least {} on {}, for what {} uses", limit, least,
                          device_.name(), describe(*program_.instructions()[largest].node)));
}

// What the session's other programs hold moves out: one of them, as nothing of them runs.
bool Residency::evict_idle() {
  std::lock_guard lock(own_->mutex);
  for (Residency* other : own_->programs) {
    if (other == this) continue;
    // Its run has ended, as one at a time takes place: who has this mutex has it for a moment and waits for no other. The order of the two
    // is not everywhere the same, so none is waited for.
    std::unique_lock other_lock(other->mutex_, std::try_to_lock);
    while (!other_lock.owns_lock() && !other_lock.try_lock()) std::this_thread::yield();
    bool any = false;
    for (size_t u = 0; u < other->units_.size(); ++u)
      if (other->units_[u].resident) other->move_out(u), any = true;
    if (any) return true;
  }
  return false;
}

void Residency::add(int32_t slot, std::byte* data, size_t size_bytes, bool from_host) {
  std::lock_guard lock(mutex_);
  const size_t index = unit_of(slot);
  const Slot& info = program_.slots()[static_cast<size_t>(slot)];
  Unit& unit = units_[index];
  if (unit.live && unit.size_bytes == size_bytes && unit.lasting) return;
  drop(index);
  unit = {.size_bytes = size_bytes,
          .live = true,
          .written = from_host,
          .on_host = from_host,
          .lasting = info.placement == Placement::constant,
          .data = data};
  count(&sharing::JobSlot::host_bytes, size_bytes);
}

void Residency::before(size_t position) {
  std::unique_lock lock(mutex_);
  position_ = position;
  shrink_to_limit(position);
  for (int32_t u : of_instruction_[position]) {
    const auto index = static_cast<size_t>(u);
    Unit& unit = units_[index];
    if (!unit.live) {
      if (index >= program_.num_buffers()) continue;  // makes its memory itself
      unit = {.size_bytes = binding_->offsets().sizes[index], .live = true, .data = arena_ + binding_->offsets().offsets[index]};
      count(&sharing::JobSlot::host_bytes, unit.size_bytes);
    }
    await_arrival(unit);
    if (unit.resident || unit.size_bytes == 0) continue;
    read_back(index);
    if (make_room(index, position)) {
      if (unit.written) transfer(unit.size_bytes);
      take_in(index);
    } else {
      transfer(unit.size_bytes);  // the node reads or writes it over the bus
    }
  }
  if (job_) {
    if (!spill_for(position, /*node_is_next=*/true)) {
      // Other sessions of the job may hold what they do not use now.
      lock.unlock();
      sharing::MemoryWatch::get().ask_others(*this, *job_);
      lock.lock();
      if (!spill_for(position, /*node_is_next=*/true)) check_room(position);
    }
    sharing::JobSlot& slot = job_->slot();
    const uint64_t held = slot.device_bytes.load() + slot.host_bytes.load();
    uint64_t peak = slot.peak_bytes.load();
    while (held > peak && !slot.peak_bytes.compare_exchange_weak(peak, held)) {
    }
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
    unit.in_file = false;
  }
  for (int32_t u : of_instruction_[position]) {
    const auto index = static_cast<size_t>(u);
    if (!units_[index].lasting && !is_output(index) && next_use(index, position) == INT64_MAX) drop(index);
  }
}

void Residency::end() {
  std::lock_guard lock(mutex_);
  for (size_t u = 0; u < units_.size(); ++u)
    if (!units_[u].lasting) drop(u);
  binding_ = nullptr;
  turn_.reset();
}

void Residency::before_reading(int32_t slot) {
  std::lock_guard lock(mutex_);
  read_back(unit_of(slot));
}

// What is left is the node's, or what others of the job use, who make room at their next node.
void Residency::check_room(size_t position) const {
  uint64_t needed = 0;
  for (int32_t u : of_instruction_[position])
    if (const Unit& unit = units_[static_cast<size_t>(u)]; unit.live && !unit.resident) needed += unit.size_bytes;
  if (needed <= host_limit()) return;
  throw Error(ErrorCode::resource_exhausted, fmt::format("the job's limit of {} bytes of the host's memory is too low: the node needs {} "
                                                         "there, as the device has no room for them",
                                                         host_limit(), needed));
}

void Residency::limit_changed(bool may_wait) {
  if (!may_wait) {
    try_keep_to_limit();
    return;
  }
  std::lock_guard lock(mutex_);
  keep_to_limit();
}

bool Residency::try_keep_to_limit() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock) keep_to_limit();
  return lock.owns_lock();
}

void Residency::keep_to_limit() {
  if (binding_) return;
  shrink_to_limit(position_);
  try {
    spill_for(position_, /*node_is_next=*/false);
  } catch (const Error& error) {
    TREADLE_LOG(warning, "a job's memory limit is not kept: {}", error.what());
  }
}

}  // namespace treadle::exec
