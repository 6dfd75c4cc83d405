#include "exec/placed/resident_units.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/base/logging.h"

namespace treadle::exec {
namespace {

constexpr size_t kBounceBytes = size_t{1} << 20;  // size of the host buffer through which units are copied to and from a file

}  // namespace

ResidentUnits::ResidentUnits(Device& device, DeviceMemory& memory, const DeviceUses& uses, StepsUnderWay& under_way)
    : device_(device),
      memory_(memory),
      uses_(uses),
      under_way_(under_way),
      to_device_(device.create_stream("bus")),
      to_host_(device.create_stream("bus back")),
      units_(uses.num_units()) {}

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
  if (unit.place != Place::nowhere) leave({.unit = index, .was = unit, .last_move = unit.arrival, .is_forgotten = place == Place::nowhere});
  if (MemoryAccount* after = account_of(index, place)) after->charge(MemoryClass::other, unit.size_bytes);
  unit.place = place;
}

// Frees the unit's old memory, or lets it wait until the work that uses this memory is done.
void ResidentUnits::leave(Leaving leaving) {
  if (has_left(leaving))
    free(leaving);
  else
    leaving_.push_back(std::move(leaving));
}

bool ResidentUnits::has_left(const Leaving& leaving) {
  const auto& uses = leaving.was.uses;
  return (!leaving.last_move || leaving.last_move->complete()) &&
         std::all_of(uses.begin(), uses.end(), [&](StepsUnderWay::Mark mark) { return under_way_.is_done(mark); });
}

void ResidentUnits::free(const Leaving& leaving) {
  const ResidentUnit& was = leaving.was;
  if (was.place == Place::device) unreserve(was.data, was.size_bytes);
  if (MemoryAccount* account = account_of(leaving.unit, was.place)) account->discharge(MemoryClass::other, was.size_bytes);
  if (leaving.is_forgotten && was.data && was.size_bytes > 0) bus().forget(was.data, was.size_bytes);
}

void ResidentUnits::free_left() {
  size_t left = 0;
  for (Leaving& leaving : leaving_) {
    if (has_left(leaving))
      free(leaving);
    else
      std::swap(leaving_[left++], leaving);
  }
  leaving_.erase(leaving_.begin() + static_cast<ptrdiff_t>(left), leaving_.end());
}

std::shared_ptr<Event> ResidentUnits::end_of(const Leaving& leaving) {
  if (leaving.last_move && !leaving.last_move->complete()) return leaving.last_move;
  for (const StepsUnderWay::Mark mark : leaving.was.uses)
    if (std::shared_ptr<Event> event = under_way_.event_behind(mark)) return event;
  return nullptr;
}

void ResidentUnits::await_leaving() {
  for (const Leaving& leaving : leaving_)
    while (const std::shared_ptr<Event> event = end_of(leaving)) event->synchronize();
  free_left();
}

void ResidentUnits::settle() {
  std::exception_ptr failed;
  for (Stream* const stream : {to_device_.get(), to_host_.get()}) {
    try {
      stream->synchronize();
    } catch (...) {
      failed = std::current_exception();
    }
  }
  for (ResidentUnit& unit : units_) unit.arrival = nullptr, unit.uses.clear();
  for (const Leaving& leaving : std::exchange(leaving_, {})) free(leaving);
  if (failed) std::rethrow_exception(failed);
}

bool ResidentUnits::is_leaving(UnitId unit) const {
  return std::any_of(leaving_.begin(), leaving_.end(), [&](const Leaving& l) { return l.unit == unit && l.was.place == Place::device; });
}

size_t ResidentUnits::leaving_bytes(Place place) const {
  size_t bytes = 0;
  for (const Leaving& leaving : leaving_)
    if (leaving.was.place == place) bytes += leaving.was.size_bytes;
  return bytes;
}

