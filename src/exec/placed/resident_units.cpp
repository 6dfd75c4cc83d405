#include "exec/placed/resident_units.h"

#include <algorithm>
#include <utility>

#include "core/base/logging.h"

namespace treadle::exec {
namespace {

constexpr size_t kBounceBytes = size_t{1} << 20;  // size of the host buffer through which units are copied to and from a file

}  // namespace

ResidentUnits::ResidentUnits(Device& device, DeviceMemory& memory, const DeviceUses& uses)
    : device_(device), memory_(memory), uses_(uses), transfers_(device.create_stream("bus")), units_(uses.num_units()) {}

// Returns the job's account to which a unit in this place is charged; null if no account is charged here. Device memory is charged to the
// session by reserve(). Packed blocks are not charged here, because they always stay on the host as well, and the session has been charged
// for them.
MemoryAccount* ResidentUnits::account_of(UnitId index, Place place) const {
  JobMemory* const job = memory_.job.get();
  if (!job || uses_.is_packed(index)) return nullptr;
  return place == Place::host ? job->on_host().get() : place == Place::file ? job->in_files().get() : nullptr;
}

void ResidentUnits::put(UnitId index, Place place) {
  ResidentUnit& unit = units_[index];
  if (unit.place == Place::device) unreserve(unit.data, unit.size_bytes);
  if (MemoryAccount* before = account_of(index, unit.place)) before->discharge(MemoryClass::other, unit.size_bytes);
  if (MemoryAccount* after = account_of(index, place)) after->charge(MemoryClass::other, unit.size_bytes);
  unit.place = place;
}

void ResidentUnits::appear(UnitId index, ResidentUnit as) {
  drop(index);
  units_[index] = std::move(as);
  put(index, Place::host);
  // Keeps no host copy of a constant if the session belongs to a job, because the copy would count against the job's limit for the host's
  // memory.
  if (const ResidentUnit& unit = units_[index]; unit.lasting && unit.data && unit.size_bytes > 0 && !memory_.job)
    bus().keep_on_host(unit.data, unit.size_bytes);
}

void ResidentUnits::note_written(UnitId index, bool by_host) {
  ResidentUnit& unit = units_[index];
  unit.written = true;
  unit.on_host = by_host || unit.place != Place::device;
  unit.in_file = false;
}

void ResidentUnits::drop(UnitId index) {
  await_arrival(index);
  put(index, Place::nowhere);
  if (const ResidentUnit& unit = units_[index]; unit.data && unit.size_bytes > 0) bus().forget(unit.data, unit.size_bytes);
  units_[index] = {};
}

bool ResidentUnits::reserve(void* data, size_t size_bytes) {
  if (!memory_.account.try_charge(MemoryClass::other, size_bytes)) return false;
  if (bus().reserve(data, size_bytes)) return true;
  memory_.account.discharge(MemoryClass::other, size_bytes);
  return false;
}

bool ResidentUnits::reserve(UnitId index) { return reserve(units_[index].data, units_[index].size_bytes); }

void ResidentUnits::unreserve(void* data, size_t size_bytes) {
  bus().unreserve(data, size_bytes);
  memory_.account.discharge(MemoryClass::other, size_bytes);
}

bool ResidentUnits::has_room(size_t size_bytes) {
  if (!reserve(nullptr, size_bytes)) return false;
  unreserve(nullptr, size_bytes);
  return true;
}

void ResidentUnits::count_move(size_t size_bytes, uint64_t since_ns) const {
  if (memory_.job) memory_.job->moved(size_bytes, sharing::now_ns() - since_ns);
  if (log_enabled(LogLevel::verbose, LogCategory::memory))
    tell_move("between device, host and file", size_bytes, sharing::now_ns() - since_ns);
}

// Moves a unit over the bus and waits until it has arrived, because the memory that it leaves may be freed next. Does not wait for a
// constant that goes back to the host, because its device memory is not freed.
void ResidentUnits::move(const ResidentUnit& unit, Bus::Move where) {
  const uint64_t start = sharing::now_ns();
  bus().move(*transfers_, unit.data, unit.size_bytes, where);
  const bool is_back = where == Bus::Move::back_to_host;
  if (!is_back || !unit.lasting) transfers_->synchronize();
  if (!is_back) count_move(unit.size_bytes, start);
}

void ResidentUnits::bring(UnitId index) {
  put(index, Place::device);
  if (units_[index].written) move(units_[index], Bus::Move::to_device);
}

void ResidentUnits::fetch(UnitId index) {
  put(index, Place::device);
  ResidentUnit& unit = units_[index];
  unit.arrival = device_.create_event();
  bus().move(*transfers_, unit.data, unit.size_bytes, Bus::Move::to_device);
  transfers_->record(*unit.arrival);
  count_move(unit.size_bytes, sharing::now_ns());
}

void ResidentUnits::await_arrival(UnitId index) {
  ResidentUnit& unit = units_[index];
  if (!unit.arrival) return;
  const uint64_t start = sharing::now_ns();
  std::exchange(unit.arrival, nullptr)->synchronize();
  count_move(0, start);
}

void ResidentUnits::move_out(UnitId index) {
  ResidentUnit& unit = units_[index];
  if (unit.written) move(unit, unit.on_host ? Bus::Move::back_to_host : Bus::Move::to_host);
  unit.arrival = nullptr;
  unit.on_host = true;
  put(index, Place::host);
}

void ResidentUnits::use_over_bus(UnitId index) {
  const uint64_t start = sharing::now_ns();
  bus().use_over_bus(*transfers_, units_[index].size_bytes);
  transfers_->synchronize();
  count_move(units_[index].size_bytes, start);
}

// Divides the unit into pieces that fit into a buffer on the host, and calls piece(buffer, address, offset in the unit, number of bytes)
// for each.
template <typename Piece>
void ResidentUnits::exchange(const ResidentUnit& unit, Piece&& piece) const {
  const uint64_t start = sharing::now_ns();
  std::vector<std::byte> bounce(std::min(unit.size_bytes, kBounceBytes));
  std::byte* const data = unit.size_bytes > 0 ? static_cast<std::byte*>(bus().reach(unit.data, unit.size_bytes)) : unit.data;
  for (size_t done = 0; done < unit.size_bytes; done += bounce.size())
    piece(bounce.data(), data + done, done, std::min(bounce.size(), unit.size_bytes - done));
  count_move(unit.size_bytes, start);
}

void ResidentUnits::spill(UnitId index) {
  ResidentUnit& unit = units_[index];
  if (unit.written && !unit.in_file) {
    File& where = file_of(unit);
    if (!where.file) where.file = std::make_unique<memory::SpillFile>(memory_.spill_folder);
    exchange(unit, [&](std::byte* host, const std::byte* data, size_t offset, size_t size) {
      transfers_->copy(host, data, size, CopyKind::device_to_host);
      transfers_->synchronize();
      where.file->write(where.end + offset, host, size);
    });
    unit.file_offset = where.end;
    where.end += unit.size_bytes;
    unit.in_file = true;
  }
  transfers_->synchronize();  // a copy of the unit from the device may still be in progress
  bus().discard(unit.data, unit.size_bytes);
  put(index, Place::file);
}

void ResidentUnits::read_back(UnitId index) {
  ResidentUnit& unit = units_[index];
  if (unit.place != Place::file) return;
  if (unit.written) {
    const File& where = file_of(unit);
    exchange(unit, [&](std::byte* host, std::byte* data, size_t offset, size_t size) {
      where.file->read(unit.file_offset + offset, host, size);
      transfers_->copy(data, host, size, CopyKind::host_to_device);
      transfers_->synchronize();
    });
  }
  put(index, Place::host);
}

}  // namespace treadle::exec
