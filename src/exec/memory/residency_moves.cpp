// How values move between the device's memory, the host's and files, and how they are counted there; residency.cpp says which and when.
#include <algorithm>
#include <utility>

#include "exec/memory/residency.h"

namespace treadle::exec {
namespace {

constexpr size_t kBounceBytes = size_t{1} << 20;  // between the device's address space and a file

}  // namespace

void Residency::count(std::atomic<uint64_t> sharing::JobSlot::*what, uint64_t change) {
  if (job_) (job_->slot().*what).fetch_add(change, std::memory_order_relaxed);
}

// What is packed lies in the host's memory whatever the device has: that copy is the session's.
void Residency::count_on_host(size_t unit, uint64_t change) {
  if (!is_packed(unit)) count(&sharing::JobSlot::host_bytes, change);
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
  count_on_host(index, 0 - uint64_t{units_[index].size_bytes});
}

void Residency::move_out(size_t index) {
  Unit& unit = units_[index];
  if (unit.written && !unit.on_host) transfer(unit.size_bytes);
  unit.resident = false;
  unit.arrival = nullptr;
  unit.on_host = true;
  unreserve(unit.size_bytes);
  count_on_host(index, unit.size_bytes);
}

void Residency::drop(size_t index) {
  Unit& unit = units_[index];
  if (!unit.live) return;
  if (unit.resident)
    unreserve(unit.size_bytes);
  else if (unit.on_disk)
    count(&sharing::JobSlot::disk_bytes, 0 - uint64_t{unit.size_bytes});
  else
    count_on_host(index, 0 - uint64_t{unit.size_bytes});
  unit = {};
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
  count_on_host(index, 0 - uint64_t{unit.size_bytes});
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
  count_on_host(index, unit.size_bytes);
}

}  // namespace treadle::exec