std::shared_ptr<Event> ResidentUnits::next_to_leave(Place place) {
  for (const Leaving& leaving : leaving_)
    if (leaving.was.place == place)
      if (std::shared_ptr<Event> event = end_of(leaving)) return event;
  return nullptr;
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

void ResidentUnits::note_used(UnitId index, StepsUnderWay::Mark mark) {
  std::vector<StepsUnderWay::Mark>& uses = units_[index].uses;
  const auto same = std::find_if(uses.begin(), uses.end(), [&](StepsUnderWay::Mark use) { return use.stream == mark.stream; });
  if (same == uses.end())
    uses.push_back(mark);
  else
    *same = mark;
}

void ResidentUnits::let_go(UnitId index) {
  put(index, Place::nowhere);
  units_[index] = {};
}

void ResidentUnits::drop(UnitId index) {
  if (units_[index].place != Place::nowhere) {
    await(index);
    await_leaving();
  }
  let_go(index);
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

void ResidentUnits::count_move(size_t size_bytes, uint64_t took_ns) const {
  if (memory_.job) memory_.job->moved(size_bytes, took_ns);
  if (log_enabled(LogLevel::verbose, LogCategory::memory)) tell_move("between device, host and file", size_bytes, took_ns);
}

// Lets the stream wait for the unit's last move, and for the steps that have used the unit since.
void ResidentUnits::follow_uses(const ResidentUnit& unit, Stream& stream) {
  if (unit.arrival && !unit.arrival->complete()) stream.wait(unit.arrival);
  for (const StepsUnderWay::Mark mark : unit.uses)
    if (const std::shared_ptr<Event> event = under_way_.event_behind(mark)) stream.wait(event);
}

void ResidentUnits::move(ResidentUnit& unit, Stream& stream, Bus::Move where) {
  follow_uses(unit, stream);
  bus().move(stream, unit.data, unit.size_bytes, where);
  unit.arrival = device_.create_event();
  stream.record(*unit.arrival);
  unit.uses.clear();  // the event comes after them
  if (where != Bus::Move::back_to_host) count_move(unit.size_bytes, 0);
}

void ResidentUnits::bring(UnitId index) {
  if (ResidentUnit& unit = units_[index]; unit.written) move(unit, *to_device_, Bus::Move::to_device);
  put(index, Place::device);
}

void ResidentUnits::move_out(UnitId index) {
  ResidentUnit& unit = units_[index];
  if (unit.written) move(unit, *to_host_, unit.on_host ? Bus::Move::back_to_host : Bus::Move::to_host);
  unit.on_host = true;
  put(index, Place::host);
}

void ResidentUnits::use_over_bus(UnitId index) {
  ResidentUnit& unit = units_[index];
  if (unit.arrival && !unit.arrival->complete()) to_device_->wait(unit.arrival);
  bus().use_over_bus(*to_device_, unit.size_bytes);
  unit.arrival = device_.create_event();
  to_device_->record(*unit.arrival);
  count_move(unit.size_bytes, 0);
}

std::shared_ptr<Event> ResidentUnits::arrival(UnitId index) {
  ResidentUnit& unit = units_[index];
  if (unit.arrival && unit.arrival->complete()) unit.arrival = nullptr;
  return unit.arrival;
}

// Waits until no work uses the unit.
void ResidentUnits::await(UnitId index) {
  ResidentUnit& unit = units_[index];
  if (unit.arrival) unit.arrival->synchronize();
  for (const StepsUnderWay::Mark mark : unit.uses)
    if (const std::shared_ptr<Event> event = under_way_.event_behind(mark)) event->synchronize();
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
  count_move(unit.size_bytes, sharing::now_ns() - start);
}

void ResidentUnits::spill(UnitId index) {
  ResidentUnit& unit = units_[index];
  await(index);
  await_leaving();  // the unit may still be leaving the device
  if (unit.written && !unit.in_file) {
    File& where = file_of(unit);
    if (!where.file) where.file = std::make_unique<memory::SpillFile>(memory_.spill_folder);
    exchange(unit, [&](std::byte* host, const std::byte* data, size_t offset, size_t size) {
      to_host_->copy(host, data, size, CopyKind::device_to_host);
      to_host_->synchronize();
      where.file->write(where.end + offset, host, size);
    });
    unit.file_offset = where.end;
    where.end += unit.size_bytes;
    unit.in_file = true;
  }
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
      to_device_->copy(data, host, size, CopyKind::host_to_device);
      to_device_->synchronize();
    });
  }
  put(index, Place::host);
}

}  // namespace treadle::exec
