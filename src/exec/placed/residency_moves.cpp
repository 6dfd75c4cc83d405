// How values move between the device's memory, the host's and files, and how they are counted there; residency.cpp says which and when.
#include <algorithm>
#include <utility>

#include "exec/placed/residency.h"

namespace treadle::exec {
namespace {

constexpr size_t kBounceBytes = size_t{1} << 20;  // between the device's address space and a file

}  // namespace

void Residency::count_move(size_t size_bytes, uint64_t since_ns) const {
  if (memory_->job) memory_->job->moved(size_bytes, sharing::now_ns() - since_ns);
}

// Waits for it, as the memory may go. A constant's stays: moving back what has not changed may take its time.
void Residency::move(const Unit& unit, Bus::Move where) {
  const uint64_t start = sharing::now_ns();
  bus().move(*transfers_, unit.data, unit.size_bytes, where);
  const bool is_back = where == Bus::Move::back_to_host;
  if (!is_back || !unit.lasting) transfers_->synchronize();
  if (!is_back) count_move(unit.size_bytes, start);
}

void Residency::use_over_bus(size_t size_bytes) {
  const uint64_t start = sharing::now_ns();
  bus().use_over_bus(*transfers_, size_bytes);
  transfers_->synchronize();
  count_move(size_bytes, start);
}

void Residency::await_arrival(Unit& unit) {
  if (!unit.arrival) return;
  const uint64_t start = sharing::now_ns();
  std::exchange(unit.arrival, nullptr)->synchronize();
  count_move(0, start);
}

// Of the job, but for devices: there reserve() counts. What is packed lies in the host's memory in any case: that copy is the session's.
MemoryAccount* Residency::account_of(UnitId index, Place place) const {
  if (!memory_->job || is_packed(index)) return nullptr;
  return place == Place::host ? memory_->job->on_host().get() : place == Place::file ? memory_->job->in_files().get() : nullptr;
}

void Residency::put(UnitId index, Place place) {
  Unit& unit = units_[index];
  if (unit.place == Place::device) unreserve(unit.size_bytes);
  if (MemoryAccount* before = account_of(index, unit.place)) before->discharge(MemoryClass::other, unit.size_bytes);
  if (MemoryAccount* after = account_of(index, place)) after->charge(MemoryClass::other, unit.size_bytes);
  unit.place = place;
}

void Residency::move_out(UnitId index) {
  Unit& unit = units_[index];
  if (unit.written) move(unit, unit.on_host ? Bus::Move::back_to_host : Bus::Move::to_host);
  unit.arrival = nullptr;
  unit.on_host = true;
  put(index, Place::host);
}

void Residency::drop(UnitId index) {
  put(index, Place::nowhere);
  units_[index] = {};
}

// Calls piece(memory of the host, offset in the unit, bytes) for the contents of a unit, part by part.
template <typename Piece>
void Residency::exchange(UnitId index, Piece&& piece) {
  const uint64_t start = sharing::now_ns();
  Unit& unit = units_[index];
  bounce_.resize(std::min(unit.size_bytes, kBounceBytes));
  for (size_t done = 0; done < unit.size_bytes; done += bounce_.size())
    piece(bounce_.data(), done, std::min(bounce_.size(), unit.size_bytes - done));
  bounce_ = {};
  count_move(unit.size_bytes, start);
}

// From the host's memory to the file. A file that cannot be written leaves everything as it was.
void Residency::spill(UnitId index) {
  Unit& unit = units_[index];
  if (unit.written && !unit.in_file) {
    File& where = unit.lasting ? of_constants_ : of_run_;
    if (!where.file) where.file = std::make_unique<memory::SpillFile>(memory_->spill_folder);
    exchange(index, [&](std::byte* host, size_t offset, size_t size) {
      transfers_->copy(host, unit.data + offset, size, CopyKind::device_to_host);
      transfers_->synchronize();
      where.file->write(where.end + offset, host, size);
    });
    unit.file_offset = where.end;
    where.end += unit.size_bytes;
    unit.in_file = true;
  }
  transfers_->synchronize();  // it may be on its way from the device still
  bus().discard(unit.data, unit.size_bytes);
  put(index, Place::file);
}

void Residency::read_back(UnitId index) {
  Unit& unit = units_[index];
  if (unit.place != Place::file) return;
  if (unit.written) {
    const File& where = unit.lasting ? of_constants_ : of_run_;
    exchange(index, [&](std::byte* host, size_t offset, size_t size) {
      where.file->read(unit.file_offset + offset, host, size);
      transfers_->copy(unit.data + offset, host, size, CopyKind::host_to_device);
      transfers_->synchronize();
    });
  }
  put(index, Place::host);
}

}  // namespace treadle::exec
